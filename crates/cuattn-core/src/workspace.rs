//! Carving a workspace: sizes and pointers come from one description, so they cannot disagree.

use curt::DevicePtr;

use crate::{Reason, Refusal, WorkspaceSize};

/// Alignment of a workspace and of every region in it.
pub const WORKSPACE_ALIGN: usize = 256;

/// A part of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    offset: usize,
    bytes: usize,
}

impl Region {
    /// Bytes from the workspace's first byte to this region's.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes of the region, as they were asked for.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// This region of a workspace that [`Layout::check`] accepts; a null pointer of length 0 where it does not reach
    /// that far.
    pub fn of(&self, workspace: DevicePtr) -> DevicePtr {
        match self.offset.checked_add(self.bytes) {
            Some(end) if end <= workspace.len() => DevicePtr::new(workspace.address() + self.offset as u64, self.bytes),
            _ => DevicePtr::default(),
        }
    }
}

/// The regions of a workspace, one after another, each aligned to [`WORKSPACE_ALIGN`] bytes.
///
/// ```
/// use cuattn_core::{Layout, WorkspaceSize};
/// use curt::DevicePtr;
/// let mut layout = Layout::new();
/// let scores = layout.push(1000)?;
/// let partials = layout.push_array(3, 4)?;
/// assert_eq!(layout.size(), WorkspaceSize { bytes: 1280, align: 256 });
///
/// let workspace = DevicePtr::new(0x1_0000, 1280);
/// layout.check(workspace)?;
/// assert_eq!(scores.of(workspace), DevicePtr::new(0x1_0000, 1000));
/// assert_eq!(partials.of(workspace), DevicePtr::new(0x1_0400, 12));
/// # Ok::<(), cuattn_core::Refusal>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    bytes: usize,
}

impl Layout {
    /// No region yet.
    pub const fn new() -> Self {
        Self { bytes: 0 }
    }

    /// Adds a region of `bytes`; 0 is legal.
    ///
    /// # Errors
    ///
    /// [`Reason::SizeOverflow`] where the total no longer fits a `usize`.
    pub fn push(&mut self, bytes: usize) -> Result<Region, Refusal> {
        let region = Region { offset: self.bytes, bytes };
        self.bytes = bytes
            .checked_next_multiple_of(WORKSPACE_ALIGN)
            .and_then(|padded| self.bytes.checked_add(padded))
            .ok_or(Reason::SizeOverflow { what: "the workspace" })?;
        Ok(region)
    }

    /// Adds a region for `count` elements of `element_bytes`.
    ///
    /// # Errors
    ///
    /// [`Reason::SizeOverflow`] as for [`Layout::push`].
    pub fn push_array(&mut self, count: usize, element_bytes: usize) -> Result<Region, Refusal> {
        self.push(count.checked_mul(element_bytes).ok_or(Reason::SizeOverflow { what: "the workspace" })?)
    }

    /// What a workspace must have. Every region is padded to a multiple of [`WORKSPACE_ALIGN`], the last one too.
    pub const fn size(&self) -> WorkspaceSize {
        WorkspaceSize { bytes: self.bytes, align: WORKSPACE_ALIGN }
    }

    /// Whether `workspace` is large enough and aligned.
    ///
    /// # Errors
    ///
    /// [`Reason::WorkspaceTooSmall`] and [`Reason::WorkspaceMisaligned`].
    pub fn check(&self, workspace: DevicePtr) -> Result<(), Refusal> {
        let mut reasons = Vec::new();
        check_workspace(workspace, self.size(), &mut reasons);
        Refusal::unless_empty(reasons)
    }
}

pub(crate) fn check_workspace(workspace: DevicePtr, need: WorkspaceSize, reasons: &mut Vec<Reason>) {
    if need.bytes == 0 {
        return;
    }
    if workspace.len() < need.bytes {
        reasons.push(Reason::WorkspaceTooSmall { need: need.bytes, got: workspace.len() });
    }
    if need.align > 1 && !workspace.is_aligned(need.align) {
        reasons.push(Reason::WorkspaceMisaligned { address: workspace.address(), align: need.align });
    }
}
