//! Stored elements to float64 and back.

use half::{bf16, f16};

use crate::{BiasKind, DType, IndexType};

/// Every element of a contiguous tensor, exactly. Bytes beyond the last whole element are left out.
pub fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let mut values = vec![0.0; bytes.len() / dtype.size()];
    decode_into(bytes, dtype, &mut values);
    values
}

/// The bytes of a contiguous tensor, each value rounded once to the nearest, ties to even.
pub fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.size()];
    encode_into(values, dtype, &mut bytes);
    bytes
}

pub(super) fn decode_into(bytes: &[u8], dtype: DType, values: &mut [f64]) {
    match dtype {
        DType::F32 => {
            let (words, _) = bytes.as_chunks::<4>();
            values.iter_mut().zip(words).for_each(|(value, word)| *value = f64::from(f32::from_le_bytes(*word)));
        }
        DType::F16 => {
            let (words, _) = bytes.as_chunks::<2>();
            values.iter_mut().zip(words).for_each(|(value, word)| *value = f16::from_le_bytes(*word).to_f64());
        }
        DType::Bf16 => {
            let (words, _) = bytes.as_chunks::<2>();
            values.iter_mut().zip(words).for_each(|(value, word)| *value = bf16::from_le_bytes(*word).to_f64());
        }
    }
}

/// Rows of `dim` elements of a tensor, in the order of `starts`, which are first bytes.
pub(super) fn decode_rows(bytes: &[u8], dtype: DType, dim: usize, starts: impl Iterator<Item = usize>) -> Vec<f64> {
    let mut values = Vec::new();
    for start in starts {
        let end = values.len();
        values.resize(end + dim, 0.0);
        decode_into(&bytes[start..start + dim * dtype.size()], dtype, &mut values[end..]);
    }
    values
}

/// Writes `values` into rows of `dim` elements of a tensor, each value rounded once. Bytes between rows are left as they are.
pub(super) fn encode_rows(
    values: &[f64],
    dtype: DType,
    dim: usize,
    starts: impl Iterator<Item = usize>,
    bytes: &mut [u8],
) {
    for (start, row) in starts.zip(values.chunks_exact(dim)) {
        encode_into(row, dtype, &mut bytes[start..start + dim * dtype.size()]);
    }
}

pub(super) fn encode_into(values: &[f64], dtype: DType, bytes: &mut [u8]) {
    match dtype {
        DType::F32 => {
            let (words, _) = bytes.as_chunks_mut::<4>();
            values.iter().zip(words).for_each(|(value, word)| *word = (*value as f32).to_le_bytes());
        }
        DType::F16 => {
            let (words, _) = bytes.as_chunks_mut::<2>();
            values.iter().zip(words).for_each(|(value, word)| *word = f16::from_f32(to_odd(*value)).to_le_bytes());
        }
        DType::Bf16 => {
            let (words, _) = bytes.as_chunks_mut::<2>();
            values.iter().zip(words).for_each(|(value, word)| *word = bf16::from_f32(to_odd(*value)).to_le_bytes());
        }
    }
}

/// The float32 next to `value` whose last bit is odd, where `value` is none itself. Rounding that once more, to a type
/// with at least two bits less, gives what rounding `value` once would: `half` drops the low half of a float64 before
/// it rounds.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || value.is_nan() {
        return nearest;
    }
    let away_from_zero = f64::from(nearest).abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(away_from_zero)) | 1)
}

/// Every entry of an index array.
pub(super) fn decode_index(bytes: &[u8], index: IndexType) -> Vec<i64> {
    match index {
        IndexType::I32 => bytes.as_chunks::<4>().0.iter().map(|word| i64::from(i32::from_le_bytes(*word))).collect(),
        IndexType::I64 => bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect(),
    }
}

/// What one bias element does to its score.
#[derive(Clone, Copy)]
pub(super) enum BiasElement {
    Add(f64),
    Leave,
    Mask,
}

pub(super) fn bias_element(bytes: &[u8], kind: BiasKind, element: usize) -> BiasElement {
    match kind {
        BiasKind::Boolean if bytes[element] == 0 => BiasElement::Mask,
        BiasKind::Boolean => BiasElement::Leave,
        BiasKind::Additive(dtype) => {
            let mut value = [0.0];
            decode_into(&bytes[element * dtype.size()..], dtype, &mut value);
            if value[0] == f64::NEG_INFINITY { BiasElement::Mask } else { BiasElement::Add(value[0]) }
        }
    }
}
