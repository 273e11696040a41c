//! Packed problems: random ragged batches, their operands with poison wherever nothing may be read, and their launches.

use std::ops::Range;

use anyhow::{Context as _, ensure};
use cuattn_core::reference::{self, VarlenHostOperands, VarlenHostOutput};
use cuattn_core::{
    Alignment, DType, IndexType, Paging, TokenStrides, VarlenEngine, VarlenOperands, VarlenPaging, VarlenPlan,
    VarlenProblem, VarlenShape, Window,
};
use curt::Runtime;
use rand::Rng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};

use crate::Context;
use crate::compare::{self, Errors, Tolerance, errors};
use crate::space::{FAMILY, partner};
use crate::tensors::{Distribution, Guarded, POISON};

/// What may be drawn.
#[derive(Clone, Debug)]
pub struct PackedSpace {
    /// Element types.
    pub dtypes: Vec<DType>,
    /// Query and key heads.
    pub heads: Vec<(usize, usize)>,
    /// Sizes of query and key vectors.
    pub head_dims: Vec<usize>,
    /// Where in this list the size of value vectors stands, if it is another: as of [`crate::space::Space`].
    pub v_partner: usize,
    /// Whether rows may lie an odd number of elements apart.
    pub odd_rows: bool,
    /// The most sequences.
    pub most_sequences: usize,
    /// The most multiplications of a problem: what bounds the time of the reference.
    pub multiplications: usize,
}

/// Lengths of each sequence of a batch, as the device finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Query tokens.
    pub q: Vec<usize>,
    /// Key tokens.
    pub kv: Vec<usize>,
}

impl Lengths {
    /// Where each sequence starts, and where the last one ends.
    pub fn starts(lengths: &[usize]) -> Vec<i64> {
        let mut starts = vec![0];
        for &len in lengths {
            starts.push(starts[starts.len() - 1] + len as i64);
        }
        starts
    }

    fn draw(batch: usize, rng: &mut impl Rng) -> Self {
        const EDGES: &[usize] = &[0, 1, 2, 7, 63, 64, 65, 127, 128, 129, 300];
        let style = rng.random_range(0..6);
        let longest = pick(&[3, 20, 70, 130, 400], rng);
        let equal = pick(EDGES, rng);
        let mut length = |b: usize| match style {
            0 => equal,
            1 => pick(EDGES, rng),
            2 => {
                if b == batch / 2 {
                    500
                } else {
                    1
                }
            }
            3 => {
                if rng.random_bool(0.4) {
                    0
                } else {
                    rng.random_range(0..=longest)
                }
            }
            _ => rng.random_range(0..=longest),
        };
        let q: Vec<_> = (0..batch).map(&mut length).collect();
        let kv = match rng.random_range(0..4) {
            0 | 1 => q.clone(),
            // New tokens after a past.
            2 => q.iter().map(|&len| len + rng.random_range(0..=longest)).collect(),
            _ => (0..batch).map(|_| rng.random_range(0..=longest)).collect(),
        };
        Self { q, kv }
    }
}

/// What a kernel is compiled for, as far as a problem says.
#[derive(Clone, Copy, Debug)]
struct Family {
    dtype: DType,
    heads: (usize, usize),
    head_dim: usize,
    v_head_dim: usize,
    causal: bool,
    window: (bool, bool),
    softcap: Option<f32>,
    scale: Option<f32>,
    page_size: Option<usize>,
}

impl PackedSpace {
    /// The same space with batches and lengths that suit compute-sanitizer.
    #[must_use]
    pub fn small(self) -> Self {
        Self { most_sequences: 70, multiplications: 1 << 21, ..self }
    }

    /// Problems and lengths that fit them, without end: in families, as [`crate::space::Space::problems`] has them.
    pub fn problems(&self, rng: &mut impl Rng) -> impl Iterator<Item = (VarlenProblem, Lengths)> {
        let mut family = self.draw_family(rng);
        (0..).map(move |number| {
            if number % FAMILY == 0 {
                family = self.draw_family(rng);
            }
            self.draw_of(&family, rng)
        })
    }

    /// A problem and lengths that fit it.
    pub fn draw(&self, rng: &mut impl Rng) -> (VarlenProblem, Lengths) {
        let family = self.draw_family(rng);
        self.draw_of(&family, rng)
    }

