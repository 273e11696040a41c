//! How far results are from those in the file.

use std::fmt;

use cuattn::DType;

/// The distance of one tensor from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distance {
    /// L2 norm of the difference over that of what is right.
    pub(crate) relative: f64,
    /// Largest difference of an element.
    pub(crate) worst: f64,
    /// The element where it is.
    pub(crate) at: usize,
}

impl Distance {
    /// Elements that are alike, infinities included, are at distance 0; NaN is at an infinite one from everything.
    pub(crate) fn of(got: &[f64], want: &[f64]) -> Self {
        let (mut squares, mut norm, mut worst, mut at) = (0.0, 0.0, 0.0, 0);
        for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
            let difference = if got == want { 0.0 } else { (got - want).abs() };
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            squares += difference * difference;
            norm += if want.is_finite() { want * want } else { 0.0 };
            if difference > worst {
                (worst, at) = (difference, index);
            }
        }
        let relative = if squares == 0.0 { 0.0 } else { (squares / norm).sqrt() };
        Self { relative, worst, at }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "relative L2 {:.2e}, worst element {:.2e} (at {})", self.relative, self.worst, self.at)
    }
}

/// The relative L2 error that the contract allows.
pub(crate) const fn allowed(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        _ => 6e-3,
    }
}
