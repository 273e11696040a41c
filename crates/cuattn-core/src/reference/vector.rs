//! The two loops in which the reference spends its time, compiled for the widest vectors that the processor has.

/// Rows that are computed together, so that a key or value is loaded once for all of them.
pub(super) const ROWS: usize = 16;

/// `scores[row * width + key] = q[row] . k[key]` for all rows and keys; `dim` elements a vector.
pub(super) fn dot_all(q: &[f64], k: &[f64], dim: usize, scores: &mut [f64]) {
    widest(DotAll { q, k, dim, scores });
}

/// `o[row] += weights[row * keys + key] * v[key]` for all rows and keys where `seen`.
pub(super) fn accumulate(weights: &[f64], seen: &[bool], v: &[f64], dim: usize, o: &mut [f64]) {
    widest(Accumulate { weights, seen, v, dim, o });
}

trait Loop {
    fn run(self);
}

/// Runs `work` with the widest vectors. The loops are inlined into each of the functions below, which is what compiles
/// them anew for that feature; the sums are in one order whatever the width, so the results are the same bits.
fn widest(work: impl Loop) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn with_avx512(work: impl Loop) {
            work.run();
        }
        #[target_feature(enable = "avx2")]
        fn with_avx2(work: impl Loop) {
            work.run();
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has avx512f, as just asked.
            return unsafe { with_avx512(work) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has avx2, as just asked.
            return unsafe { with_avx2(work) };
        }
    }
    work.run();
}

/// Partial sums of a dot product: as many as the widest vector holds, so that its additions need no order among them.
const LANES: usize = 8;

/// Rows, or keys, that are computed in one pass over a vector.
const BLOCK: usize = 4;

struct DotAll<'a> {
    q: &'a [f64],
    k: &'a [f64],
    dim: usize,
    scores: &'a mut [f64],
}

impl Loop for DotAll<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { q, k, dim, scores } = self;
        let width = k.len() / dim;
        for (key, k) in k.chunks_exact(dim).enumerate() {
            let mut blocks = q.chunks_exact(dim * BLOCK);
            let mut row = 0;
            for block in &mut blocks {
                let rows = std::array::from_fn::<_, BLOCK, _>(|index| &block[index * dim..(index + 1) * dim]);
                for score in dot(rows, k) {
                    scores[row * width + key] = score;
                    row += 1;
                }
            }
            for last in blocks.remainder().chunks_exact(dim) {
                [scores[row * width + key]] = dot([last], k);
                row += 1;
            }
        }
    }
}

/// The dot product of each of some rows with one vector.
#[inline(always)]
fn dot<const ROWS: usize>(rows: [&[f64]; ROWS], vector: &[f64]) -> [f64; ROWS] {
    let mut sums = [[0.0; LANES]; ROWS];
    let (chunks, tail) = vector.as_chunks::<LANES>();
    let rows = rows.map(|row| row[..vector.len()].as_chunks::<LANES>());
    for (at, chunk) in chunks.iter().enumerate() {
        for (sums, (row, _)) in sums.iter_mut().zip(&rows) {
            let row = &row[at];
            for lane in 0..LANES {
                sums[lane] += row[lane] * chunk[lane];
            }
        }
    }
    let mut results = sums.map(sum_lanes);
    for (result, (_, row_tail)) in results.iter_mut().zip(&rows) {
        *result += row_tail.iter().zip(tail).map(|(a, b)| a * b).sum::<f64>();
    }
    results
}

#[inline(always)]
fn sum_lanes(sums: [f64; LANES]) -> f64 {
    ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))
}

struct Accumulate<'a> {
    weights: &'a [f64],
    seen: &'a [bool],
    v: &'a [f64],
    dim: usize,
    o: &'a mut [f64],
}

impl Loop for Accumulate<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { weights, seen, v, dim, o } = self;
        let width = v.len() / dim;
        for first in (0..width).step_by(BLOCK) {
            let keys = first..width.min(first + BLOCK);
            for (row, o) in o.chunks_exact_mut(dim).enumerate() {
                let at = row * width;
                let weights = &weights[at..at + width];
                // Selected, not multiplied by 0: an unseen value may be NaN.
                if keys.len() == BLOCK && seen[at..][keys.clone()].iter().all(|seen| *seen) {
                    let [a, b, c, d] =
                        std::array::from_fn(|index| &v[(first + index) * dim..(first + index + 1) * dim]);
                    let (wa, wb, wc, wd) = (weights[first], weights[first + 1], weights[first + 2], weights[first + 3]);
                    for ((((o, a), b), c), d) in o.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                        *o += (wa * a + wb * b) + (wc * c + wd * d);
                    }
                } else {
                    for key in keys.clone().filter(|key| seen[at + key]) {
                        let weight = weights[key];
                        o.iter_mut().zip(&v[key * dim..(key + 1) * dim]).for_each(|(o, v)| *o += weight * v);
                    }
                }
            }
        }
    }
}
