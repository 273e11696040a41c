//! Tensors of a launch: memory that somebody else owns.

use cuattn::curt::DevicePtr;

use crate::ElementType;

/// An input: where it is, of which type, and how it lies.
///
/// The address is of the memory of the [`Device`](crate::Device) that the kernel runs on; of host memory, where that is
/// the host.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Address and length in bytes.
    pub data: DevicePtr,
    /// Element type.
    pub element: ElementType,
    /// Extents.
    pub shape: &'a [usize],
    /// Element strides; `None` where it is contiguous. See
    /// [`Kernel::supports_strided_input`](crate::Kernel::supports_strided_input).
    pub strides: Option<&'a [i64]>,
}

impl<'a> TensorView<'a> {
    /// A contiguous tensor.
    pub const fn new(data: DevicePtr, element: ElementType, shape: &'a [usize]) -> Self {
        Self { data, element, shape, strides: None }
    }

    /// The same with strides.
    #[must_use]
    pub const fn with_strides(mut self, strides: &'a [i64]) -> Self {
        self.strides = Some(strides);
        self
    }
}

/// An output, contiguous: the shape that [`Kernel::outputs`](crate::Kernel::outputs) said.
#[derive(Clone, Copy, Debug)]
pub struct TensorMut {
    /// Address and length in bytes.
    pub data: DevicePtr,
}

/// Type and extents of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// Element type.
    pub element: ElementType,
    /// Extents.
    pub shape: Vec<usize>,
}

impl OutputSpec {
    /// Bytes of the contiguous tensor, where a machine can hold them.
    pub fn bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.element.size()?, |bytes, &extent| bytes.checked_mul(extent))
    }
}

/// Type, extents and strides of an input: what a plan depends on, without the address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    /// As the caller gave them, or those of a contiguous tensor.
    pub(crate) strides: Vec<i64>,
}

impl Layout {
    pub(crate) fn contiguous(element: ElementType, shape: &[usize]) -> Self {
        let mut strides = vec![1i64; shape.len()];
        for axis in (1..shape.len()).rev() {
            let extent = i64::try_from(shape[axis]).unwrap_or(i64::MAX);
            strides[axis - 1] = strides[axis].saturating_mul(extent);
        }
        Self { element, shape: shape.to_vec(), strides }
    }

    pub(crate) fn of(view: &TensorView<'_>) -> Self {
        let mut layout = Self::contiguous(view.element, view.shape);
        if let Some(strides) = view.strides {
            layout.strides = strides.to_vec();
        }
        layout
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let plain = Self::contiguous(self.element, &self.shape);
        let same = |axis: usize| self.shape[axis] == 1 || self.strides.get(axis) == plain.strides.get(axis);
        self.shape.contains(&0) || (0..self.shape.len()).all(same)
    }
}
