//! How far a result is from the reference, and how far it may be.

use anyhow::ensure;
use cuattn_core::DType;

/// The distance of one tensor from its reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// `|actual - expected|` over `|expected|`, as vectors.
    pub relative_l2: f64,
    /// The worst element's absolute error over the largest magnitude in `expected`.
    pub worst_element: f64,
    /// Where that element is.
    pub worst_index: usize,
}

/// How far a result may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Bound on [`Errors::relative_l2`].
    pub relative_l2: f64,
    /// Bound on [`Errors::worst_element`].
    pub worst_element: f64,
    /// Bound on the absolute error of a log-sum-exp, for magnitudes above 1 relative to them.
    pub log_sum_exp: f64,
}

impl Tolerance {
    /// What every engine must hold. Float32 is float32-class; the 16-bit types accumulate in float32, keep probabilities in 16
    /// bits and round once at the end, so their unit roundoff (2^-11 and 2^-8) sets the bound.
    ///
    /// The worst element is bounded at a small multiple of L2: one wrong tile edge moves one element by far more than that,
    /// and L2 over a large tensor by far less.
    ///
    /// In float32 it is fifteen times L2, for rows with large scores: a score of 200, which peaky inputs reach, is itself rounded by 200 *
    /// 2^-24, and its weight is off by that much of itself, 1.2e-5. Where two such keys share a row, so is the output; elsewhere nothing is,
    /// so L2 does not see it.
    pub const fn for_dtype(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self { relative_l2: 1e-3, worst_element: 4e-3, log_sum_exp: 2e-4 },
            DType::Bf16 => Self { relative_l2: 6e-3, worst_element: 2.4e-2, log_sum_exp: 2e-4 },
            // Only float32 is left; a type that is not known yet gets the strictest bound.
            _ => Self { relative_l2: 2e-6, worst_element: 3e-5, log_sum_exp: 2e-5 },
        }
    }

    /// The same for vectors of `head_dim` columns. Beyond 256 of them, float32 itself is further off: with one accumulator for q.k and
    /// nothing else rounded, peaky inputs of 512 columns are 2.2e-6 from float64 on average, and 2.5e-6 at most (numpy, twelve draws).
    pub fn for_columns(dtype: DType, head_dim: usize) -> Self {
        let tolerance = Self::for_dtype(dtype);
        let widened = if dtype == DType::F32 && head_dim > 256 { 1.5 } else { 1.0 };
        Self { relative_l2: widened * tolerance.relative_l2, ..tolerance }
    }
}

/// Measures `actual` against `expected`. Where either has a NaN or an infinity, the errors are infinite: poison that was not
/// overwritten never passes.
///
/// Where the reference is zero throughout, both errors are those of `actual` over 1: then only exact zeros pass.
///
/// # Panics
///
/// If the lengths differ.
pub fn errors(actual: &[f64], expected: &[f64]) -> Errors {
    assert_eq!(actual.len(), expected.len(), "a result and its reference have different lengths");
    let (mut difference, mut magnitude, mut largest) = (0.0, 0.0, 0.0_f64);
    let (mut worst, mut worst_index) = (0.0, 0);
    for (index, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        if !a.is_finite() || !e.is_finite() {
            return Errors { relative_l2: f64::INFINITY, worst_element: f64::INFINITY, worst_index: index };
        }
        let error = (a - e).abs();
        difference += error * error;
        magnitude += e * e;
        largest = largest.max(e.abs());
        if error > worst {
            (worst, worst_index) = (error, index);
        }
    }
    let over = |value: f64, scale: f64| if scale == 0.0 { value } else { value / scale };
    Errors {
        relative_l2: over(difference.sqrt(), f64::sqrt(magnitude)),
        worst_element: over(worst, largest),
        worst_index,
    }
}

/// [`errors`] of the elements that are finite in `expected`. Every other one must be as it is there, and there must be one.
///
/// # Errors
///
/// With the first element that should not be finite and differs, or where all of `expected` is finite.
///
/// # Panics
///
/// If the lengths differ.
pub fn errors_beside_nonfinite(actual: &[f64], expected: &[f64]) -> anyhow::Result<Errors> {
    assert_eq!(actual.len(), expected.len(), "a result and its reference have different lengths");
    let mut finite = (Vec::new(), Vec::new());
    for (index, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        if expected.is_finite() {
            finite.0.push(actual);
            finite.1.push(expected);
        } else {
            let same = actual == expected || (actual.is_nan() && expected.is_nan());
            ensure!(same, "element {index} is {actual} and must be {expected}");
        }
    }
    ensure!(finite.0.len() < actual.len(), "no row saw a value that is not finite");
    Ok(errors(&finite.0, &finite.1))
}

