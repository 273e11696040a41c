//! Whether a problem is legal, and whether operands fit it. Every reason is collected, not only the first.

use curt::DevicePtr;

use crate::workspace::check_workspace;
use crate::{
    BiasKind, DType, MAX_SCORE_MOD_BUFFERS, Operand, Operands, Paging, Problem, Reason, Refusal, ScoreMod,
    ScoreModFault, VarlenOperands, VarlenProblem, WorkspaceSize,
};

impl Problem {
    /// Whether the problem is legal, apart from what any engine can do.
    ///
    /// # Errors
    ///
    /// A refusal of no engine, with every reason.
    pub fn validate(&self) -> Result<(), Refusal> {
        let mut reasons = Vec::new();
        let shape = self.shape;
        let heads = Heads { q_heads: shape.q_heads, kv_heads: shape.kv_heads };
        let dims = Dims { head_dim: shape.head_dim, v_head_dim: shape.v_head_dim };
        check_shared(heads, dims, self.scale, self.softcap, self.score_mod.as_ref(), &mut reasons);
        self.extents_into(&mut reasons);
        let o = [
            (shape.batch, self.o.batch, "batch"),
            (shape.q_heads, self.o.head, "head"),
            (shape.q_len, self.o.row, "row"),
        ];
        check_rows_apart(&o, shape.v_head_dim, &mut reasons);
        if let Some(BiasKind::Additive(got)) = self.mask.bias.map(|bias| bias.kind) {
            check_dtype(Operand::Bias, got, self.dtype, &mut reasons);
        }
        if let Some(scores) = self.scores {
            check_dtype(Operand::Scores, scores.dtype, self.dtype, &mut reasons);
        }
        if let Some(paging) = self.paging {
            check_paging(paging, shape.kv_len, &mut reasons);
        }
        Refusal::unless_empty(reasons)
    }
}

impl VarlenProblem {
    /// Whether the problem is legal, apart from what any engine can do. Offsets are on the device, and are not looked
    /// at.
    ///
    /// # Errors
    ///
    /// A refusal of no engine, with every reason.
    pub fn validate(&self) -> Result<(), Refusal> {
        let mut reasons = Vec::new();
        let shape = self.shape;
        let heads = Heads { q_heads: shape.q_heads, kv_heads: shape.kv_heads };
        let dims = Dims { head_dim: shape.head_dim, v_head_dim: shape.v_head_dim };
        check_shared(heads, dims, self.scale, self.softcap, self.score_mod.as_ref(), &mut reasons);
        self.extents_into(&mut reasons);
        let o = [(shape.total_q, self.o.token, "token"), (shape.q_heads, self.o.head, "head")];
        check_rows_apart(&o, shape.v_head_dim, &mut reasons);
        if let Some(paging) = self.paging {
            check_paging(paging.paging, shape.max_kv_len, &mut reasons);
        }
        if shape.batch == 0 && shape.total_q > 0 {
            reasons.push(Reason::TokensWithoutSequences { total_q: shape.total_q });
        }
        Refusal::unless_empty(reasons)
    }

