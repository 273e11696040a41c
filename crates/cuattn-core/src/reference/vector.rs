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

/// Runs `work` with the widest vectors. The loops are inlined into each of the functions below, which is what compiles them
/// anew for that feature; the sums are in one order whatever the width, so the results are the same bits.
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
            let mut rows = q.chunks_exact(dim).enumerate();
            while let Some((row, first)) = rows.next() {
                let Some((_, second)) = rows.next() else {
                    scores[row * width + key] = dot(first, k);
                    break;
                };
                let [a, b] = dot_two(first, second, k);
                scores[row * width + key] = a;
                scores[(row + 1) * width + key] = b;
            }
        }
    }
}

#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let tail: f64 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    sum_lanes(sums) + tail
}

#[inline(always)]
fn dot_two(a: &[f64], b: &[f64], c: &[f64]) -> [f64; 2] {
    let (mut a_sums, mut b_sums) = ([0.0; LANES], [0.0; LANES]);
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let (c, c_tail) = c.as_chunks::<LANES>();
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for lane in 0..LANES {
            a_sums[lane] += a[lane] * c[lane];
            b_sums[lane] += b[lane] * c[lane];
        }
    }
    let a_rest: f64 = a_tail.iter().zip(c_tail).map(|(a, c)| a * c).sum();
    let b_rest: f64 = b_tail.iter().zip(c_tail).map(|(b, c)| b * c).sum();
    [sum_lanes(a_sums) + a_rest, sum_lanes(b_sums) + b_rest]
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
        for (key, v) in v.chunks_exact(dim).enumerate() {
            for (row, o) in o.chunks_exact_mut(dim).enumerate() {
                // Selected, not multiplied by 0: an unseen value may be NaN.
                if seen[row * width + key] {
                    let weight = weights[row * width + key];
                    o.iter_mut().zip(v).for_each(|(o, v)| *o += weight * v);
                }
            }
        }
    }
}