impl Errors {
    /// Refuses errors beyond `tolerance`.
    ///
    /// # Errors
    ///
    /// With both errors and both bounds.
    pub fn within(&self, tolerance: &Tolerance) -> anyhow::Result<()> {
        // Written so that a NaN fails.
        ensure!(
            self.relative_l2 <= tolerance.relative_l2 && self.worst_element <= tolerance.worst_element,
            "relative L2 {:.3e} (at most {:.1e}), worst element {:.3e} at {} (at most {:.1e})",
            self.relative_l2,
            tolerance.relative_l2,
            self.worst_element,
            self.worst_index,
            tolerance.worst_element,
        );
        Ok(())
    }
}

/// Measures log-sum-exp rows: -inf exactly where the reference has it, finite values within `tolerance`. Gives the worst error.
///
/// # Errors
///
/// With the first row that is off.
///
/// # Panics
///
/// If the lengths differ.
pub fn log_sum_exp(actual: &[f32], expected: &[f64], tolerance: f64) -> anyhow::Result<f64> {
    assert_eq!(actual.len(), expected.len(), "a result and its reference have different lengths");
    let mut worst = 0.0_f64;
    for (row, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        if expected == f64::NEG_INFINITY {
            ensure!(actual == f32::NEG_INFINITY, "log-sum-exp of row {row} is {actual}, but the row sees no key: -inf");
            continue;
        }
        let error = (f64::from(actual) - expected).abs() / expected.abs().max(1.0);
        // Written so that a NaN fails.
        ensure!(
            error <= tolerance,
            "log-sum-exp of row {row} is {actual}, expected {expected}: off by {error:.3e} (at most {tolerance:.1e})"
        );
        worst = worst.max(error);
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_reference() {
        let errors = errors(&[3.0, 4.5], &[3.0, 4.0]);
        assert_eq!(errors.relative_l2, 0.1);
        assert_eq!(errors.worst_element, 0.125);
        assert_eq!(errors.worst_index, 1);
    }

    #[test]
    fn poison_never_passes() {
        let loose = Tolerance { relative_l2: 1e30, worst_element: 1e30, log_sum_exp: 1e30 };
        for poison in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(errors(&[1.0, poison], &[1.0, 2.0]).within(&loose).is_err());
            assert!(errors(&[1.0, 2.0], &[1.0, poison]).within(&loose).is_err());
            assert!(errors(&[poison], &[poison]).within(&loose).is_err());
        }
        let nan = Errors { relative_l2: f64::NAN, worst_element: 0.0, worst_index: 0 };
        assert!(nan.within(&loose).is_err());
    }

    #[test]
    fn what_is_not_finite_must_be_the_same() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let of = |actual: &[f64], expected: &[f64]| {
            errors_beside_nonfinite(actual, expected).map(|errors| errors.worst_element)
        };
        assert_eq!(of(&[nan, inf, 4.5], &[nan, inf, 4.0]).unwrap(), 0.125);
        assert_eq!(of(&[nan, nan], &[nan, 1.0]).unwrap(), inf);
        assert!(of(&[1.0, 1.0], &[nan, 1.0]).is_err());
        assert!(of(&[-inf, 1.0], &[inf, 1.0]).is_err());
        assert!(of(&[1.0], &[1.0]).is_err());
    }

    #[test]
    fn one_wrong_element_fails_even_where_l2_hides_it() {
        let expected = vec![1.0; 1_000_000];
        let mut actual = expected.clone();
        actual[777] = 1.1;
        let errors = errors(&actual, &expected);
        let tolerance = Tolerance::for_dtype(DType::F16);
        assert!(errors.relative_l2 <= tolerance.relative_l2);
        assert_eq!(errors.worst_index, 777);
        assert!(errors.within(&tolerance).is_err());
    }

    #[test]
    fn a_reference_of_zeros_wants_zeros() {
        let tolerance = Tolerance::for_dtype(DType::F32);
        assert!(errors(&[0.0, -0.0], &[0.0, 0.0]).within(&tolerance).is_ok());
        assert!(errors(&[0.0, 1e-3], &[0.0, 0.0]).within(&tolerance).is_err());
        assert!(errors(&[], &[]).within(&tolerance).is_ok());
    }

    #[test]
    fn log_sum_exp_must_agree_on_dead_rows() {
        let inf = f64::NEG_INFINITY;
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY, 1.0], &[inf, 1.0], 1e-6).unwrap(), 0.0);
        assert!(log_sum_exp(&[-1e30], &[inf], 1e-6).is_err());
        assert!(log_sum_exp(&[f32::NEG_INFINITY], &[0.0], 1e-6).is_err());
        assert!(log_sum_exp(&[f32::NAN], &[0.0], 1e-6).is_err());
        assert!(log_sum_exp(&[f32::NAN], &[inf], 1e-6).is_err());
        // Relative above magnitude 1, absolute below.
        assert!(log_sum_exp(&[100.005], &[100.0], 1e-4).is_ok());
        assert!(log_sum_exp(&[0.005], &[0.0], 1e-4).is_err());
    }
}
