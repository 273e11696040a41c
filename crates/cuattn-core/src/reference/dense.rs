//! Dense problems.

use super::HostScoreMod;
use super::core::{Computed, KeyPlace, Sequence, Setting, Tensor, compute};
use super::element::{decode, decode_index, decode_rows, encode_rows};
use crate::{Alignment, IndexType, KeyLengths, Operand, Paging, Problem, Reason, Refusal, Shape, Strides};

/// Operands of the reference: the bytes that a device would be given, little-endian, as [`crate::Operands`] names them.
///
/// `None` is right exactly where the problem does not ask for the operand.
#[derive(Clone, Copy, Default)]
pub struct HostOperands<'a> {
    /// Queries.
    pub q: &'a [u8],
    /// Keys, or their pages.
    pub k: &'a [u8],
    /// Values, or their pages.
    pub v: &'a [u8],
    /// The bias of [`crate::Mask::bias`].
    pub bias: Option<&'a [u8]>,
    /// The array of [`crate::Mask::key_lengths`], `[batch]`.
    pub key_lengths: Option<&'a [u8]>,
    /// The array of [`crate::Alignment::PerBatch`], `[batch]`.
    pub query_offsets: Option<&'a [u8]>,
    /// One float32 a query head.
    pub sinks: Option<&'a [u8]>,
    /// Page table, `i32 [batch, max_pages]`.
    pub page_table: Option<&'a [u8]>,
    /// What the problem's [`crate::ScoreMod`] computes.
    pub score_mod: Option<&'a HostScoreMod<'a>>,
}

/// What the reference computes of a dense problem.
#[derive(Clone, Debug, PartialEq)]
pub struct HostOutput {
    /// Contiguous `[batch, q_heads, q_len, v_head_dim]`, whatever the problem's strides.
    pub o: Vec<f64>,
    /// Natural, contiguous `[batch, q_heads, q_len]`. Always there.
    pub log_sum_exp: Vec<f64>,
    /// Contiguous `[batch, q_heads, q_len, kv_len]`, where the problem asks for the scores.
    pub scores: Option<Vec<f64>>,
}

/// Computes `problem` in float64 on all cores.
///
/// # Errors
///
/// A refusal with every reason: the problem is not legal, an operand is missing, too short or not asked for, a page
/// number is outside the pool, or the output does not fit the host's memory.
pub fn attention(problem: &Problem, operands: &HostOperands<'_>) -> Result<HostOutput, Refusal> {
    problem.validate()?;
    let extents = problem.extents()?;
    let mut given = Given::default();
    given.tensor(Operand::Q, Some(extents.q), Some(operands.q));
    given.tensor(Operand::K, Some(extents.k), Some(operands.k));
    given.tensor(Operand::V, Some(extents.v), Some(operands.v));
    given.tensor(Operand::Bias, extents.bias, operands.bias);
    given.tensor(Operand::KeyLengths, extents.key_lengths, operands.key_lengths);
    given.tensor(Operand::QueryOffsets, extents.query_offsets, operands.query_offsets);
    given.tensor(Operand::Sinks, extents.sinks, operands.sinks);
    given.tensor(Operand::PageTable, extents.page_table, operands.page_table);
    given.score_mod(problem.score_mod.is_some(), operands.score_mod.is_some());
    given.finish()?;
    let Shape { q_heads, kv_heads, head_dim, v_head_dim, .. } = problem.shape;
    if problem.shape.is_empty() {
        return Ok(HostOutput { o: vec![], log_sum_exp: vec![], scores: problem.scores.map(|_| vec![]) });
    }

    let setting = Setting {
        dtype: problem.dtype,
        q_heads,
        kv_heads,
        head_dim,
        v_head_dim,
        q: tensor(operands.q, problem.q),
        k: tensor(operands.k, problem.k),
        v: tensor(operands.v, problem.v),
        scale: f64::from(problem.scale),
        softcap: problem.softcap.map(f64::from),
        score_mod: operands.score_mod,
        causal: problem.mask.causal,
        window: problem.mask.window,
        bias: problem.mask.bias.zip(operands.bias),
        sinks: operands.sinks.map(|sinks| decode(sinks, crate::DType::F32)),
        stage: problem.scores.map(|scores| scores.stage),
    };
    let Computed { o, log_sum_exp, scores } = compute(&setting, &sequences(problem, operands)?)?;
    Ok(HostOutput { o, log_sum_exp, scores })
}

