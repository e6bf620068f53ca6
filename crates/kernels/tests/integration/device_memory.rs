//! GPU memory that is given back and used again.

use overspill_machine::Error;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, DividedBuffer};

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
    to.copy_at(&stream, 16, &from, 800..824).unwrap();
    to.copy_at(&stream, 80, &from, 0..0).unwrap();
    let mut part = [0; 5];
    to.read_at(&stream, 8, &mut part).unwrap();
    assert_eq!(part, [u64::MAX, 100, 101, 102, u64::MAX]);
    // Nothing goes beyond the end.
    assert!(to.copy_at(&stream, 64, &from, 0..24).is_err());
    assert!(to.copy_at(&stream, 0, &from, 7992..8008).is_err());
    assert!(to.read_at(&stream, 48, &mut part).is_err());
    assert!(to.read_at(&stream, u64::MAX, &mut part).is_err());
}

#[test]
fn places_of_divided_memory_have_a_writer_each() {
    let gpu = TestGpu::start();
    let device = gpu.driver.device(0, 64 * MIB).unwrap();
    let stream = Stream::new(&device).unwrap();
    let from = DeviceBuffer::from_slice(&stream, &[1_u8, 2, 3, 4]).unwrap();
    let mut divided = DividedBuffer::new(DeviceBuffer::from_slice(&stream, &[9_u8; 10]).unwrap());
    let mut first = divided.take(3).unwrap();
    let (mut second, third) = divided.take(6).unwrap().split_at(2).unwrap();
    assert!(divided.take(2).is_err(), "one byte is left");
    assert_eq!([&first, &second, &third].map(|place| place.bytes()), [3, 2, 4]);
    // Nothing reaches the neighbours.
    assert!(first.write(&stream, &[0; 4]).is_err() && second.copy(&stream, &from, 0..3).is_err());
    assert!(second.copy(&stream, &from, 3..5).is_err(), "behind the end of the source");
    first.write(&stream, &[5, 6]).unwrap();
    second.copy(&stream, &from, 1..3).unwrap();
    drop((first, second));
    let error = divided.into_whole().unwrap_err().to_string();
    assert!(error.contains("still being written"), "{error}");
    assert!(third.split_at(5).is_err());
}

#[test]
fn a_copy_comes_from_another_gpu() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let (one, other) = (gpu.driver.device(0, MIB).unwrap(), gpu.driver.device(1, MIB).unwrap());
    let from = DeviceBuffer::from_slice(&Stream::new(&other).unwrap(), &[1_u8, 2, 3, 4]).unwrap();
    let stream = Stream::new(&one).unwrap();
    let mut divided = DividedBuffer::new(DeviceBuffer::from_slice(&stream, &[9_u8; 4]).unwrap());
    drop(divided.take(1).unwrap());
    let mut place = divided.take(3).unwrap();
    place.copy(&stream, &from, 2..4).unwrap();
    drop(place);
    assert_eq!(divided.into_whole().unwrap().read::<u8>(&stream, 4).unwrap(), [9, 3, 4, 9]);
}
