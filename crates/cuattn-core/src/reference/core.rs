//! The computation itself, over sequences that dense and packed problems describe alike.

use std::sync::{Arc, Mutex, Weak};

use super::element::{BiasElement, bias_element, decode_into};
use super::vector::{ROWS, accumulate, dot_all};
use super::{HostScoreMod, ScoreIndex};
use crate::{Bias, DType, Reason, Refusal, ScoreStage, Window};

/// What all sequences share.
pub(super) struct Setting<'a> {
    pub(super) dtype: DType,
    pub(super) q_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) v_head_dim: usize,
    pub(super) q: Tensor<'a>,
    pub(super) k: Tensor<'a>,
    pub(super) v: Tensor<'a>,
    pub(super) scale: f64,
    pub(super) softcap: Option<f64>,
    pub(super) score_mod: Option<&'a HostScoreMod<'a>>,
    pub(super) causal: bool,
    pub(super) window: Window,
    pub(super) bias: Option<(Bias, &'a [u8])>,
    /// One a query head, or none.
    pub(super) sinks: Option<Vec<f64>>,
    pub(super) stage: Option<ScoreStage>,
}

/// Stored rows of vectors, each head and row a stride from the next.
#[derive(Clone, Copy)]
pub(super) struct Tensor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) head: usize,
    pub(super) row: usize,
}

/// One sequence of the batch.
pub(super) struct Sequence {
    pub(super) q_len: usize,
    /// Keys that the scores have a column for.
    pub(super) columns: usize,
    /// Keys that are valid.
    pub(super) keys: usize,
    /// Position of row 0.
    pub(super) offset: i64,
    /// First element of its queries.
    pub(super) q_start: usize,
    pub(super) kv: KeyPlace,
}

/// Where the rows of a sequence's keys and values are.
pub(super) enum KeyPlace {
    /// One after another, from these elements of k and v on.
    Dense { k_start: usize, v_start: usize },
    /// In pages, whose first elements in k and v are these.
    Paged { page_size: usize, starts: Vec<(usize, usize)> },
}

impl KeyPlace {
    /// First elements of key and value `row` of head 0.
    fn locate(&self, row: usize, k: Tensor<'_>, v: Tensor<'_>) -> (usize, usize) {
        match self {
            Self::Dense { k_start, v_start } => (k_start + row * k.row, v_start + row * v.row),
            Self::Paged { page_size, starts } => {
                let (k_start, v_start) = starts[row / page_size];
                (k_start + row % page_size * k.row, v_start + row % page_size * v.row)
            }
        }
    }
}

/// Results in the order sequence, head, row.
pub(super) struct Computed {
    pub(super) o: Vec<f64>,
    pub(super) log_sum_exp: Vec<f64>,
    pub(super) scores: Option<Vec<f64>>,
}

/// Some rows of one head of one sequence, and where their results go.
struct Item<'a> {
    sequence: usize,
    head: usize,
    first_row: usize,
    o: &'a mut [f64],
    log_sum_exp: &'a mut [f64],
    scores: Option<&'a mut [f64]>,
}

/// Keys and values of one head of one sequence.
struct Slab {
    k: Vec<f64>,
    v: Vec<f64>,
}

pub(super) fn compute(setting: &Setting<'_>, sequences: &[Sequence]) -> Result<Computed, Refusal> {
    let rows: usize = sequences.iter().map(|sequence| sequence.q_len * setting.q_heads).sum();
    let mut o = zeros(rows.checked_mul(setting.v_head_dim))?;
    let mut log_sum_exp = zeros(Some(rows))?;
    let mut scores = match setting.stage {
        Some(_) => {
            let count = sequences.iter().try_fold(0usize, |total, sequence| {
                sequence.columns.checked_mul(sequence.q_len)?.checked_mul(setting.q_heads)?.checked_add(total)
            });
            Some(zeros(count)?)
        }
        None => None,
    };

    let mut items = Vec::new();
    {
        let (mut o, mut log_sum_exp, mut scores) = (&mut o[..], &mut log_sum_exp[..], scores.as_deref_mut());
        for (index, sequence) in sequences.iter().enumerate() {
            for head in 0..setting.q_heads {
                for first_row in (0..sequence.q_len).step_by(ROWS) {
                    let count = ROWS.min(sequence.q_len - first_row);
                    items.push(Item {
                        sequence: index,
                        head,
                        first_row,
                        o: take(&mut o, count * setting.v_head_dim),
                        log_sum_exp: take(&mut log_sum_exp, count),
                        scores: scores.as_mut().map(|scores| take(scores, count * sequence.columns)),
                    });
                }
            }
        }
    }
    let pairs: f64 = sequences.iter().map(|s| s.q_len as f64 * s.columns as f64).sum::<f64>() * setting.q_heads as f64;
    run(setting, sequences, items, pairs * (setting.head_dim + setting.v_head_dim) as f64);
    Ok(Computed { o, log_sum_exp, scores })
}

