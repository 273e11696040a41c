//! The runtime's own rules, on a driver in C that counts its calls. What a real driver does is for the GPU suites.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::*;
use crate::driver::tests::Fake;
use crate::error::LaunchViolation;
use crate::module::FunctionOptions;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting by thread.
struct Counting;

// SAFETY: everything is passed to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations_of_this_thread() -> u64 {
    ALLOCATIONS.get()
}

fn runtime_on(fake: &Fake) -> Runtime {
    let core = Core::of_device(fake.driver, 0, RuntimeOptions::RETAINED_BYTES).unwrap();
    Runtime::assemble(core, RuntimeOptions::new().without_disk_cache())
}

fn module(runtime: &Runtime) -> Module {
    // SAFETY: the fake driver looks at the first byte only.
    unsafe { runtime.load_image("fake", b"image") }.unwrap()
}

#[test]
fn what_a_runtime_owns_it_gives_back_once() {
    let Some(fake) = Fake::new("what_a_runtime_owns_it_gives_back_once") else { return };
    let runtime = runtime_on(&fake);
    assert_eq!(runtime.capabilities().name, "Fake GPU");
    assert_eq!(runtime.capabilities().arch(), crate::Arch::SM_90A);
    let buffer = runtime.alloc(100).unwrap();
    let function = module(&runtime).function("k").unwrap();
    let clone = runtime.clone();
    drop(runtime);
    drop(clone);
    assert_eq!(fake.get("streams_destroyed"), 0, "a buffer and a function are left");
    drop(buffer);
    drop(function);
    assert_eq!((fake.get("frees"), fake.get("unloads")), (1, 1));
    assert_eq!((fake.get("streams_destroyed"), fake.get("contexts_released"), fake.get("pools_destroyed")), (1, 1, 1));
}

#[test]
fn what_is_foreign_is_never_destroyed() {
    let Some(fake) = Fake::new("what_is_foreign_is_never_destroyed") else { return };
    let of_raw = |context: usize, stream: usize| {
        let (context, stream) = (std::ptr::without_provenance_mut(context), std::ptr::without_provenance_mut(stream));
        // SAFETY: the fake driver takes any handle.
        unsafe { Core::of_raw(fake.driver, context, stream, 0) }
    };
    let context_of = |core: Core| Runtime::assemble(core, RuntimeOptions::new()).context_handle().addr();
    assert_eq!(context_of(of_raw(0xd0, 0x5000).unwrap()), 0xd0);
    assert_eq!(context_of(of_raw(0, 0x5000).unwrap()), 0xf0, "the stream's context");
    // Dropping a runtime left its context current; the default stream's is the current one.
    assert_eq!(context_of(of_raw(0, 0).unwrap()), 0xf0);
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| of_raw(0, 1).map(drop)).join().unwrap());
    insta::assert_snapshot!(elsewhere.unwrap_err(), @r"
    no CUDA context: the default stream was given, and no context is current on this thread
      fix: pass the context that owns the stream, or make one current on this thread first
    ");
    assert_eq!((fake.get("streams_destroyed"), fake.get("contexts_released")), (0, 0));
    assert_eq!(fake.get("pools_destroyed"), 3, "the pools are ours");
}

