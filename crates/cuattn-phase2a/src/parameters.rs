//! What the kernels of this engine alone are told about a problem; the rest is in [`cuattn_core::lowering`].

use cuattn_core::ScoreStage;
use cuattn_kernels::softmax::Stage;

pub(crate) fn stage(stage: Option<ScoreStage>) -> Stage {
    match stage {
        None => Stage::None,
        Some(ScoreStage::Raw) => Stage::Raw,
        Some(ScoreStage::Softcapped) => Stage::Softcapped,
        Some(ScoreStage::Masked) => Stage::Masked,
        Some(ScoreStage::Probabilities) => Stage::Probabilities,
    }
}