fn sequences(problem: &Problem, operands: &HostOperands<'_>) -> Result<Vec<Sequence>, Refusal> {
    let Shape { batch, q_len, kv_len, .. } = problem.shape;
    let index = |array: Option<&[u8]>, index: Option<IndexType>| Some(decode_index(array?, index?));
    let lengths = index(operands.key_lengths, problem.mask.key_lengths.index_type());
    let offsets = index(operands.query_offsets, problem.mask.alignment.index_type());
    let table = operands.page_table.map(|table| decode_index(table, IndexType::I32));
    let mut sequences = Vec::new();
    for sequence in 0..batch {
        let stored = lengths.as_ref().map_or(0, |lengths| lengths[sequence]);
        let keys = match problem.mask.key_lengths {
            KeyLengths::Full => kv_len,
            KeyLengths::PerBatch(_) => clamp(stored, kv_len),
            KeyLengths::PastPlusQuery(_) => clamp(stored.saturating_add(q_len as i64), kv_len),
        };
        let offset = match problem.mask.alignment {
            Alignment::TopLeft => 0,
            Alignment::BottomRight => keys as i64 - q_len as i64,
            Alignment::PerBatch(_) => offsets.as_ref().map_or(0, |offsets| offsets[sequence]),
        };
        let at = |strides: Strides| sequence * strides.batch as usize;
        let kv = match (problem.paging, &table) {
            (Some(paging), Some(table)) => {
                let pages =
                    PageTable { paging, table, k_page: problem.k.batch as usize, v_page: problem.v.batch as usize };
                pages.place(sequence, keys)?
            }
            _ => KeyPlace::Dense { k_start: at(problem.k), v_start: at(problem.v) },
        };
        sequences.push(Sequence { q_len, columns: kv_len, keys, offset, q_start: at(problem.q), kv });
    }
    Ok(sequences)
}

fn clamp(length: i64, most: usize) -> usize {
    usize::try_from(length.max(0)).map_or(most, |length| length.min(most))
}

fn tensor(bytes: &[u8], strides: Strides) -> Tensor<'_> {
    Tensor { bytes, head: strides.head as usize, row: strides.row as usize }
}

/// A decoded page table, and how far pages are apart.
pub(super) struct PageTable<'a> {
    pub(super) paging: Paging,
    pub(super) table: &'a [i64],
    pub(super) k_page: usize,
    pub(super) v_page: usize,
}

impl PageTable<'_> {
    /// Where the first `keys` rows of a sequence are.
    pub(super) fn place(&self, sequence: usize, keys: usize) -> Result<KeyPlace, Refusal> {
        let Paging { page_size, pages, max_pages } = self.paging;
        let mut starts = Vec::new();
        for column in 0..keys.div_ceil(page_size) {
            let page = self.table[sequence * max_pages + column];
            match usize::try_from(page) {
                Ok(index) if index < pages => starts.push((index * self.k_page, index * self.v_page)),
                _ => return Err(Reason::PageOutOfRange { sequence, column, page, pages }.into()),
            }
        }
        Ok(KeyPlace::Paged { page_size, starts })
    }
}

/// The operands of the reference, as they are looked at one by one.
#[derive(Default)]
pub(super) struct Given {
    reasons: Vec<Reason>,
}

impl Given {
    pub(super) fn tensor(&mut self, operand: Operand, need: Option<usize>, got: Option<&[u8]>) {
        match (need, got) {
            (None, Some(_)) => self.reasons.push(Reason::OperandUnexpected { operand }),
            (Some(need), None) if need > 0 => self.reasons.push(Reason::OperandMissing { operand }),
            (Some(need), Some(got)) if got.len() < need => {
                self.reasons.push(Reason::OperandTooSmall { operand, need, got: got.len() });
            }
            _ => {}
        }
    }

    pub(super) fn score_mod(&mut self, wanted: bool, given: bool) {
        match (wanted, given) {
            (true, false) => self.reasons.push(Reason::ScoreModNotOnHost),
            (false, true) => self.reasons.push(Reason::OperandUnexpected { operand: Operand::ScoreMod }),
            _ => {}
        }
    }

    pub(super) fn finish(self) -> Result<(), Refusal> {
        Refusal::unless_empty(self.reasons)
    }
}

impl HostOutput {
    /// Writes `o` into a tensor of the problem's strides and element type, each value rounded once. Bytes between rows
    /// are left as they are.
    ///
    /// # Errors
    ///
    /// [`Reason::OperandTooSmall`] where `bytes` ends before the tensor.
    pub fn write_o(&self, problem: &Problem, bytes: &mut [u8]) -> Result<(), Refusal> {
        let rows = output_rows(problem, bytes.len())?;
        encode_rows(&self.o, problem.dtype, problem.shape.v_head_dim, rows, bytes);
        Ok(())
    }

    /// Reads an `o` of the problem's strides and element type, as a device has written it, into the order of
    /// [`HostOutput::o`].
    ///
    /// # Errors
    ///
    /// [`Reason::OperandTooSmall`] where `bytes` ends before the tensor.
    pub fn read_o(problem: &Problem, bytes: &[u8]) -> Result<Vec<f64>, Refusal> {
        let rows = output_rows(problem, bytes.len())?;
        Ok(decode_rows(bytes, problem.dtype, problem.shape.v_head_dim, rows))
    }
}

/// First byte of each row of `o`, in the order of [`HostOutput::o`].
fn output_rows(problem: &Problem, bytes: usize) -> Result<impl Iterator<Item = usize> + use<>, Refusal> {
    let need = problem.extents()?.o;
    if bytes < need {
        return Err(Reason::OperandTooSmall { operand: Operand::O, need, got: bytes }.into());
    }
    let Shape { batch, q_heads, q_len, .. } = problem.shape;
    let (o, size) = (problem.o, problem.dtype.size());
    let start = move |b: usize, h: usize, i: usize| b * o.batch as usize + h * o.head as usize + i * o.row as usize;
    Ok((0..batch).flat_map(move |b| (0..q_heads).flat_map(move |h| (0..q_len).map(move |i| start(b, h, i) * size))))
}