#[test]
fn one_tebibyte_is_out_of_memory_and_the_runtime_goes_on() {
    let Some(fake) = Fake::new("one_tebibyte_is_out_of_memory_and_the_runtime_goes_on") else { return };
    let runtime = runtime_on(&fake);
    let error = runtime.alloc(1 << 40).unwrap_err();
    insta::assert_snapshot!(error, @r"
    out of device memory: asked for 1099511627776 bytes, 34359738368 of 137438953472 are free
      fix: free buffers, or make the problem smaller
    ");
    assert_eq!(fake.get("trims"), 1, "what the pool keeps is given back before giving up");
    let buffer = runtime.alloc(1000).unwrap();
    assert_eq!((buffer.len(), runtime.memory_stats().used_bytes), (1000, 1000));
    drop(buffer);
    let stats = runtime.memory_stats();
    assert_eq!((stats.allocations, stats.used_bytes, stats.peak_used_bytes), (1, 0, 1000));
}

#[test]
fn sizes_are_checked_before_the_driver_sees_them() {
    let Some(fake) = Fake::new("sizes_are_checked_before_the_driver_sees_them") else { return };
    let runtime = runtime_on(&fake);
    insta::assert_snapshot!(runtime.alloc_array::<u64>(usize::MAX / 2).unwrap_err(), @r"
    allocation of device memory overflows: 9223372036854775807 x 8 bytes
      fix: no such size can be allocated; check the shape
    ");
    assert!(matches!(runtime.alloc(usize::MAX), Err(Error::SizeOverflow { .. })));
    assert!(matches!(runtime.alloc_pinned(usize::MAX), Err(Error::SizeOverflow { .. })));
    let nothing = runtime.alloc(0).unwrap();
    assert!(nothing.ptr().is_null() && nothing.read::<f32>().unwrap().is_empty());
    drop(nothing);
    assert_eq!((fake.get("allocations"), fake.get("frees")), (0, 0));
}

#[test]
fn a_device_without_pools_allocates_plainly() {
    let Some(fake) = Fake::new("a_device_without_pools_allocates_plainly") else { return };
    fake.set("pools", 0);
    let runtime = runtime_on(&fake);
    drop(runtime.alloc(10).unwrap());
    assert_eq!((fake.get("plain_allocations"), fake.get("frees")), (1, 1));
    assert_eq!(runtime.memory_stats().pool_hits, 0);
}

#[test]
fn a_capture_refuses_before_the_driver_is_asked_and_ends_cleanly() {
    let Some(fake) = Fake::new("a_capture_refuses_before_the_driver_is_asked_and_ends_cleanly") else { return };
    let runtime = runtime_on(&fake);
    let buffer = runtime.alloc(8).unwrap();
    let event = runtime.event().unwrap();
    let refused = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::Capturing { .. })), "{outcome:?}");
    let graph = runtime.capture(|runtime| -> Result<()> {
        assert!(runtime.is_capturing()?);
        refused(runtime.alloc(1).map(drop));
        refused(runtime.alloc(0).map(drop));
        refused(runtime.alloc_pinned(1).map(drop));
        refused(runtime.upload(&[1u8]).map(drop));
        refused(runtime.load(&ModuleSource::new("k.cu", "")).map(drop));
        // SAFETY: it is refused.
        refused(unsafe { runtime.load_image("k", b"image") }.map(drop));
        refused(runtime.synchronize());
        refused(runtime.trim(0));
        refused(runtime.blas_workspace().map(drop));
        refused(buffer.read::<u8>().map(drop));
        refused(buffer.write(&[1u8]));
        refused(event.synchronize());
        refused(event.is_done().map(drop));
        refused(runtime.capture(|_| -> Result<()> { Ok(()) }).map(drop));
        buffer.fill(1)
    });
    assert_eq!(graph.unwrap().node_count(), 3);
    assert_eq!((fake.get("violations"), fake.get("graphs_destroyed")), (0, 1));

    let failed = runtime.capture(|runtime| runtime.synchronize());
    insta::assert_snapshot!(failed.unwrap_err(), @r"
    synchronisation is not possible while the stream is being captured into a graph
      fix: do it before the capture begins
    ");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.capture(|_| -> Result<()> { panic!("in the captured work") })
    }));
    assert!(panicked.is_err());
    assert_eq!((fake.get("capturing"), fake.get("graphs_destroyed")), (0, 3));

    let broken = runtime.capture(|_| -> Result<()> {
        fake.set("capturing", 2);
        Ok(())
    });
    insta::assert_snapshot!(broken.unwrap_err(), @r"
    the capture was invalidated: CUDA_ERROR_FAKE (901)
      fix: something in the capture cannot be captured: a call into another library that allocates or synchronises, or work that waits for another stream
    ");
    assert_eq!(fake.get("capturing"), 0);
    runtime.synchronize().unwrap();
}

