//! Element types, as the problem, the products and the kernels call them.

use cuattn_core::{BiasKind, DType, Reason};
use cuattn_kernels::softmax;
use curt_blaslt::ElementType;

/// One element type by its two other names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    pub(crate) blas: ElementType,
    pub(crate) kernel: softmax::Element,
}

impl Element {
    pub(crate) fn of(dtype: DType) -> Result<Self, Reason> {
        let (blas, kernel) = match dtype {
            DType::F32 => (ElementType::F32, softmax::Element::F32),
            DType::F16 => (ElementType::F16, softmax::Element::F16),
            DType::Bf16 => (ElementType::Bf16, softmax::Element::Bf16),
            other => {
                let feature = format!("{other} tensors");
                return Err(Reason::unsupported(feature, "phase2a", "convert them to f16, bf16 or f32"));
            }
        };
        Ok(Self { blas, kernel })
    }

    /// The kernels' name for a bias of a problem of this type.
    pub(crate) fn bias(self, kind: Option<BiasKind>) -> softmax::BiasKind {
        match kind {
            None => softmax::BiasKind::None,
            Some(BiasKind::Boolean) => softmax::BiasKind::Boolean,
            Some(BiasKind::Additive(DType::F32)) => softmax::BiasKind::F32,
            Some(BiasKind::Additive(_)) => softmax::BiasKind::Element,
        }
    }
}