    fn draw_family(&self, rng: &mut impl Rng) -> Family {
        let head_dim = pick(&self.head_dims, rng);
        let differs = rng.random_ratio(1, 8);
        let has_window = rng.random_ratio(1, 4);
        let mut side = || has_window && rng.random_ratio(5, 6);
        Family {
            window: (side(), side()),
            dtype: pick(&self.dtypes, rng),
            heads: pick(&self.heads, rng),
            head_dim,
            v_head_dim: if differs { partner(&self.head_dims, head_dim, self.v_partner) } else { head_dim },
            causal: rng.random_bool(0.5),
            softcap: rng.random_ratio(1, 8).then_some(20.0),
            scale: rng.random_ratio(1, 12).then(|| pick(&[0.0, -0.25, 1.0], rng)),
            page_size: rng.random_ratio(1, 4).then(|| pick(&[1, 3, 16, 64, 256], rng)),
        }
    }

    fn draw_of(&self, family: &Family, rng: &mut impl Rng) -> (VarlenProblem, Lengths) {
        let Family { heads: (q_heads, kv_heads), head_dim, v_head_dim, .. } = *family;
        let mut batch = pick(&[1, 1, 2, 3, 5, 8, 17, 64, 65, 100, 300], rng).min(self.most_sequences);
        let lengths = loop {
            let lengths = Lengths::draw(batch, rng);
            let pairs: usize = lengths.q.iter().zip(&lengths.kv).map(|(q, kv)| q * kv).sum();
            if pairs * q_heads * (head_dim + v_head_dim) <= self.multiplications {
                break lengths;
            }
            batch = (batch / 2).max(1);
        };
        let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
        let shape = VarlenShape {
            batch,
            total_q: lengths.q.iter().sum(),
            total_kv: lengths.kv.iter().sum(),
            max_q_len: longest(&lengths.q) + rng.random_range(0..3),
            max_kv_len: longest(&lengths.kv) + rng.random_range(0..3),
            q_heads,
            kv_heads,
            head_dim,
            v_head_dim,
        };
        let mut problem = VarlenProblem::packed(shape, family.dtype);
        self.draw_layout(&mut problem, family.page_size, rng);
        problem.causal = family.causal;
        let mut side = |is_there: bool| is_there.then(|| pick(&[0, 3, 8, 70, u32::MAX], rng));
        problem.window = Window { left: side(family.window.0), right: side(family.window.1) };
        let index = pick(&[IndexType::I32, IndexType::I64], rng);
        problem.alignment = pick(&[Alignment::TopLeft, Alignment::BottomRight, Alignment::PerBatch(index)], rng);
        problem.offsets = pick(&[IndexType::I32, IndexType::I64], rng);
        problem.has_used_lengths = rng.random_ratio(1, 3);
        problem.has_sinks = rng.random_ratio(1, 4);
        problem.wants_log_sum_exp = rng.random_bool(0.5);
        problem.checks_offsets = rng.random_ratio(1, 4);
        problem.softcap = family.softcap;
        problem.scale = family.scale.unwrap_or(problem.scale);
        (problem, lengths)
    }

    fn draw_layout(&self, problem: &mut VarlenProblem, page_size: Option<usize>, rng: &mut impl Rng) {
        let VarlenShape { q_heads, kv_heads, head_dim, v_head_dim, max_kv_len, batch, .. } = problem.shape;
        let pad = match rng.random_range(0..4) {
            0 => 8 * rng.random_range(1..5),
            1 if self.odd_rows => 1,
            _ => 0,
        };
        let padded = |heads: usize, dim: usize| TokenStrides { token: (heads * dim + pad) as i64, head: dim as i64 };
        if rng.random_ratio(1, 4) && v_head_dim == head_dim {
            // Slices of one projection.
            let whole =
                TokenStrides { token: ((q_heads + 2 * kv_heads) * head_dim + pad) as i64, head: head_dim as i64 };
            (problem.q, problem.k, problem.v) = (whole, whole, whole);
        } else {
            problem.q = padded(q_heads, head_dim);
            problem.k = padded(kv_heads, head_dim);
            problem.v = padded(kv_heads, v_head_dim);
        }
        problem.o = padded(q_heads, v_head_dim);
        if let Some(page_size) = page_size {
            let max_pages = max_kv_len.div_ceil(page_size) + rng.random_range(0..2);
            let pages = batch * max_pages + rng.random_range(0..3);
            let page = |strides: TokenStrides| page_size as i64 * strides.token;
            problem.paging = Some(VarlenPaging {
                paging: Paging { page_size, pages, max_pages },
                k_page: page(problem.k),
                v_page: page(problem.v),
            });
            problem.shape.total_kv = pages * page_size;
        }
    }
}