#[test]
fn what_is_dropped_in_a_capture_is_freed_after_it() {
    let Some(fake) = Fake::new("what_is_dropped_in_a_capture_is_freed_after_it") else { return };
    let runtime = runtime_on(&fake);
    let (first, second) = (runtime.alloc(1).unwrap(), runtime.alloc(1).unwrap());
    let pinned = runtime.alloc_pinned(100).unwrap();
    assert!(matches!(runtime.alloc_pinned(1 << 20), Err(Error::OutOfHostMemory { asked: 1_048_576 })));
    let graph = runtime.capture(|_| -> Result<()> {
        drop(pinned);
        Ok(())
    });
    drop(graph.unwrap());
    assert_eq!((fake.get("pinned_frees"), fake.get("violations")), (0, 0));
    drop(runtime.alloc_pinned(1).unwrap());
    assert_eq!(fake.get("pinned_frees"), 2);
    let capture = |buffer| {
        let graph = runtime.capture(|_| -> Result<()> {
            drop(buffer);
            Ok(())
        });
        drop(graph.unwrap());
    };
    capture(first);
    assert_eq!((fake.get("frees"), fake.get("violations")), (0, 0));
    runtime.synchronize().unwrap();
    assert_eq!(fake.get("frees"), 1);
    capture(second);
    drop(runtime);
    assert_eq!((fake.get("frees"), fake.get("violations")), (2, 0));
}

#[test]
fn the_context_is_set_only_when_another_is_current() {
    let Some(fake) = Fake::new("the_context_is_set_only_when_another_is_current") else { return };
    let runtime = runtime_on(&fake);
    let function = module(&runtime).function("k").unwrap();
    let before = fake.get("binds");
    for _ in 0..10 {
        // SAFETY: the fake driver runs nothing.
        unsafe { runtime.launch(&function, &Launch::new([1, 1, 1], [1, 1, 1]), &KernelArgs::new()) }.unwrap();
    }
    assert_eq!(fake.get("binds"), before);
    std::thread::scope(|scope| scope.spawn(|| runtime.bind().unwrap()).join().unwrap());
    assert_eq!(fake.get("binds"), before + 1);
}

#[test]
fn a_launch_takes_no_heap_memory() {
    let Some(fake) = Fake::new("a_launch_takes_no_heap_memory") else { return };
    let runtime = runtime_on(&fake);
    let function = module(&runtime).function("k").unwrap();
    let launch = Launch::new([2, 1, 1], [32, 1, 1]).cluster([2, 1, 1]).pdl();
    let value = 1u64;
    let before = allocations_of_this_thread();
    // SAFETY: the fake driver runs nothing.
    unsafe { runtime.launch(&function, &launch, &KernelArgs::new().arg(&value).arg(&value)) }.unwrap();
    assert_eq!(allocations_of_this_thread(), before);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations_of_this_thread(), before + 1, "the count counts");
}

#[test]
fn a_launch_reaches_the_driver_as_it_was_asked_for() {
    let Some(fake) = Fake::new("a_launch_reaches_the_driver_as_it_was_asked_for") else { return };
    let runtime = runtime_on(&fake);
    let options = FunctionOptions { shared_bytes: 100_000, non_portable_cluster: true };
    let function = module(&runtime).function_with("k", options).unwrap();
    assert_eq!(function.shared_limit(), 100_000);
    let launch = Launch::new([6, 8, 1], [32, 4, 2]).shared_bytes(70_000).cluster([2, 4, 1]).pdl().cooperative();
    let value = 5u32;
    // SAFETY: the fake driver runs nothing.
    unsafe { runtime.launch(&function, &launch, &KernelArgs::new().arg(&value)) }.unwrap();
    assert_eq!(fake.array::<7>("last_launch"), [6, 8, 1, 32, 4, 2, 70_000]);
    // Cluster (4) of 2, programmatic serialisation (6) on, cooperative (2) on.
    assert_eq!(fake.array::<8>("launch_attributes"), [4, 2, 6, 1, 2, 1, 0, 0]);

    // SAFETY: as above.
    let refused = unsafe { runtime.launch(&function, &launch.shared_bytes(100_001), &KernelArgs::new()) };
    insta::assert_snapshot!(
        refused.unwrap_err(),
        @"launch of `k` refused: 100001 bytes of dynamic shared memory, the function was loaded for 100000; load it with Module::function_with_shared"
    );
}