fn zeros(count: Option<usize>) -> Result<Vec<f64>, Refusal> {
    let count = count.ok_or(Reason::SizeOverflow { what: "the reference's output" })?;
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| Reason::OutOfHostMemory { bytes: count.saturating_mul(8) })?;
    values.resize(count, 0.0);
    Ok(values)
}

fn take<'a>(rest: &mut &'a mut [f64], count: usize) -> &'a mut [f64] {
    let (taken, after) = std::mem::take(rest).split_at_mut(count);
    *rest = after;
    taken
}

/// Below this many multiplications another thread costs more than it brings.
const WORTH_A_THREAD: f64 = 1e6;

fn run(setting: &Setting<'_>, sequences: &[Sequence], items: Vec<Item<'_>>, multiplications: f64) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = cores.min(items.len()).min((multiplications / WORTH_A_THREAD) as usize + 1);
    let slabs: Vec<_> = (0..sequences.len() * setting.kv_heads).map(|_| Mutex::new(Weak::new())).collect();
    let queue = Mutex::new(items.into_iter());
    let work = || {
        // Consecutive items use one slab, so it is held until the next one is needed.
        let mut held: Option<(usize, Arc<Slab>)> = None;
        loop {
            // The guard is dropped at the end of this statement: no item is computed under the lock.
            let Some(item) = lock(&queue).next() else { return };
            let sequence = &sequences[item.sequence];
            let kv_head = item.head / (setting.q_heads / setting.kv_heads);
            let key = item.sequence * setting.kv_heads + kv_head;
            let slab = match &held {
                Some((held_key, slab)) if *held_key == key => Arc::clone(slab),
                _ => {
                    let mut shared = lock(&slabs[key]);
                    shared.upgrade().unwrap_or_else(|| {
                        let slab = Arc::new(load_slab(setting, sequence, kv_head));
                        *shared = Arc::downgrade(&slab);
                        slab
                    })
                }
            };
            compute_rows(setting, sequence, &slab, item);
            held = Some((key, slab));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that cannot be had is not missed: this one does the work too.
            let _ = std::thread::Builder::new().name("attention-reference".into()).spawn_scoped(scope, work);
        }
        work();
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether the stage wants the scores of keys that nobody may see.
fn wants_unseen(stage: Option<ScoreStage>) -> bool {
    matches!(stage, Some(ScoreStage::Raw | ScoreStage::Softcapped))
}

fn load_slab(setting: &Setting<'_>, sequence: &Sequence, kv_head: usize) -> Slab {
    let (k, v) = (setting.k, setting.v);
    let rows = match sequence.kv {
        KeyPlace::Dense { .. } if wants_unseen(setting.stage) => sequence.columns,
        _ => sequence.keys,
    };
    let mut slab = Slab { k: vec![0.0; rows * setting.head_dim], v: vec![0.0; rows * setting.v_head_dim] };
    let rows = slab.k.chunks_exact_mut(setting.head_dim).zip(slab.v.chunks_exact_mut(setting.v_head_dim));
    for (row, (k_row, v_row)) in rows.enumerate() {
        let (k_start, v_start) = sequence.kv.locate(row, k, v);
        load_vector(k, k_start + kv_head * k.head, setting.dtype, k_row);
        load_vector(v, v_start + kv_head * v.head, setting.dtype, v_row);
    }
    slab
}

fn load_vector(tensor: Tensor<'_>, start: usize, dtype: DType, into: &mut [f64]) {
    let size = dtype.size();
    decode_into(&tensor.bytes[start * size..(start + into.len()) * size], dtype, into);
}

/// Keys that causal mask, window and length let a row see: a range.
fn visible_keys(setting: &Setting<'_>, sequence: &Sequence, row: usize) -> std::ops::Range<usize> {
    let position = i128::from(sequence.offset) + row as i128;
    let mut end = sequence.keys as i128;
    if setting.causal {
        end = end.min(position + 1);
    }
    if let Some(right) = setting.window.right {
        end = end.min(position + i128::from(right) + 1);
    }
    let start = setting.window.left.map_or(0, |left| position - i128::from(left));
    let end = end.max(0);
    let start = start.clamp(0, end);
    start as usize..end as usize
}

fn compute_rows(setting: &Setting<'_>, sequence: &Sequence, slab: &Slab, item: Item<'_>) {
    let Item { sequence: batch, head, first_row, o, log_sum_exp, mut scores } = item;
    let (head_dim, v_head_dim) = (setting.head_dim, setting.v_head_dim);
    let count = log_sum_exp.len();
    let visible: Vec<_> = (first_row..first_row + count).map(|row| visible_keys(setting, sequence, row)).collect();
    let keys = if wants_unseen(setting.stage) {
        0..slab.k.len() / head_dim
    } else {
        let seen = visible.iter().filter(|range| !range.is_empty());
        let start = seen.clone().map(|range| range.start).min().unwrap_or(0);
        start..seen.map(|range| range.end).max().unwrap_or(0)
    };
    let width = keys.len();

    let mut q = vec![0.0; count * head_dim];
    for (row, q) in q.chunks_exact_mut(head_dim).enumerate() {
        let start = sequence.q_start + head * setting.q.head + (first_row + row) * setting.q.row;
        load_vector(setting.q, start, setting.dtype, q);
    }
    // One array goes through all stages: products, scores, weights.
    let mut weights = vec![0.0; count * width];
    let mut seen = vec![false; count * width];
    dot_all(&q, &slab.k[keys.start * head_dim..keys.end * head_dim], head_dim, &mut weights);

    let mut denominators = [0.0; ROWS];
    for row in 0..count {
        let weights = &mut weights[row * width..(row + 1) * width];
        let seen = &mut seen[row * width..(row + 1) * width];
        let mut out = scores.as_mut().map(|scores| &mut scores[row * sequence.columns..(row + 1) * sequence.columns]);

        weights.iter_mut().for_each(|weight| *weight *= setting.scale);
        write_unseen(out.as_deref_mut(), setting.stage, ScoreStage::Raw, weights);
        if let Some(cap) = setting.softcap {
            weights.iter_mut().for_each(|weight| *weight = cap * (*weight / cap).tanh());
        }
        write_unseen(out.as_deref_mut(), setting.stage, ScoreStage::Softcapped, weights);

        for key in visible[row].clone() {
            let index = ScoreIndex { batch, head, q: first_row + row, k: key };
            if let Some(score) = modified(setting, index, weights[key - keys.start]) {
                weights[key - keys.start] = score;
                seen[key - keys.start] = true;
            }
        }
        if let (Some(out), Some(ScoreStage::Masked)) = (out.as_deref_mut(), setting.stage) {
            out.fill(f64::NEG_INFINITY);
            for key in keys.clone().filter(|key| seen[key - keys.start]) {
                out[key] = weights[key - keys.start];
            }
        }

        let sink = setting.sinks.as_ref().map(|sinks| sinks[head]);
        let softmax = exponentiate(weights, seen, sink);
        denominators[row] = softmax.denominator;
        log_sum_exp[row] = softmax.log_sum_exp;
        if let (Some(out), Some(ScoreStage::Probabilities)) = (out, setting.stage) {
            for key in keys.clone().filter(|key| seen[key - keys.start]) {
                out[key] = weights[key - keys.start] / softmax.denominator;
            }
        }
    }

    accumulate(&weights, &seen, &slab.v[keys.start * v_head_dim..keys.end * v_head_dim], v_head_dim, o);
    for (o, denominator) in o.chunks_exact_mut(v_head_dim).zip(denominators) {
        o.iter_mut().for_each(|o| *o /= denominator);
    }
}

/// Hands out scores at a stage at which masks do not count yet.
fn write_unseen(out: Option<&mut [f64]>, wanted: Option<ScoreStage>, stage: ScoreStage, scores: &[f64]) {
    if let (Some(out), true) = (out, wanted == Some(stage)) {
        out.fill(f64::NEG_INFINITY);
        out[..scores.len()].copy_from_slice(scores);
    }
}

/// The score after the user's modification and the bias; `None` where either masks the key.
fn modified(setting: &Setting<'_>, index: ScoreIndex, mut score: f64) -> Option<f64> {
    if let Some(score_mod) = setting.score_mod {
        score = score_mod(score, index);
        if score == f64::NEG_INFINITY {
            return None;
        }
    }
    if let Some((bias, bytes)) = setting.bias {
        if index.k >= bias.keys {
            return None;
        }
        let at = |index: usize, stride: i64| index * stride as usize;
        let element =
            at(index.batch, bias.batch) + at(index.head, bias.head) + at(index.q, bias.row) + at(index.k, bias.key);
        match bias_element(bytes, bias.kind, element) {
            BiasElement::Mask => return None,
            BiasElement::Leave => {}
            BiasElement::Add(bias) => {
                score += bias;
                // Not `max`, which would lose a NaN.
                if score < -f64::from(f32::MAX) {
                    score = -f64::from(f32::MAX);
                }
            }
        }
    }
    Some(score)
}

struct Softmax {
    denominator: f64,
    log_sum_exp: f64,
}

/// Turns the scores that are seen into weights, and sums them.
fn exponentiate(scores: &mut [f64], seen: &mut [bool], sink: Option<f64>) -> Softmax {
    let mut greatest = sink.unwrap_or(f64::NEG_INFINITY);
    for (&score, _) in scores.iter().zip(seen.iter()).filter(|(_, seen)| **seen) {
        // `max` would lose a NaN.
        if score > greatest || score.is_nan() {
            greatest = score;
        }
        if greatest.is_nan() {
            break;
        }
    }
    if greatest == f64::NEG_INFINITY {
        seen.fill(false);
        return Softmax { denominator: 1.0, log_sum_exp: f64::NEG_INFINITY };
    }
    let mut denominator = sink.map_or(0.0, |sink| (sink - greatest).exp());
    for (score, _) in scores.iter_mut().zip(seen.iter()).filter(|(_, seen)| **seen) {
        *score = (*score - greatest).exp();
        denominator += *score;
    }
    Softmax { denominator, log_sum_exp: greatest + denominator.ln() }
}
