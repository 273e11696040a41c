use proptest::prelude::*;

use super::*;

fn violation(device: &Capabilities, launch: Launch) -> Option<LaunchViolation> {
    launch.violation(device, 512, 48 << 10)
}

#[test]
fn what_can_run_is_not_refused() {
    let h200 = Capabilities::h200();
    for launch in [
        Launch::new([1, 1, 1], [1, 1, 1]),
        Launch::new([i32::MAX as u32, 65_535, 65_535], [8, 1, 64]).shared_bytes(48 << 10),
        Launch::new([6, 4, 1], [512, 1, 1]).cluster([2, 4, 1]).pdl(),
        Launch::new([132, 1, 1], [128, 1, 1]).cooperative(),
    ] {
        assert_eq!(violation(&h200, launch), None, "{launch:?}");
    }
}

#[test]
fn every_rule_is_told_with_its_numbers() {
    let h200 = Capabilities::h200();
    let base = Launch::new([4, 1, 1], [32, 1, 1]);
    let told = |device: &Capabilities, launch| violation(device, launch).unwrap().to_string();
    let lines = [
        told(&h200, Launch::new([0, 1, 1], [32, 1, 1])),
        told(&h200, Launch::new([1, 1, 1], [32, 0, 1])),
        told(&h200, Launch::new([1, 65_536, 1], [32, 1, 1])),
        told(&h200, Launch::new([1, 1, 1], [1024, 1, 1])),
        told(&h200, Launch::new([1, 1, 1], [1, 1, 65])),
        told(&h200, base.shared_bytes(50_000)),
        told(&h200, base.cluster([3, 1, 1])),
        told(&h200, base.cluster([0, 1, 1])),
        told(&h200, Launch::new([32, 1, 1], [32, 1, 1]).cluster([32, 1, 1])),
        told(&Capabilities::a100(), base.cluster([2, 1, 1])),
        told(&Capabilities::a100(), base.pdl()),
    ];
    insta::assert_snapshot!(lines.join("\n"), @r"
    grid [0, 1, 1] has a zero; do not launch what has no work
    block [32, 0, 1] has a zero; do not launch what has no work
    grid [1, 65536, 1] is larger than [2147483647, 65535, 65535]
    block [1024, 1, 1] has 1024 threads, the kernel allows 512; lower the block or set __launch_bounds__
    block [1, 1, 65] has 65 threads, the kernel allows 512; lower the block or set __launch_bounds__
    50000 bytes of dynamic shared memory, the function was loaded for 49152; load it with Module::function_with_shared
    grid [4, 1, 1] is not a whole number of clusters [3, 1, 1]
    cluster [0, 1, 1] has a zero; do not launch what has no work
    cluster [32, 1, 1] has 32 blocks, at most 16 are possible
    a cluster needs compute capability 9.0, this device has 8.0
    programmatic dependent launch needs compute capability 9.0, this device has 8.0
    ");
}

#[test]
fn sizes_that_overflow_are_refused() {
    let huge = [u32::MAX; 3];
    assert!(matches!(
        violation(&Capabilities::h200(), Launch::new([1, 1, 1], huge)),
        Some(LaunchViolation::BlockTooLarge { threads: u64::MAX, .. })
    ));
    assert!(matches!(
        violation(&Capabilities::h200(), Launch::new(huge, [1, 1, 1])),
        Some(LaunchViolation::GridTooLarge { .. })
    ));
}

#[test]
fn arguments_keep_their_order_beyond_the_inline_ones() {
    let values: Vec<u32> = (0..40).collect();
    for count in [0, 1, 15, 16, 17, 18, 40] {
        let arguments = values[..count].iter().fold(KernelArgs::new(), |arguments, value| arguments.arg(value));
        assert_eq!(arguments.len(), count);
        for (index, value) in values[..count].iter().enumerate() {
            // SAFETY: the list has as many pointers as arguments, each to a live u32.
            let found = unsafe { *(*arguments.as_ptr().add(index)).cast::<u32>() };
            assert_eq!(found, *value);
        }
    }
}

#[test]
fn reductions_that_do_not_fit_are_refused() {
    let h200 = Capabilities::h200();
    let refused = |rows, shared| match reduction_launch_config(&h200, rows, 4096, shared) {
        Err(Error::InvalidLaunch { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(0, 4), LaunchViolation::ZeroDimension { .. }));
    assert_eq!(refused(1 << 31, 4), LaunchViolation::TooManyRows { rows: 1 << 31 });
    assert_eq!(
        refused(1, 256),
        LaunchViolation::SharedBeyondDevice { asked: 262_144, fixed: 0, limit: h200.shared_bytes_per_block }
    );
    assert!(matches!(refused(1, usize::MAX), LaunchViolation::SharedBeyondDevice { .. }));
}

proptest! {
    #[test]
    fn reduction_blocks_are_powers_of_two_that_fit(
        rows in 1usize..1 << 31, row_len in 0usize..1 << 20, per_thread in 0usize..200, threads in 32u32..=1024,
    ) {
        let device = Capabilities { threads_per_block: threads, ..Capabilities::a100() };
        let launch = match reduction_launch_config(&device, rows, row_len, per_thread) {
            Ok(launch) => launch,
            // Refused only where a block as large as the row needs does not fit.
            Err(Error::InvalidLaunch { why: LaunchViolation::SharedBeyondDevice { asked, limit, .. }, .. }) => {
                let needed = row_len.next_power_of_two().clamp(32, 1 << threads.ilog2());
                prop_assert_eq!((asked, limit), (needed * per_thread, device.shared_bytes_per_block));
                prop_assert!(asked > limit);
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(format!("{other}"))),
        };
        let block = launch.block[0];
        prop_assert!(block.is_power_of_two() && (32..=threads).contains(&block));
        prop_assert!(block as usize <= row_len.next_power_of_two().max(32));
        prop_assert_eq!(launch.shared_bytes as usize, block as usize * per_thread);
        prop_assert!(launch.shared_bytes as usize <= device.shared_bytes_per_block);
        prop_assert_eq!(launch.violation(&device, threads, launch.shared_bytes), None);
    }
}