    /// Checks host copies of the device arrays: offsets that start at 0, never go down and end at the token count,
    /// lengths within the stated maxima, and keys in use within their spans.
    ///
    /// ```
    /// use cuattn_core::{DType, Reason, VarlenProblem, VarlenShape};
    /// let shape = VarlenShape {
    ///     batch: 2, total_q: 7, total_kv: 7, max_q_len: 4, max_kv_len: 4,
    ///     q_heads: 1, kv_heads: 1, head_dim: 8, v_head_dim: 8,
    /// };
    /// let problem = VarlenProblem::packed(shape, DType::F16);
    /// assert!(problem.check_offsets(&[0, 3, 7], &[0, 3, 7], None).is_ok());
    /// let refusal = problem.check_offsets(&[0, 5, 7], &[0, 3, 6], None).unwrap_err();
    /// assert!(matches!(refusal.reasons[0], Reason::LengthAboveMaximum { sequence: 0, length: 5, max: 4, .. }));
    /// assert!(matches!(refusal.reasons[1], Reason::LastOffsetNotTotal { got: 6, total: 7, .. }));
    /// ```
    ///
    /// # Errors
    ///
    /// A refusal of no engine, with each kind of fault of each array once: the first place where it occurs.
    pub fn check_offsets<T: Copy + Into<i64>>(
        &self,
        cu_q: &[T],
        cu_kv: &[T],
        used: Option<&[T]>,
    ) -> Result<(), Refusal> {
        let shape = self.shape;
        let mut reasons = Vec::new();
        let q = OffsetArray { operand: Operand::CuSeqlensQ, total: Some(shape.total_q), max: shape.max_q_len };
        // With pages the offsets only give lengths: their sum has nothing to do with the size of the pool.
        let total_kv = if self.paging.is_some() { None } else { Some(shape.total_kv) };
        let kv = OffsetArray { operand: Operand::CuSeqlensKv, total: total_kv, max: shape.max_kv_len };
        q.check(cu_q, shape.batch, &mut reasons);
        kv.check(cu_kv, shape.batch, &mut reasons);
        if let Some(used) = used {
            if used.len() != shape.batch {
                reasons.push(Reason::EntryCount { operand: Operand::UsedLengths, need: shape.batch, got: used.len() });
            }
            let spans = cu_kv.windows(2).map(|pair| pair[1].into().saturating_sub(pair[0].into()));
            let mut outside = used.iter().map(|&used| used.into()).zip(spans).enumerate();
            if let Some((sequence, (used, span))) = outside.find(|&(_, (used, span))| used < 0 || used > span) {
                reasons.push(Reason::UsedLengthOutOfRange { sequence, used, span });
            }
        }
        Refusal::unless_empty(reasons)
    }
}

impl Operands {
    /// Whether these operands and this workspace fit `problem`: each there where it is asked for and only there, long
    /// enough, aligned to its element, and no output in the memory of another operand. A plan's launch calls it first.
    ///
    /// The memory of an operand is taken to be everything from its first to its last byte.
    ///
    /// # Errors
    ///
    /// A refusal of no engine, with every reason.
    pub fn check(&self, problem: &Problem, workspace: DevicePtr, need: WorkspaceSize) -> Result<(), Refusal> {
        let mut reasons = Vec::new();
        let extents = problem.extents_into(&mut reasons);
        let element = problem.dtype.size();
        let index = |index: Option<crate::IndexType>| index.map_or(1, |index| index.size());
        let mut placed = Placed::new(&mut reasons);
        placed.input(Operand::Q, extents.q, element, self.q);
        placed.input(Operand::K, extents.k, element, self.k);
        placed.input(Operand::V, extents.v, element, self.v);
        placed.output(Operand::O, extents.o, element, self.o);
        let bias = problem.mask.bias.map_or(1, |bias| bias.kind.size());
        placed.optional_input(Operand::Bias, extents.bias, bias, self.bias);
        let lengths = index(problem.mask.key_lengths.index_type());
        placed.optional_input(Operand::KeyLengths, extents.key_lengths, lengths, self.key_lengths);
        let offsets = index(problem.mask.alignment.index_type());
        placed.optional_input(Operand::QueryOffsets, extents.query_offsets, offsets, self.query_offsets);
        placed.optional_input(Operand::Sinks, extents.sinks, 4, self.sinks);
        placed.optional_output(Operand::LogSumExp, extents.log_sum_exp, 4, self.log_sum_exp);
        let scores = problem.scores.map_or(1, |scores| scores.dtype.size());
        placed.optional_output(Operand::Scores, extents.scores, scores, self.scores);
        placed.optional_input(Operand::PageTable, extents.page_table, 4, self.page_table);
        placed.score_mod_buffers(problem.score_mod.as_ref(), problem.shape.is_empty(), &self.score_mod_buffers);
        placed.workspace(workspace, need);
        Refusal::unless_empty(reasons)
    }
}

