//! Why there is no plan.

use std::fmt;

use cuattn_core::{PlanError, Refusal};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem is not legal, whoever computes it.
    #[error("this is not a legal attention problem; {0}")]
    Illegal(Refusal),
    /// The problem is legal, but no engine that the policy allows does it.
    #[error("no engine that the policy allows does this problem{}", Listed(.refused))]
    NoEngine {
        /// Each engine that was asked, with every reason.
        refused: Vec<Refusal>,
    },
    /// The runtime failed: compilation, a library, memory, a plan made during capture.
    #[error(transparent)]
    Runtime(#[from] curt::Error),
}

impl Error {
    /// Every refusal behind this error.
    pub fn refusals(&self) -> &[Refusal] {
        match self {
            Self::Illegal(refusal) => std::slice::from_ref(refusal),
            Self::NoEngine { refused } => refused,
            Self::Runtime(_) => &[],
        }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Runtime(error) => Self::Runtime(error),
            PlanError::Refused(refusal) => Self::NoEngine { refused: vec![refusal] },
            // The enum may grow; what it says then is a refusal in words.
            other => Self::Illegal(Refusal::from(cuattn_core::Reason::unsupported(
                "this problem",
                "the engine",
                other.to_string(),
            ))),
        }
    }
}

struct Listed<'a>(&'a [Refusal]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|refusal| write!(f, "\n{refusal}"))
    }
}
