//! Packed problems.

use super::HostScoreMod;
use super::core::{Computed, KeyPlace, Sequence, Setting, Tensor, compute};
use super::dense::{Given, PageTable};
use super::element::{decode, decode_index, decode_rows, encode_rows};
use crate::{Alignment, DType, IndexType, Operand, Reason, Refusal, TokenStrides, VarlenProblem};

/// Operands of the reference for packed sequences: the bytes that a device would be given, as [`crate::VarlenOperands`]
/// names them. `None` is right exactly where the problem does not ask for the operand.
#[derive(Clone, Copy, Default)]
pub struct VarlenHostOperands<'a> {
    /// Queries, `[total_q, q_heads, head_dim]`.
    pub q: &'a [u8],
    /// Keys, `[total_kv, kv_heads, head_dim]`, or their pages.
    pub k: &'a [u8],
    /// Values, `[total_kv, kv_heads, v_head_dim]`, or their pages.
    pub v: &'a [u8],
    /// Where each query sequence starts, `[batch + 1]`.
    pub cu_seqlens_q: &'a [u8],
    /// Where each key sequence starts, `[batch + 1]`.
    pub cu_seqlens_kv: &'a [u8],
    /// Keys in use of each sequence's span, `[batch]`.
    pub used_lengths: Option<&'a [u8]>,
    /// The array of [`crate::Alignment::PerBatch`], `[batch]`.
    pub query_offsets: Option<&'a [u8]>,
    /// One float32 a query head.
    pub sinks: Option<&'a [u8]>,
    /// Page table, `i32 [batch, max_pages]`.
    pub page_table: Option<&'a [u8]>,
    /// What the problem's [`crate::ScoreMod`] computes.
    pub score_mod: Option<&'a HostScoreMod<'a>>,
}

/// What the reference computes of a packed problem.
#[derive(Clone, Debug, PartialEq)]
pub struct VarlenHostOutput {
    /// Contiguous `[total_q, q_heads, v_head_dim]`, whatever the problem's strides.
    pub o: Vec<f64>,
    /// Natural, contiguous `[q_heads, total_q]`. Always there.
    pub log_sum_exp: Vec<f64>,
}

/// Computes `problem` in float64 on all cores.
///
/// # Errors
///
/// A refusal with every reason: the problem is not legal, an operand is missing, too short or not asked for, the
/// offsets are bad ([`VarlenProblem::check_offsets`]), a page number is outside the pool, or the output does not fit
/// the host's memory.
pub fn attention_varlen(
    problem: &VarlenProblem,
    operands: &VarlenHostOperands<'_>,
) -> Result<VarlenHostOutput, Refusal> {
    problem.validate()?;
    let extents = problem.extents()?;
    let mut given = Given::default();
    given.tensor(Operand::Q, Some(extents.q), Some(operands.q));
    given.tensor(Operand::K, Some(extents.k), Some(operands.k));
    given.tensor(Operand::V, Some(extents.v), Some(operands.v));
    given.tensor(Operand::CuSeqlensQ, Some(extents.cu_seqlens_q), Some(operands.cu_seqlens_q));
    given.tensor(Operand::CuSeqlensKv, Some(extents.cu_seqlens_kv), Some(operands.cu_seqlens_kv));
    given.tensor(Operand::UsedLengths, extents.used_lengths, operands.used_lengths);
    given.tensor(Operand::QueryOffsets, extents.query_offsets, operands.query_offsets);
    given.tensor(Operand::Sinks, extents.sinks, operands.sinks);
    given.tensor(Operand::PageTable, extents.page_table, operands.page_table);
    given.score_mod(problem.score_mod.is_some(), operands.score_mod.is_some());
    given.finish()?;
    let shape = problem.shape;
    if shape.is_empty() {
        return Ok(VarlenHostOutput { o: vec![], log_sum_exp: vec![] });
    }

    let setting = Setting {
        dtype: problem.dtype,
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        v_head_dim: shape.v_head_dim,
        q: tensor(operands.q, problem.q),
        k: tensor(operands.k, problem.k),
        v: tensor(operands.v, problem.v),
        scale: f64::from(problem.scale),
        softcap: problem.softcap.map(f64::from),
        score_mod: operands.score_mod,
        causal: problem.causal,
        window: problem.window,
        bias: None,
        sinks: operands.sinks.map(|sinks| decode(sinks, DType::F32)),
        stage: None,
    };
    let (sequences, starts) = sequences(problem, operands)?;
    let computed = compute(&setting, &sequences)?;
    Ok(by_token(problem, &sequences, &starts, &computed))
}