fn pick<T: Copy>(list: &[T], rng: &mut impl Rng) -> T {
    *list.choose(rng).expect("a space must leave at least one choice")
}

/// Host operands of a packed problem. What the contract says is never read holds poison, as in [`crate::inputs::Inputs`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedInputs {
    /// Queries.
    pub q: Vec<u8>,
    /// Keys, or their pages.
    pub k: Vec<u8>,
    /// Values, or their pages.
    pub v: Vec<u8>,
    /// Starts of the query sequences.
    pub cu_seqlens_q: Vec<u8>,
    /// Starts of the key sequences.
    pub cu_seqlens_kv: Vec<u8>,
    /// Keys in use.
    pub used_lengths: Option<Vec<u8>>,
    /// Positions of query row 0.
    pub query_offsets: Option<Vec<u8>>,
    /// Sinks.
    pub sinks: Option<Vec<u8>>,
    /// Page table.
    pub page_table: Option<Vec<u8>>,
}

/// `values` as the integers of a device array.
pub fn index_bytes(values: &[i64], index: IndexType) -> Vec<u8> {
    match index {
        IndexType::I32 => values.iter().flat_map(|&value| (value as i32).to_ne_bytes()).collect(),
        IndexType::I64 => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
    }
}

impl PackedInputs {
    /// Draws operands.
    ///
    /// # Errors
    ///
    /// If the problem is not legal.
    pub fn draw(
        problem: &VarlenProblem,
        lengths: &Lengths,
        distribution: Distribution,
        rng: &mut impl Rng,
    ) -> anyhow::Result<Self> {
        problem.validate()?;
        let extents = problem.extents()?;
        let shape = problem.shape;
        let batch = shape.batch;
        let used: Vec<usize> = lengths
            .kv
            .iter()
            .map(|&len| if problem.has_used_lengths { rng.random_range(0..=len) } else { len })
            .collect();
        let offsets: Vec<i64> = (0..batch)
            .map(|b| match problem.alignment {
                Alignment::TopLeft => 0,
                Alignment::BottomRight => used[b] as i64 - lengths.q[b] as i64,
                Alignment::PerBatch(_) => rng.random_range(-(lengths.q[b] as i64) - 2..=lengths.kv[b] as i64 + 2),
            })
            .collect();
        let table = problem.paging.map(|paging| draw_page_table(paging.paging, &used, rng));

        let mut inputs = Self {
            q: vec![POISON; extents.q],
            k: vec![POISON; extents.k],
            v: vec![POISON; extents.v],
            cu_seqlens_q: index_bytes(&Lengths::starts(&lengths.q), problem.offsets),
            cu_seqlens_kv: index_bytes(&Lengths::starts(&lengths.kv), problem.offsets),
            used_lengths: problem
                .has_used_lengths
                .then(|| index_bytes(&used.iter().map(|&len| len as i64).collect::<Vec<_>>(), problem.offsets)),
            query_offsets: problem.alignment.index_type().map(|index| index_bytes(&offsets, index)),
            sinks: problem.has_sinks.then(|| {
                let sinks: Vec<_> = (0..shape.q_heads).map(|_| Distribution::Normal.key(rng)).collect();
                reference::encode(&sinks, DType::F32)
            }),
            page_table: table.as_ref().map(|table| index_bytes(table, IndexType::I32)),
        };
        if shape.is_empty() {
            return Ok(inputs);
        }
        let at = |token: usize, head: usize, strides: TokenStrides| {
            token * strides.token as usize + head * strides.head as usize
        };
        for token in 0..shape.total_q {
            for head in 0..shape.q_heads {
                let start = at(token, head, problem.q);
                write_row(&mut inputs.q, start, problem.dtype, shape.head_dim, || distribution.query(rng));
            }
        }
        let starts = Lengths::starts(&lengths.kv);
        for b in 0..batch {
            let seen = seen_keys(problem, lengths.q[b], used[b], offsets[b]);
            for j in 0..used[b] {
                for head in 0..shape.kv_heads {
                    let place = |strides: TokenStrides, page: Option<i64>| match (problem.paging, &table, page) {
                        (Some(paging), Some(table), Some(page)) => {
                            let Paging { page_size, max_pages, .. } = paging.paging;
                            let number = table[b * max_pages + j / page_size] as usize;
                            number * page as usize + at(j % page_size, head, strides)
                        }
                        _ => at(starts[b] as usize + j, head, strides),
                    };
                    let k = place(problem.k, problem.paging.map(|paging| paging.k_page));
                    let v = place(problem.v, problem.paging.map(|paging| paging.v_page));
                    if seen.contains(&j) {
                        write_row(&mut inputs.k, k, problem.dtype, shape.head_dim, || distribution.key(rng));
                        write_row(&mut inputs.v, v, problem.dtype, shape.v_head_dim, || distribution.key(rng));
                    } else if rng.random_bool(0.5) {
                        write_row(&mut inputs.k, k, problem.dtype, shape.head_dim, || f64::INFINITY);
                        write_row(&mut inputs.v, v, problem.dtype, shape.v_head_dim, || f64::NEG_INFINITY);
                    }
                }
            }
        }
        Ok(inputs)
    }

