//! How large a block of scores is.
//!
//! Scores and probabilities share one buffer that every chunk reuses, so a cap bounds the workspace whatever the lengths are. A small
//! chunk would keep the scores in the second-level cache, but it is also a small product, with fewer tiles than the GPU has
//! multiprocessors, and three launches of its own. On an H200 the second outweighs the first at every size: the larger the chunk,
//! the faster (milliseconds, example `score_cap`, one run of 2026-11-30, driver 580.159):
//!
//! | shape | 32 MiB | 64 MiB | 256 MiB | 512 MiB | 4096 MiB |
//! |---|---|---|---|---|---|
//! | b32 h16 512 d128 f16 | 0.533 | 0.565 | 0.509 | 0.493 | 0.495 |
//! | b4 h16 4096 d128 f16 | 4.508 | 4.157 | 3.637 | 3.492 | 3.341 |
//! | b32 h16 512 d128 f32 | 2.135 | 2.012 | 1.924 | 1.821 | 1.821 |
//! | b4 h16 4096 d128 f32 | 17.83 | 16.56 | 14.78 | 14.11 | 13.75 |

/// Bytes that a chunk's scores may take: beyond, a chunk eight times as large gains 4 % at most.
pub(crate) const SCORE_CAP: usize = 512 << 20;
