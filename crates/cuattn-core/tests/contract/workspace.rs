use cuattn_core::{Layout, Reason, WorkspaceSize};
use curt::DevicePtr;
use proptest::prelude::*;

proptest! {
    #[test]
    fn regions_are_aligned_apart_and_within(sizes in prop::collection::vec(0..5000usize, 0..12)) {
        let mut layout = Layout::new();
        let regions: Vec<_> = sizes.iter().map(|&bytes| layout.push(bytes).unwrap()).collect();
        let workspace = DevicePtr::new(0x4_0000, layout.size().bytes);
        prop_assert!(layout.check(workspace).is_ok());
        let mut end = workspace.address();
        for (region, bytes) in regions.iter().zip(sizes) {
            let carved = region.of(workspace);
            prop_assert_eq!(carved.len(), bytes);
            prop_assert_eq!(carved.address() % 256, 0);
            prop_assert!(carved.address() >= end);
            end = carved.address() + bytes as u64;
        }
        prop_assert!(end <= workspace.address() + workspace.len() as u64);
    }
}

#[test]
fn a_workspace_one_byte_short_or_off_is_refused() {
    let mut layout = Layout::new();
    layout.push(300).unwrap();
    assert_eq!(layout.size(), WorkspaceSize { bytes: 512, align: 256 });
    let reasons = layout.check(DevicePtr::new(0x1_0001, 511)).unwrap_err().reasons;
    let want = [
        Reason::WorkspaceTooSmall { need: 512, got: 511 },
        Reason::WorkspaceMisaligned { address: 0x1_0001, align: 256 },
    ];
    assert_eq!(reasons, want);
}

#[test]
fn a_region_beyond_the_end_is_null() {
    let mut layout = Layout::new();
    let region = layout.push(300).unwrap();
    assert!(region.of(DevicePtr::new(0x1_0000, 299)).is_null());
}

#[test]
fn sizes_that_overflow_are_refused() {
    let mut layout = Layout::new();
    layout.push(1).unwrap();
    for refusal in [layout.push(usize::MAX).unwrap_err(), layout.push_array(usize::MAX, 2).unwrap_err()] {
        assert_eq!(refusal.reasons, [Reason::SizeOverflow { what: "the workspace" }]);
    }
    assert_eq!(layout.size().bytes, 256, "a region that was refused takes no room");
}
