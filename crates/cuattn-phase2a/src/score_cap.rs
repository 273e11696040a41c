//! How large a block of scores is.
//!
//! Scores and probabilities share one buffer that every chunk reuses, so a cap bounds the workspace whatever the lengths are. It
//! also decides where the softmax finds the scores: in a buffer that fits the second-level cache the three steps of a chunk never
//! go to memory, but a small chunk is a small product, with fewer tiles than the GPU has multiprocessors.
//!
//! What a trip through memory costs, for float16 inputs at 4.3 TB/s (an H200): a score is written and read in float32 and its
//! probability written and read in 16 bits, 12 bytes; keeping scores in float16, as PyTorch's unfused attention does, takes 8.
//!
//! | shape | scores | 12 bytes each | 8 bytes each | both products at 600 TFLOP/s |
//! |---|---|---|---|---|
//! | b32 h16 512 d128 | 134 M | 0.37 ms | 0.25 ms | 0.11 ms |
//! | b4 h16 4096 d128 | 1074 M | 3.0 ms | 2.0 ms | 0.92 ms |
//!
//! So with 16-bit inputs the scores must not leave the cache. With float32 inputs both keep 16 bytes a score (0.5 and 4.0 ms), while the
//! products at 51 TFLOP/s take 1.3 and 10.8 ms, and what matters is that they are large. The example `score_cap` measures it.

use cuattn_core::DType;

/// What bounds the score buffer of one element type.
#[derive(Clone, Copy, Debug)]
struct Cap {
    element: DType,
    /// Share of the second-level cache that a chunk's scores may take; 0 where the cache is not aimed at.
    cache_share: f64,
    /// Score rows below which the second product has too few tiles, whatever the cache.
    least_rows: usize,
    /// Bytes that are never exceeded.
    most_bytes: usize,
}

/// Not measured yet: derived from the traffic of the two shapes that are compared with PyTorch (b32 h16 512 d128 and b4 h16 4096
/// d128). With 16-bit inputs the products take less time than a trip of float32 scores through memory would, so chunks stay in
/// the cache; with float32 inputs the products take ten times longer than the trip, so chunks are large.
const CAPS: &[Cap] = &[
    Cap { element: DType::F32, cache_share: 0.0, least_rows: 0, most_bytes: 512 << 20 },
    Cap { element: DType::F16, cache_share: 0.5, least_rows: 2048, most_bytes: 256 << 20 },
    Cap { element: DType::Bf16, cache_share: 0.5, least_rows: 2048, most_bytes: 256 << 20 },
];

/// Bytes that a chunk's scores may take.
pub(crate) fn score_cap(element: DType, l2_bytes: usize, row_bytes: usize) -> usize {
    let most = CAPS.iter().find(|cap| cap.element == element).copied();
    let Cap { cache_share, least_rows, most_bytes, .. } = most.unwrap_or(CAPS[0]);
    if cache_share == 0.0 {
        return most_bytes;
    }
    let cached = (l2_bytes as f64 * cache_share) as usize;
    cached.max(least_rows.saturating_mul(row_bytes)).min(most_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const L2_OF_H200: usize = 60 << 20;

    #[test]
    fn sixteen_bit_scores_stay_in_the_cache_while_products_are_large_enough() {
        assert_eq!(score_cap(DType::F16, L2_OF_H200, 512 * 4), 30 << 20);
        assert_eq!(score_cap(DType::F16, L2_OF_H200, 4096 * 4), 32 << 20);
        assert_eq!(score_cap(DType::Bf16, L2_OF_H200, 32768 * 4), 256 << 20);
    }

    #[test]
    fn every_element_type_has_a_row() {
        for element in DType::ALL {
            assert!(CAPS.iter().any(|cap| cap.element == element), "{element}");
        }
    }
}
