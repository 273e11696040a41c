//! GPU architectures, as the compiler names them.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// A real architecture to compile for: `sm_80`, `sm_90a`, ….
///
/// ```
/// use curt::Arch;
///
/// assert_eq!(Arch::for_compute_capability(9, 0), Arch::SM_90A);
/// assert_eq!("sm_86".parse::<Arch>()?.to_string(), "sm_86");
/// # Ok::<(), curt::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    major: u8,
    minor: u8,
    features: Features,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Features {
    /// What later minor versions run too.
    Baseline,
    /// `f`: what the family of one major version shares.
    Family,
    /// `a`: what only this very architecture has, such as wgmma.
    Specific,
}

impl Arch {
    /// Ampere, A100.
    pub const SM_80: Self = Self::new(8, 0, Features::Baseline);
    /// Ampere, GeForce 30 and A10.
    pub const SM_86: Self = Self::new(8, 6, Features::Baseline);
    /// Ada, GeForce 40 and L4.
    pub const SM_89: Self = Self::new(8, 9, Features::Baseline);
    /// Hopper with wgmma: H100, H200.
    pub const SM_90A: Self = Self::new(9, 0, Features::Specific);
    /// Blackwell, B200.
    pub const SM_100: Self = Self::new(10, 0, Features::Baseline);
    /// Blackwell, GeForce 50.
    pub const SM_120: Self = Self::new(12, 0, Features::Baseline);

    const fn new(major: u8, minor: u8, features: Features) -> Self {
        Self { major, minor, features }
    }

    /// What to compile for on a device of this compute capability.
    pub const fn for_compute_capability(major: u32, minor: u32) -> Self {
        let features = if major == 9 && minor == 0 { Features::Specific } else { Features::Baseline };
        Self::new(major as u8, minor as u8, features)
    }

    /// The compute capability, such as (9, 0).
    pub const fn compute_capability(self) -> (u32, u32) {
        (self.major as u32, self.minor as u32)
    }

    /// The number in the name: 90 for `sm_90a`. `__CUDA_ARCH__` is ten times this.
    pub const fn number(self) -> u32 {
        self.major as u32 * 10 + self.minor as u32
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.features {
            Features::Baseline => "",
            Features::Family => "f",
            Features::Specific => "a",
        };
        write!(f, "sm_{}{suffix}", self.number())
    }
}

impl FromStr for Arch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = || Error::InvalidArch { text: text.to_owned() };
        let name = text.strip_prefix("sm_").ok_or_else(refused)?;
        let (digits, features) = match name.as_bytes().last() {
            Some(b'a') => (&name[..name.len() - 1], Features::Specific),
            Some(b'f') => (&name[..name.len() - 1], Features::Family),
            _ => (name, Features::Baseline),
        };
        if !(2..=3).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused());
        }
        let number: u8 = digits.parse().map_err(|_| refused())?;
        Ok(Self::new(number / 10, number % 10, features))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for arch in [Arch::SM_80, Arch::SM_86, Arch::SM_89, Arch::SM_90A, Arch::SM_100, Arch::SM_120] {
            assert_eq!(arch.to_string().parse::<Arch>().unwrap(), arch);
        }
        assert_eq!(Arch::SM_120.compute_capability(), (12, 0));
        assert_eq!("sm_100f".parse::<Arch>().unwrap().to_string(), "sm_100f");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "sm_", "sm_9", "sm_90ab", "compute_90", "sm_+9", "sm_999", "sm_ü", "90a"] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
        insta::assert_snapshot!(
            "compute_90".parse::<Arch>().unwrap_err(),
            @r"
        `compute_90` is not an architecture
          fix: write it like sm_80, sm_90a or sm_120
        "
        );
    }
}