    /// The operands as the reference wants them.
    pub fn host(&self) -> VarlenHostOperands<'_> {
        VarlenHostOperands {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            cu_seqlens_q: &self.cu_seqlens_q,
            cu_seqlens_kv: &self.cu_seqlens_kv,
            used_lengths: self.used_lengths.as_deref(),
            query_offsets: self.query_offsets.as_deref(),
            sinks: self.sinks.as_deref(),
            page_table: self.page_table.as_deref(),
            score_mod: None,
        }
    }
}

fn write_row(bytes: &mut [u8], start: usize, dtype: DType, dim: usize, mut value: impl FnMut() -> f64) {
    let values: Vec<_> = (0..dim).map(|_| value()).collect();
    let size = dtype.size();
    bytes[start * size..(start + dim) * size].copy_from_slice(&reference::encode(&values, dtype));
}

/// From the first to the last key that some row sees: rows move along the keys without a gap.
fn seen_keys(problem: &VarlenProblem, q_len: usize, keys: usize, offset: i64) -> Range<usize> {
    let keys = keys as i64;
    let right = if problem.causal { Some(0) } else { problem.window.right.map(i64::from) };
    let ranges = (0..q_len as i64).map(|i| {
        let position = offset + i;
        let end = right.map_or(keys, |right| (position + right + 1).clamp(0, keys));
        let start = problem.window.left.map_or(0, |left| (position - i64::from(left)).clamp(0, end));
        start as usize..end as usize
    });
    let ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
    let begin = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    begin..ranges.iter().map(|range| range.end).max().unwrap_or(0)
}

fn draw_page_table(paging: Paging, keys: &[usize], rng: &mut impl Rng) -> Vec<i64> {
    let mut pages: Vec<_> = (0..paging.pages as i64).collect();
    pages.shuffle(rng);
    let mut table = Vec::with_capacity(keys.len() * paging.max_pages);
    for &keys in keys {
        let used = keys.div_ceil(paging.page_size);
        table.extend(pages.drain(..used));
        table.extend((used..paging.max_pages).map(|_| pick(&[-1, i64::from(i32::MAX)], rng)));
    }
    table
}

/// How a launch is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// How many elements q, k, v and o are off the alignment of an allocation.
    pub misaligned_elements: usize,
    /// Whether the work list is built apart from the launch.
    pub prepared: bool,
}

/// What a launch wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedLaunched {
    /// Output, in the problem's strides.
    pub o: Vec<u8>,
    /// Log-sum-exp.
    pub log_sum_exp: Option<Vec<u8>>,
    /// The status word.
    pub status: Option<u32>,
}

impl PackedLaunched {
    /// Launches `plan` on poisoned outputs and a poisoned workspace, and reads what it wrote.
    ///
    /// # Errors
    ///
    /// If the launch is refused or fails, or memory was written that is not the launch's to write.
    pub fn run(
        runtime: &Runtime,
        plan: &dyn VarlenPlan,
        inputs: &PackedInputs,
        manner: Manner,
    ) -> anyhow::Result<Self> {
        Self::run_with(runtime, plan, inputs, manner, |_| ())
    }