/// The sequences, and the first query token of each.
fn sequences(
    problem: &VarlenProblem,
    operands: &VarlenHostOperands<'_>,
) -> Result<(Vec<Sequence>, Vec<usize>), Refusal> {
    let batch = problem.shape.batch;
    let entries = |bytes: &[u8], count: usize| {
        let mut entries = decode_index(bytes, problem.offsets);
        entries.truncate(count);
        entries
    };
    let cu_q = entries(operands.cu_seqlens_q, batch + 1);
    let cu_kv = entries(operands.cu_seqlens_kv, batch + 1);
    let used = operands.used_lengths.map(|used| entries(used, batch));
    problem.check_offsets(&cu_q, &cu_kv, used.as_deref())?;
    let index = |array: Option<&[u8]>, index: Option<IndexType>| Some(decode_index(array?, index?));
    let offsets = index(operands.query_offsets, problem.alignment.index_type());
    let table = operands.page_table.map(|table| decode_index(table, IndexType::I32));

    let mut sequences = Vec::new();
    let mut starts = Vec::new();
    for sequence in 0..batch {
        // Offsets have been checked: none is negative, and none is less than the one before it.
        let (q_first, kv_first) = (cu_q[sequence] as usize, cu_kv[sequence] as usize);
        let q_len = (cu_q[sequence + 1] - cu_q[sequence]) as usize;
        let span = (cu_kv[sequence + 1] - cu_kv[sequence]) as usize;
        let keys = used.as_ref().map_or(span, |used| used[sequence] as usize);
        let offset = match problem.alignment {
            Alignment::TopLeft => 0,
            Alignment::BottomRight => keys as i64 - q_len as i64,
            Alignment::PerBatch(_) => offsets.as_ref().map_or(0, |offsets| offsets[sequence]),
        };
        let at = |token: usize, strides: TokenStrides| token * strides.token as usize;
        let kv = match (problem.paging, &table) {
            (Some(paging), Some(table)) => {
                let (k_page, v_page) = (paging.k_page as usize, paging.v_page as usize);
                PageTable { paging: paging.paging, table, k_page, v_page }.place(sequence, keys)?
            }
            _ => KeyPlace::Dense { k_start: at(kv_first, problem.k), v_start: at(kv_first, problem.v) },
        };
        starts.push(q_first);
        sequences.push(Sequence { q_len, columns: span, keys, offset, q_start: at(q_first, problem.q), kv });
    }
    Ok((sequences, starts))
}

fn tensor(bytes: &[u8], strides: TokenStrides) -> Tensor<'_> {
    Tensor { bytes, head: strides.head as usize, row: strides.token as usize }
}

/// From the order sequence, head, row to the order of tokens.
fn by_token(
    problem: &VarlenProblem,
    sequences: &[Sequence],
    starts: &[usize],
    computed: &Computed,
) -> VarlenHostOutput {
    let (heads, dim, total) = (problem.shape.q_heads, problem.shape.v_head_dim, problem.shape.total_q);
    let mut output =
        VarlenHostOutput { o: vec![0.0; computed.o.len()], log_sum_exp: vec![0.0; computed.log_sum_exp.len()] };
    let mut rows = computed.o.chunks_exact(dim).zip(&computed.log_sum_exp);
    for (sequence, start) in sequences.iter().zip(starts) {
        for head in 0..heads {
            for (token, (o, log_sum_exp)) in (*start..start + sequence.q_len).zip(&mut rows) {
                let at = (token * heads + head) * dim;
                output.o[at..at + dim].copy_from_slice(o);
                output.log_sum_exp[head * total + token] = *log_sum_exp;
            }
        }
    }
    output
}

impl VarlenHostOutput {
    /// Writes `o` into a tensor of the problem's strides and element type, each value rounded once. Bytes between rows
    /// are left as they are.
    ///
    /// # Errors
    ///
    /// [`Reason::OperandTooSmall`] where `bytes` ends before the tensor.
    pub fn write_o(&self, problem: &VarlenProblem, bytes: &mut [u8]) -> Result<(), Refusal> {
        let rows = output_rows(problem, bytes.len())?;
        encode_rows(&self.o, problem.dtype, problem.shape.v_head_dim, rows, bytes);
        Ok(())
    }

    /// Reads an `o` of the problem's strides and element type, as a device has written it, into the order of
    /// [`VarlenHostOutput::o`].
    ///
    /// # Errors
    ///
    /// [`Reason::OperandTooSmall`] where `bytes` ends before the tensor.
    pub fn read_o(problem: &VarlenProblem, bytes: &[u8]) -> Result<Vec<f64>, Refusal> {
        let rows = output_rows(problem, bytes.len())?;
        Ok(decode_rows(bytes, problem.dtype, problem.shape.v_head_dim, rows))
    }
}

/// First byte of each row of `o`, in the order of [`VarlenHostOutput::o`].
fn output_rows(problem: &VarlenProblem, bytes: usize) -> Result<impl Iterator<Item = usize> + use<>, Refusal> {
    let need = problem.extents()?.o;
    if bytes < need {
        return Err(Reason::OperandTooSmall { operand: Operand::O, need, got: bytes }.into());
    }
    let (tokens, heads) = (problem.shape.total_q, problem.shape.q_heads);
    let (o, size) = (problem.o, problem.dtype.size());
    let start = move |token: usize, head: usize| token * o.token as usize + head * o.head as usize;
    Ok((0..tokens).flat_map(move |token| (0..heads).map(move |head| start(token, head) * size)))
}