#[test]
fn shared_memory_is_checked_against_the_device() {
    let Some(fake) = Fake::new("shared_memory_is_checked_against_the_device") else { return };
    let runtime = runtime_on(&fake);
    let module = module(&runtime);
    // The fake's kernels have 1024 bytes of their own.
    assert_eq!(module.function("k").unwrap().shared_limit(), (48 << 10) - 1024);
    assert_eq!(module.function_with_shared("k", 232_448 - 1024).unwrap().shared_limit(), 232_448 - 1024);
    assert_eq!(module.function("k").unwrap().shared_limit(), 232_448 - 1024, "it only grows");
    match module.function_with_shared("k", 232_448 - 1023) {
        Err(Error::InvalidLaunch { why: LaunchViolation::SharedBeyondDevice { fixed: 1024, .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
    insta::assert_snapshot!(module.function("absent").unwrap_err(), @r#"
    module fake has no kernel `absent`
      fix: declare it extern "C" __global__, so that its name is not mangled
    "#);
    assert!(matches!(module.function("nul\0"), Err(Error::EntryMissing { .. })));
}

#[test]
fn a_module_that_the_driver_refuses_is_told_with_versions() {
    let Some(fake) = Fake::new("a_module_that_the_driver_refuses_is_told_with_versions") else { return };
    let runtime = runtime_on(&fake);
    // SAFETY: the fake driver looks at the first byte only.
    let error = unsafe { runtime.load_image("new.cu", b"X") }.unwrap_err();
    insta::assert_snapshot!(error, @r"
    the driver (CUDA 13.0) refused module new.cu for sm_90a: CUDA_ERROR_FAKE (200)
      fix: NVRTC must not be of a later major version than the driver: install one of CUDA 13, or update the driver
    ");
}

#[test]
fn tensor_maps_need_hopper_and_reach_the_driver_aligned() {
    use crate::tensor_map::{TensorMap, TensorMapType};
    let Some(fake) = Fake::new("tensor_maps_need_hopper_and_reach_the_driver_aligned") else { return };
    let map = TensorMap::builder(TensorMapType::F16, DevicePtr::new(0x100, 1 << 20))
        .dims(&[64, 64])
        .strides(&[128])
        .box_dims(&[64, 8]);
    assert!(bytemuck::bytes_of(&map.build(&runtime_on(&fake)).unwrap()).iter().all(|&byte| byte == 0x42));
    fake.set("major", 8);
    insta::assert_snapshot!(map.build(&runtime_on(&fake)).unwrap_err(), @r"
    tensor map refused:
      tensor maps need compute capability 9.0, this device has 8.0
    ");
}

#[test]
fn copies_are_checked_against_lengths() {
    let Some(fake) = Fake::new("copies_are_checked_against_lengths") else { return };
    let runtime = runtime_on(&fake);
    let buffer = runtime.alloc(10).unwrap();
    assert_eq!(buffer.read::<u8>().unwrap(), [7; 10]);
    insta::assert_snapshot!(buffer.write(&[0u32; 3]).unwrap_err(), @"copy to the device: bytes 0..12 reach past the end of 10 bytes");
    insta::assert_snapshot!(buffer.read::<u32>().unwrap_err(), @"10 bytes are not a whole number of 4-byte elements");
    // SAFETY: it is refused.
    assert!(unsafe { runtime.dtod(buffer.ptr(), buffer.ptr(), 11) }.is_err());
}

#[test]
fn everything_goes_between_threads() {
    fn between_threads<T: Send + Sync + 'static>() {}
    between_threads::<Runtime>();
    between_threads::<Module>();
    between_threads::<Function>();
    between_threads::<Event>();
    between_threads::<Graph>();
    between_threads::<GpuTimer>();
    between_threads::<DeviceBuffer>();
    between_threads::<PinnedBuffer>();
}