    /// [`PackedLaunched::run`] with operands that `complete` has added what inputs do not hold to.
    ///
    /// # Errors
    ///
    /// As [`PackedLaunched::run`].
    pub fn run_with(
        runtime: &Runtime,
        plan: &dyn VarlenPlan,
        inputs: &PackedInputs,
        manner: Manner,
        complete: impl FnOnce(&mut VarlenOperands),
    ) -> anyhow::Result<Self> {
        let problem = plan.problem();
        let extents = problem.extents()?;
        let misalign = manner.misaligned_elements * problem.dtype.size();
        let upload =
            |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| Guarded::upload(runtime, bytes, 0)).transpose();
        let output = |bytes: Option<usize>| bytes.map(|bytes| Guarded::poisoned(runtime, bytes, 0)).transpose();
        let q = Guarded::upload(runtime, &inputs.q, misalign)?;
        let k = Guarded::upload(runtime, &inputs.k, misalign)?;
        let v = Guarded::upload(runtime, &inputs.v, misalign)?;
        let o = Guarded::poisoned(runtime, extents.o, misalign)?;
        let cu_q = Guarded::upload(runtime, &inputs.cu_seqlens_q, 0)?;
        let cu_kv = Guarded::upload(runtime, &inputs.cu_seqlens_kv, 0)?;
        let [used_lengths, query_offsets, sinks, page_table] =
            [&inputs.used_lengths, &inputs.query_offsets, &inputs.sinks, &inputs.page_table].map(upload);
        let (used_lengths, query_offsets) = (used_lengths?, query_offsets?);
        let (sinks, page_table) = (sinks?, page_table?);
        let log_sum_exp = output(extents.log_sum_exp)?;
        let status = output(extents.status)?;
        let workspace = Guarded::poisoned(runtime, plan.workspace().bytes, 0)?;
        let schedule = Guarded::poisoned(runtime, plan.schedule().bytes, 0)?;
        let ptr = |tensor: &Option<Guarded>| tensor.as_ref().map(Guarded::ptr);
        let mut operands = VarlenOperands {
            q: q.ptr(),
            k: k.ptr(),
            v: v.ptr(),
            o: o.ptr(),
            cu_seqlens_q: cu_q.ptr(),
            cu_seqlens_kv: cu_kv.ptr(),
            used_lengths: ptr(&used_lengths),
            query_offsets: ptr(&query_offsets),
            sinks: ptr(&sinks),
            log_sum_exp: ptr(&log_sum_exp),
            page_table: ptr(&page_table),
            status: ptr(&status),
            ..VarlenOperands::default()
        };
        complete(&mut operands);
        if manner.prepared && plan.schedule().bytes > 0 {
            // SAFETY: as below.
            unsafe { plan.build_schedule(&operands, schedule.ptr()) }.context("no schedule")?;
            operands.schedule = Some(schedule.ptr());
        }
        // SAFETY: all operands and the workspace are allocations of this runtime that live until the reads below have
        // synchronised with its stream, and nothing else uses them.
        unsafe { plan.launch(&operands, workspace.ptr()) }.context("the launch failed")?;

        let launched = Self {
            o: o.read().context("o")?,
            log_sum_exp: log_sum_exp.as_ref().map(Guarded::read).transpose().context("log-sum-exp")?,
            status: match &status {
                Some(status) => status.read_as::<u32>().context("status")?.first().copied(),
                None => None,
            },
        };
        workspace.read().context("workspace")?;
        schedule.read().context("schedule")?;
        for (name, tensor, bytes) in [
            ("q", &q, &inputs.q),
            ("k", &k, &inputs.k),
            ("v", &v, &inputs.v),
            ("cu_seqlens_q", &cu_q, &inputs.cu_seqlens_q),
            ("cu_seqlens_kv", &cu_kv, &inputs.cu_seqlens_kv),
        ] {
            ensure!(tensor.read().context(name)? == *bytes, "the launch wrote into its input {name}");
        }
        Ok(launched)
    }

    /// Compares everything with the reference, and gives the errors of `o`.
    ///
    /// # Errors
    ///
    /// With what is wrong.
    pub fn compare(&self, problem: &VarlenProblem, expected: &VarlenHostOutput) -> anyhow::Result<Errors> {
        let tolerance = Tolerance::for_columns(problem.dtype, problem.shape.head_dim);
        ensure!(gaps(problem).all(|byte| self.o[byte] == POISON), "the launch wrote between the rows of o");
        let o = VarlenHostOutput::read_o(problem, &self.o)?;
        let worst = errors(&o, &expected.o);
        let VarlenShape { q_heads, v_head_dim, .. } = problem.shape;
        let row = worst.worst_index / v_head_dim.max(1);
        worst.within(&tolerance).with_context(|| {
            let column = worst.worst_index % v_head_dim.max(1);
            format!("o (token {}, head {}, column {column})", row / q_heads.max(1), row % q_heads.max(1))
        })?;
        for (row, (o, expected)) in o.chunks(v_head_dim).zip(expected.o.chunks(v_head_dim)).enumerate() {
            if expected.iter().all(|&value| value == 0.0) {
                ensure!(o.iter().all(|&value| value == 0.0), "row {row} of o sees no key, and is not all zeros: {o:?}");
            }
        }
        if let Some(bytes) = &self.log_sum_exp {
            let actual: Vec<f32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
            compare::log_sum_exp(&actual, &expected.log_sum_exp, tolerance.log_sum_exp)?;
        }
        if let Some(status) = self.status {
            ensure!(status == 0, "faults {status:#x} in offsets that have none");
        }
        Ok(worst)
    }
}

