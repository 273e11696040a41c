//! The formula, one element at a time: no blocks, no threads, no subtraction of a maximum.

use cuattn_core::reference;
use cuattn_core::{BiasKind, DType, ScoreStage, Shape, Strides};

use crate::case::Case;

pub(crate) struct Naive {
    pub(crate) o: Vec<f64>,
    pub(crate) log_sum_exp: Vec<f64>,
    pub(crate) scores: Vec<f64>,
}

/// Scores must be small enough for `exp`.
pub(crate) fn naive(case: &Case) -> Naive {
    let problem = &case.problem;
    let Shape { q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, .. } = problem.shape;
    let element = |bytes: &[u8], strides: Strides, b: usize, h: usize, row: usize, d: usize| {
        let at = b as i64 * strides.batch + h as i64 * strides.head + row as i64 * strides.row + d as i64;
        let size = problem.dtype.size();
        reference::decode(&bytes[at as usize * size..][..size], problem.dtype)[0]
    };
    let mut result = Naive { o: vec![], log_sum_exp: vec![], scores: vec![] };
    for (b, place) in case.lengths_and_offsets().into_iter().enumerate() {
        for h in 0..q_heads {
            let kv_head = h / (q_heads / kv_heads);
            for i in 0..q_len {
                let mut weights = vec![0.0; kv_len];
                let mut total = case.sinks.as_ref().map_or(0.0, |sinks| reference::decode(sinks, DType::F32)[h].exp());
                let first_score = result.scores.len();
                for (j, weight) in weights.iter_mut().enumerate() {
                    let product =
                        |d| element(&case.q, problem.q, b, h, i, d) * element(&case.k, problem.k, b, kv_head, j, d);
                    let raw = (0..head_dim).map(product).sum::<f64>() * f64::from(problem.scale);
                    let capped = problem.softcap.map_or(raw, |cap| (raw / f64::from(cap)).tanh() * f64::from(cap));
                    let masked = masked(case, capped, [b, h, i, j], place);
                    *weight = masked.exp();
                    total += *weight;
                    result.scores.push(match problem.scores.map(|scores| scores.stage) {
                        Some(ScoreStage::Raw) => raw,
                        Some(ScoreStage::Softcapped) => capped,
                        _ => masked,
                    });
                }
                let share = |weight: f64| if weight == 0.0 { 0.0 } else { weight / total };
                if problem.scores.map(|scores| scores.stage) == Some(ScoreStage::Probabilities) {
                    result.scores.truncate(first_score);
                    result.scores.extend(weights.iter().map(|&weight| share(weight)));
                }
                let value = |j: usize, d| element(&case.v, problem.v, b, kv_head, j, d);
                result
                    .o
                    .extend((0..v_head_dim).map(|d| (0..kv_len).map(|j| share(weights[j]) * value(j, d)).sum::<f64>()));
                result.log_sum_exp.push(total.ln());
            }
        }
    }
    result
}

fn masked(case: &Case, score: f64, [b, h, i, j]: [usize; 4], (length, offset): (i64, i64)) -> f64 {
    let mask = case.problem.mask;
    let key = j as i64;
    let distance = key - (offset + i as i64);
    let window = mask.window;
    if key >= length
        || (mask.causal && distance > 0)
        || window.right.is_some_and(|right| distance > i64::from(right))
        || window.left.is_some_and(|left| -distance > i64::from(left))
    {
        return f64::NEG_INFINITY;
    }
    let Some((bias, bytes)) = mask.bias.zip(case.bias.as_ref()) else { return score };
    if j >= bias.keys {
        return f64::NEG_INFINITY;
    }
    let at = b as i64 * bias.batch + h as i64 * bias.head + i as i64 * bias.row + key * bias.key;
    match bias.kind {
        BiasKind::Boolean if bytes[at as usize] == 0 => f64::NEG_INFINITY,
        BiasKind::Boolean => score,
        BiasKind::Additive(dtype) => {
            score + reference::decode(&bytes[at as usize * dtype.size()..][..dtype.size()], dtype)[0]
        }
    }
}