impl VarlenOperands {
    /// Whether these operands and this workspace fit `problem`, as [`Operands::check`] does for a dense one. `schedule`
    /// is what a prepared work list must have; it may be left out, and its size 0 means that there can be none.
    ///
    /// # Errors
    ///
    /// A refusal of no engine, with every reason.
    pub fn check(
        &self,
        problem: &VarlenProblem,
        schedule: WorkspaceSize,
        workspace: DevicePtr,
        need: WorkspaceSize,
    ) -> Result<(), Refusal> {
        let mut reasons = Vec::new();
        let extents = problem.extents_into(&mut reasons);
        let element = problem.dtype.size();
        let offset = problem.offsets.size();
        let mut placed = Placed::new(&mut reasons);
        placed.input(Operand::Q, extents.q, element, self.q);
        placed.input(Operand::K, extents.k, element, self.k);
        placed.input(Operand::V, extents.v, element, self.v);
        placed.output(Operand::O, extents.o, element, self.o);
        placed.input(Operand::CuSeqlensQ, extents.cu_seqlens_q, offset, self.cu_seqlens_q);
        placed.input(Operand::CuSeqlensKv, extents.cu_seqlens_kv, offset, self.cu_seqlens_kv);
        placed.optional_input(Operand::UsedLengths, extents.used_lengths, offset, self.used_lengths);
        let offsets = problem.alignment.index_type().map_or(1, |index| index.size());
        placed.optional_input(Operand::QueryOffsets, extents.query_offsets, offsets, self.query_offsets);
        placed.optional_input(Operand::Sinks, extents.sinks, 4, self.sinks);
        placed.optional_output(Operand::LogSumExp, extents.log_sum_exp, 4, self.log_sum_exp);
        placed.optional_input(Operand::PageTable, extents.page_table, 4, self.page_table);
        placed.optional_output(Operand::Status, extents.status, 4, self.status);
        placed.score_mod_buffers(problem.score_mod.as_ref(), problem.shape.is_empty(), &self.score_mod_buffers);
        if let Some(list) = self.schedule {
            let need = (schedule.bytes > 0).then_some(schedule.bytes);
            placed.optional_input(Operand::Schedule, need, schedule.align.max(1), Some(list));
        }
        placed.workspace(workspace, need);
        Refusal::unless_empty(reasons)
    }
}

struct Heads {
    q_heads: usize,
    kv_heads: usize,
}

struct Dims {
    head_dim: usize,
    v_head_dim: usize,
}

fn check_shared(
    Heads { q_heads, kv_heads }: Heads,
    Dims { head_dim, v_head_dim }: Dims,
    scale: f32,
    softcap: Option<f32>,
    score_mod: Option<&ScoreMod>,
    reasons: &mut Vec<Reason>,
) {
    let divisible = if kv_heads == 0 { q_heads == 0 } else { q_heads % kv_heads == 0 };
    if !divisible {
        reasons.push(Reason::HeadsNotDivisible { q_heads, kv_heads });
    }
    if head_dim == 0 {
        reasons.push(Reason::ZeroHeadDim { which: "head_dim" });
    }
    if v_head_dim == 0 {
        reasons.push(Reason::ZeroHeadDim { which: "v_head_dim" });
    }
    if !scale.is_finite() {
        reasons.push(Reason::BadScale { scale });
    }
    if let Some(softcap) = softcap.filter(|softcap| !(softcap.is_finite() && *softcap > 0.0)) {
        reasons.push(Reason::BadSoftcap { softcap });
    }
    if let Some(ScoreMod { body, buffers }) = score_mod {
        let fault = if body.trim().is_empty() {
            Some(ScoreModFault::Empty)
        } else if body.contains('\0') {
            Some(ScoreModFault::Nul)
        } else if !body.contains("return") {
            Some(ScoreModFault::NoReturn)
        } else {
            None
        };
        reasons.extend(fault.map(|fault| Reason::BadScoreMod { fault }));
        if *buffers > MAX_SCORE_MOD_BUFFERS {
            reasons.push(Reason::TooManyScoreModBuffers { buffers: *buffers, most: MAX_SCORE_MOD_BUFFERS });
        }
    }
}