/// The bytes of `o` that belong to no row.
fn gaps(problem: &VarlenProblem) -> impl Iterator<Item = usize> {
    let VarlenShape { total_q, q_heads, v_head_dim, .. } = problem.shape;
    let size = problem.dtype.size();
    let mut rows: Vec<_> = (0..total_q)
        .flat_map(|token| (0..q_heads).map(move |head| (token, head)))
        .map(|(token, head)| (token * problem.o.token as usize + head * problem.o.head as usize) * size)
        .collect();
    rows.sort_unstable();
    let row_bytes = v_head_dim * size;
    let ends: Vec<_> = rows.iter().map(|start| start + row_bytes).collect();
    ends.into_iter().zip(rows.into_iter().skip(1)).flat_map(|(end, next)| end..next)
}

/// Runs a problem through the engine and the reference, and compares; a second launch must give the same bits, whoever built the
/// work list.
///
/// # Errors
///
/// With what is wrong.
pub fn check_packed(
    cx: &Context<'_>,
    engine: &dyn VarlenEngine,
    problem: &VarlenProblem,
    inputs: &PackedInputs,
    misaligned_elements: usize,
) -> anyhow::Result<()> {
    let expected = reference::attention_varlen(problem, &inputs.host()).context("the reference refuses the problem")?;
    let plan = engine.plan(cx.runtime(), problem).context("no plan")?;
    let path = plan.explain().path;
    let manner = Manner { misaligned_elements, prepared: false };
    let launched = PackedLaunched::run(cx.runtime(), plan.as_ref(), inputs, manner).with_context(|| path.clone())?;
    let worst = launched.compare(problem, &expected).with_context(|| format!("path {path}"))?;
    let again = PackedLaunched::run(cx.runtime(), plan.as_ref(), inputs, Manner { prepared: true, ..manner })?;
    ensure!(again == launched, "path {path}: a launch with a prepared work list differs from one without");
    cx.count(1);
    cx.record_path(&path);
    cx.record_error_of(problem.dtype, worst.relative_l2, worst.worst_element);
    Ok(())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn space() -> PackedSpace {
        PackedSpace {
            dtypes: DType::ALL.to_vec(),
            heads: vec![(1, 1), (4, 2)],
            head_dims: vec![8, 20],
            v_partner: 1,
            odd_rows: true,
            most_sequences: 300,
            multiplications: 1 << 22,
        }
    }

    /// Poison that a row sees would show as NaN or infinity in the reference, which reads only what the contract says.
    #[test]
    fn the_reference_never_meets_poison() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut pages = 0;
        for _ in 0..150 {
            let (problem, lengths) = space().draw(&mut rng);
            let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng).unwrap();
            let output = reference::attention_varlen(&problem, &inputs.host()).unwrap();
            assert!(output.o.iter().all(|value| value.is_finite()), "{problem:?} {lengths:?}");
            pages += usize::from(problem.paging.is_some());
        }
        assert!(pages > 10);
    }

    #[test]
    fn what_the_reference_writes_passes_and_a_byte_astray_does_not() {
        let mut rng = StdRng::seed_from_u64(2);
        let mut failed = 0;
        for _ in 0..50 {
            let (problem, lengths) = space().draw(&mut rng);
            let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng).unwrap();
            let expected = reference::attention_varlen(&problem, &inputs.host()).unwrap();
            let mut o = vec![POISON; problem.extents().unwrap().o];
            expected.write_o(&problem, &mut o).unwrap();
            let log_sum_exp = problem.wants_log_sum_exp.then(|| reference::encode(&expected.log_sum_exp, DType::F32));
            let mut launched = PackedLaunched { o, log_sum_exp, status: None };
            launched.compare(&problem, &expected).unwrap();
            if let Some(byte) = gaps(&problem).next() {
                launched.o[byte] = 0;
                assert!(launched.compare(&problem, &expected).is_err());
                failed += 1;
            }
        }
        assert!(failed > 5);
    }
}
