//! GPU memory that is given back and used again.

use overspill_machine::Error;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;

use crate::test_gpu::TestGpu;

const MIB: u64 = 1 << 20;

#[test]
fn memory_that_is_given_back_is_used_again_within_the_limit() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let device = gpu.driver.device(0, 64 * MIB).unwrap();
    device.keep_freed_memory(32 * MIB);
    let made = || gpu.statistics().allocations_made;
    drop(DeviceBuffer::new(&device, 10 * MIB).unwrap());
    let before = made();
    // Of about that size, it is what was there.
    let again = DeviceBuffer::new(&device, 10 * MIB - 1000).unwrap();
    assert_eq!((made(), again.bytes()), (before, 10 * MIB - 1000));
    drop(again);
    assert_eq!((device.memory_held(), gpu.statistics().device_bytes), (0, 10 * MIB));
    // What is kept makes room, and is given back to the driver.
    let all = DeviceBuffer::new(&device, 64 * MIB).unwrap();
    assert_eq!(gpu.statistics().device_bytes, 64 * MIB);
    let refused = DeviceBuffer::new(&device, 1).unwrap_err();
    assert!(matches!(refused, Error::OverBudget { bytes: 1, .. }), "{refused}");
    // More than is kept at all.
    drop(all);
    assert_eq!(gpu.statistics().device_bytes, 0);
    // At most so much is kept, the latest of it.
    let buffers: Vec<_> = (0..6).map(|_| DeviceBuffer::new(&device, 8 * MIB).unwrap()).collect();
    drop(buffers);
    assert_eq!(gpu.statistics().device_bytes, 32 * MIB);
    device.keep_freed_memory(0);
    assert_eq!(gpu.statistics().device_bytes, 0);
}

#[test]
fn memory_that_may_be_in_use_is_not_kept() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let device = gpu.driver.device(0, 64 * MIB).unwrap();
    device.keep_freed_memory(32 * MIB);
    let stream = Stream::new(&device).unwrap();
    let mut filled = DeviceBuffer::new(&device, MIB).unwrap();
    filled.fill(&stream, 7).unwrap();
    drop(filled);
    assert_eq!(gpu.statistics().device_bytes, 0);
}

#[test]
fn what_is_kept_goes_with_the_device() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let before = gpu.held();
    let device = gpu.driver.device(0, 64 * MIB).unwrap();
    device.keep_freed_memory(32 * MIB);
    drop(DeviceBuffer::new(&device, MIB).unwrap());
    assert_ne!(gpu.held(), before);
    drop(device);
    assert_eq!(gpu.held(), before);
}

#[test]
fn parts_are_read_and_copied() {
    let gpu = TestGpu::start();
    let device = gpu.driver.device(0, 64 * MIB).unwrap();
    let stream = Stream::new(&device).unwrap();
    let from = DeviceBuffer::from_slice(&stream, &(0..1000_u64).collect::<Vec<_>>()).unwrap();
    let mut to = DeviceBuffer::from_slice(&stream, &[u64::MAX; 10]).unwrap();
    to.copy_at(&stream, 16, from.view().slice(800, 24).unwrap()).unwrap();
    to.copy_at(&stream, 80, from.view().slice(0, 0).unwrap()).unwrap();
    let mut part = [0; 5];
    to.read_at(&stream, 8, &mut part).unwrap();
    assert_eq!(part, [u64::MAX, 100, 101, 102, u64::MAX]);
    // Nothing goes beyond the end.
    assert!(to.copy_at(&stream, 64, from.view().slice(0, 24).unwrap()).is_err());
    assert!(to.read_at(&stream, 48, &mut part).is_err());
    assert!(to.read_at(&stream, u64::MAX, &mut part).is_err());
}