fn check_dtype(operand: Operand, got: DType, want: DType, reasons: &mut Vec<Reason>) {
    if got != want && got != DType::F32 {
        reasons.push(Reason::WrongDType { operand, got, want });
    }
}

fn check_paging(Paging { page_size, max_pages, .. }: Paging, kv_len: usize, reasons: &mut Vec<Reason>) {
    if page_size == 0 {
        reasons.push(Reason::ZeroPageSize);
    } else if page_size.saturating_mul(max_pages) < kv_len {
        reasons.push(Reason::PageTableTooNarrow { page_size, max_pages, kv_len });
    }
}

/// Every stride of the output must step over all that the smaller ones reach. Layouts that interleave rows without
/// overlap are refused too: no one has asked for them, and telling them apart is not cheap.
fn check_rows_apart(dims: &[(usize, i64, &'static str)], dim: usize, reasons: &mut Vec<Reason>) {
    if dims.iter().any(|&(extent, ..)| extent == 0) {
        return;
    }
    let mut stepped: Vec<_> = dims.iter().filter(|&&(extent, stride, _)| extent > 1 && stride >= 0).collect();
    stepped.sort_by_key(|&&(_, stride, _)| stride);
    let mut span = i64::try_from(dim).unwrap_or(i64::MAX);
    for &&(extent, stride, dimension) in &stepped {
        if stride < span {
            reasons.push(Reason::OverlappingOutput { operand: Operand::O, dimension, stride, span });
        }
        let steps = i64::try_from(extent - 1).unwrap_or(i64::MAX);
        span = span.saturating_add(stride.saturating_mul(steps));
    }
}

struct OffsetArray {
    operand: Operand,
    total: Option<usize>,
    max: usize,
}

impl OffsetArray {
    fn check<T: Copy + Into<i64>>(&self, offsets: &[T], batch: usize, reasons: &mut Vec<Reason>) {
        let Self { operand, total, max } = *self;
        if Some(offsets.len()) != batch.checked_add(1) {
            reasons.push(Reason::EntryCount { operand, need: batch.saturating_add(1), got: offsets.len() });
            return;
        }
        let first = offsets[0].into();
        if first != 0 {
            reasons.push(Reason::FirstOffsetNotZero { operand, got: first });
        }
        let pairs = || offsets.windows(2).map(|pair| (pair[0].into(), pair[1].into())).enumerate();
        if let Some((sequence, (before, after))) = pairs().find(|(_, (before, after))| after < before) {
            reasons.push(Reason::OffsetsDecrease { operand, index: sequence + 1, before, after });
        }
        let length = |before: i64, after: i64| i128::from(after) - i128::from(before);
        if let Some((sequence, (before, after))) = pairs().find(|&(_, (b, a))| length(b, a) > max as i128) {
            let length = i64::try_from(length(before, after)).unwrap_or(i64::MAX);
            reasons.push(Reason::LengthAboveMaximum { operand, sequence, length, max });
        }
        let last = offsets[batch].into();
        if let Some(total) = total.filter(|&total| i128::from(last) != total as i128) {
            reasons.push(Reason::LastOffsetNotTotal { operand, got: last, total });
        }
    }
}

/// Most operands of a launch: the tensors, the arrays, the score modification's buffers and the workspace.
const MOST_PLACED: usize = 15 + MAX_SCORE_MOD_BUFFERS;

/// The operands of a launch, as they are looked at one by one. Lives on the stack: a launch is checked every time.
struct Placed<'a> {
    reasons: &'a mut Vec<Reason>,
    ranges: [(Operand, std::ops::Range<u64>, bool); MOST_PLACED],
    count: usize,
}

impl<'a> Placed<'a> {
    fn new(reasons: &'a mut Vec<Reason>) -> Self {
        Self { reasons, ranges: std::array::from_fn(|_| (Operand::Q, 0..0, false)), count: 0 }
    }

    fn input(&mut self, operand: Operand, need: usize, align: usize, got: DevicePtr) {
        self.place(operand, need, align, got, false);
    }

    fn output(&mut self, operand: Operand, need: usize, align: usize, got: DevicePtr) {
        self.place(operand, need, align, got, true);
    }

    fn optional_input(&mut self, operand: Operand, need: Option<usize>, align: usize, got: Option<DevicePtr>) {
        if self.is_expected(operand, need, got) {
            self.place(operand, need.unwrap_or(0), align, got.unwrap_or_default(), false);
        }
    }

    fn optional_output(&mut self, operand: Operand, need: Option<usize>, align: usize, got: Option<DevicePtr>) {
        if self.is_expected(operand, need, got) {
            self.place(operand, need.unwrap_or(0), align, got.unwrap_or_default(), true);
        }
    }

    fn is_expected(&mut self, operand: Operand, need: Option<usize>, got: Option<DevicePtr>) -> bool {
        if need.is_none() && got.is_some() {
            self.reasons.push(Reason::OperandUnexpected { operand });
        }
        need.is_some()
    }

    fn place(&mut self, operand: Operand, need: usize, align: usize, got: DevicePtr, written: bool) {
        if need == 0 {
            return;
        }
        if got.is_null() {
            self.reasons.push(Reason::OperandMissing { operand });
            return;
        }
        if got.len() < need {
            self.reasons.push(Reason::OperandTooSmall { operand, need, got: got.len() });
        }
        if !got.is_aligned(align) {
            self.reasons.push(Reason::OperandMisaligned { operand, address: got.address(), align });
        }
        self.occupy(operand, got.address(), need, written);
    }

    fn score_mod_buffers(
        &mut self,
        score_mod: Option<&ScoreMod>,
        nothing_to_do: bool,
        got: &[Option<DevicePtr>; MAX_SCORE_MOD_BUFFERS],
    ) {
        let wanted = score_mod.map_or(0, |score_mod| score_mod.buffers);
        for (index, got) in got.iter().enumerate() {
            let operand = Operand::ScoreModBuffer(index);
            match got {
                Some(_) if index >= wanted => self.reasons.push(Reason::OperandUnexpected { operand }),
                // What a snippet reads of its buffers only its author knows, so their lengths cannot be checked.
                Some(got) if !got.is_null() => self.occupy(operand, got.address(), got.len(), false),
                _ if index < wanted && !nothing_to_do => self.reasons.push(Reason::OperandMissing { operand }),
                _ => {}
            }
        }
    }

    fn workspace(&mut self, got: DevicePtr, need: WorkspaceSize) {
        check_workspace(got, need, self.reasons);
        if need.bytes > 0 {
            self.occupy(Operand::Workspace, got.address(), need.bytes, true);
        }
    }

    fn occupy(&mut self, operand: Operand, address: u64, bytes: usize, written: bool) {
        let range = address..address.saturating_add(bytes as u64);
        for (other, taken, other_written) in &self.ranges[..self.count] {
            if (written || *other_written) && range.start < taken.end && taken.start < range.end {
                let (output, other) = if written { (operand, *other) } else { (*other, operand) };
                self.reasons.push(Reason::OutputOverlaps { output, other });
            }
        }
        self.ranges[self.count] = (operand, range, written);
        self.count += 1;
    }
}
