//! A problem with operands to go with it.

use cuattn_core::reference::{self, HostOperands, HostOutput};
use cuattn_core::{Alignment, Bias, BiasKind, DType, IndexType, KeyLengths, Problem, Refusal, Shape};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A dense problem and the bytes of its operands.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) problem: Problem,
    pub(crate) q: Vec<u8>,
    pub(crate) k: Vec<u8>,
    pub(crate) v: Vec<u8>,
    pub(crate) bias: Option<Vec<u8>>,
    pub(crate) key_lengths: Option<Vec<u8>>,
    pub(crate) query_offsets: Option<Vec<u8>>,
    pub(crate) sinks: Option<Vec<u8>>,
}

impl Case {
    /// Random operands for `problem`.
    pub(crate) fn random(problem: Problem, seed: u64) -> Self {
        let extents = problem.extents().expect("a legal problem");
        let mut rng = StdRng::seed_from_u64(seed);
        let shape = problem.shape;
        let mut tensor = |bytes: usize, dtype: DType| {
            let values: Vec<f64> = (0..bytes / dtype.size()).map(|_| rng.random_range(-2.0..2.0)).collect();
            reference::encode(&values, dtype)
        };
        let (q, k, v) =
            (tensor(extents.q, problem.dtype), tensor(extents.k, problem.dtype), tensor(extents.v, problem.dtype));
        let sinks = extents.sinks.map(|bytes| tensor(bytes, DType::F32));
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
        let bias = problem.mask.bias.map(|bias| {
            let bytes = extents.bias.unwrap_or(0);
            match bias.kind {
                BiasKind::Boolean => (0..bytes).map(|_| u8::from(rng.random_bool(0.7)) * 3).collect(),
                BiasKind::Additive(dtype) => {
                    let mut value =
                        || if rng.random_bool(0.2) { f64::NEG_INFINITY } else { rng.random_range(-3.0..3.0) };
                    let values: Vec<f64> = (0..bytes / dtype.size()).map(|_| value()).collect();
                    reference::encode(&values, dtype)
                }
            }
        });
        let most = shape.kv_len as i64 + 3;
        let key_lengths = problem.mask.key_lengths.index_type().map(|index| {
            let lengths: Vec<i64> = (0..shape.batch).map(|_| rng.random_range(-2..=most)).collect();
            encode_index(&lengths, index)
        });
        let query_offsets = problem.mask.alignment.index_type().map(|index| {
            let offsets: Vec<i64> = (0..shape.batch).map(|_| rng.random_range(-4..=most)).collect();
            encode_index(&offsets, index)
        });
        Self { problem, q, k, v, bias, key_lengths, query_offsets, sinks }
    }

    pub(crate) fn operands(&self) -> HostOperands<'_> {
        HostOperands {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            bias: self.bias.as_deref(),
            key_lengths: self.key_lengths.as_deref(),
            query_offsets: self.query_offsets.as_deref(),
            sinks: self.sinks.as_deref(),
            page_table: None,
            score_mod: None,
        }
    }

    pub(crate) fn compute(&self) -> HostOutput {
        self.try_compute().expect("a legal problem with all of its operands")
    }

    pub(crate) fn try_compute(&self) -> Result<HostOutput, Refusal> {
        reference::attention(&self.problem, &self.operands())
    }

    /// Valid keys of each sequence, and the position of its row 0.
    pub(crate) fn lengths_and_offsets(&self) -> Vec<(i64, i64)> {
        let Shape { batch, q_len, kv_len, .. } = self.problem.shape;
        (0..batch)
            .map(|b| {
                let at = |bytes: &Option<Vec<u8>>, index| decode_index(bytes.as_deref().unwrap_or(&[]), index)[b];
                let length = match self.problem.mask.key_lengths {
                    KeyLengths::Full => kv_len as i64,
                    KeyLengths::PerBatch(index) => at(&self.key_lengths, index),
                    KeyLengths::PastPlusQuery(index) => at(&self.key_lengths, index) + q_len as i64,
                };
                let length = length.clamp(0, kv_len as i64);
                let offset = match self.problem.mask.alignment {
                    Alignment::TopLeft => 0,
                    Alignment::BottomRight => length - q_len as i64,
                    Alignment::PerBatch(index) => at(&self.query_offsets, index),
                };
                (length, offset)
            })
            .collect()
    }
}

pub(crate) fn encode_index(values: &[i64], index: IndexType) -> Vec<u8> {
    match index {
        IndexType::I32 => values.iter().flat_map(|&value| (value as i32).to_le_bytes()).collect(),
        IndexType::I64 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

fn decode_index(bytes: &[u8], index: IndexType) -> Vec<i64> {
    match index {
        IndexType::I32 => bytes.chunks(4).map(|word| i64::from(i32::from_le_bytes(word.try_into().unwrap()))).collect(),
        IndexType::I64 => bytes.chunks(8).map(|word| i64::from_le_bytes(word.try_into().unwrap())).collect(),
    }
}

/// A bias tensor that covers every element of its own, row-major.
pub(crate) fn full_bias(kind: BiasKind, shape: &Shape) -> Bias {
    let Shape { q_heads, q_len, kv_len, .. } = *shape;
    let (row, head) = (kv_len as i64, (q_len * kv_len) as i64);
    Bias { kind, batch: head * q_heads as i64, head, row, key: 1, keys: kv_len }
}

pub(crate) fn assert_close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got == want || (got.is_nan() && want.is_nan());
        assert!(same || (got - want).abs() <= tolerance * want.abs().max(1.0), "{what}[{at}]: {got} is not {want}");
    }
}
