//! Buffers over GPU and CPU memory: where their pages lie, and that kernels find what was written.

use std::sync::Arc;

use overspill_kernels::{Kernels, MemoryAccess, check_mapping};
use overspill_machine::driver::{Device, Stream};
use overspill_machine::memory::{
    DeviceBuffer, HostBuffer, Layout, Mapping, PageSize, Place, SpanningBuffer, SpanningLayout,
};
use overspill_machine::{Error, Result};

use crate::faults::each_fails_once;
use crate::test_gpu::TestGpu;

const STRIPE: u64 = 2 << 20;

fn layout(layout: Layout, stripes: u64, device_stripes: &[u64]) -> SpanningLayout {
    SpanningLayout {
        layout,
        bytes: stripes * STRIPE,
        device_bytes: device_stripes.iter().map(|share| share * STRIPE).collect(),
        stripe_bytes: STRIPE,
        node: 0,
    }
}

/// Where each stripe lies, as the driver sees it: `h` or the number of a device.
fn places(gpu: &TestGpu, buffer: &SpanningBuffer) -> String {
    let start = buffer.view().unwrap().address();
    (0..buffer.bytes().div_ceil(STRIPE))
        .map(|stripe| match gpu.place(start + stripe * STRIPE) {
            -1 => 'h',
            device => char::from(b'0' + u8::try_from(device).unwrap()),
        })
        .collect()
}

#[test]
fn pages_lie_as_asked() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let devices: Vec<Arc<Device>> = (0..3).map(|ordinal| gpu.driver.device(ordinal, 64 << 20).unwrap()).collect();
    let before = gpu.held();
    for (asked, expected) in [
        (layout(Layout::Greedy, 6, &[2]), "00hhhh"),
        (layout(Layout::Interleaved, 6, &[2]), "h0hh0h"),
        (layout(Layout::Interleaved, 8, &[4]), "0h0h0h0h"),
        (layout(Layout::Greedy, 5, &[2, 2]), "0011h"),
        (layout(Layout::Interleaved, 6, &[2, 2]), "01h01h"),
        (layout(Layout::GreedyInterleaved, 7, &[2, 2]), "0101hhh"),
        (layout(Layout::GreedyInterleaved, 6, &[2, 2, 2]), "012012"),
        (layout(Layout::Greedy, 2, &[9]), "00"),
        (layout(Layout::Interleaved, 3, &[0]), "hhh"),
    ] {
        let of = &devices[..asked.device_bytes.len()];
        let buffer = SpanningBuffer::new(of, &asked, Mapping::Contiguous).unwrap();
        assert_eq!(places(&gpu, &buffer), expected, "{asked:?}");
        for (number, segment) in buffer.segments().iter().enumerate() {
            let address = buffer.segment_view(number).unwrap().address();
            let place = match segment.place {
                Place::Host => -1,
                Place::Device(device) => i32::try_from(device).unwrap(),
            };
            assert_eq!(gpu.place(address), place);
            assert_eq!(gpu.place(address + segment.bytes - 1), place);
            assert_eq!(address - buffer.view().unwrap().address(), segment.offset);
        }
        for (device, digit) in of.iter().zip(["0", "1", "2"]) {
            assert_eq!(device.memory_held(), expected.matches(digit).count() as u64 * STRIPE);
        }
        drop(buffer);
        assert_eq!(gpu.held(), before);
        assert!(devices.iter().all(|device| device.memory_held() == 0));
    }
}

/// Writes, copies by a kernel from one buffer to another, and reads, over the bounds of stripes.
fn work(gpu: &TestGpu, mapping: Mapping) -> Result<()> {
    let device = gpu.driver.device(0, 64 << 20)?;
    let kernels = Kernels::load(&device)?;
    let stream = Stream::new(&device)?;
    let mut access = MemoryAccess::new(&kernels)?;
    let devices = [Arc::clone(&device)];
    let mut from = SpanningBuffer::new(&devices, &layout(Layout::Interleaved, 4, &[2]), mapping)?;
    let mut to = SpanningBuffer::new(&devices, &layout(Layout::Greedy, 4, &[1]), Mapping::Contiguous)?;
    let values: Vec<u64> = (0..4 * STRIPE / 8).map(|number| number * 3).collect();
    let cut = values.len() / 3;
    from.write(&stream, 0, &values[..cut])?;
    from.write(&stream, cut as u64 * 8, &values[cut..])?;
    let mut sum = 0u64;
    access.reset(&stream)?;
    for number in 0..from.segments().len() {
        let segment = from.segments()[number];
        let view = from.segment_view(number)?;
        // SAFETY: the sum below waits for the stream, or the buffer does when it is dropped.
        unsafe { access.read(&stream, view)? };
        access.copy(&stream, view, &mut to.view_mut()?.slice(segment.offset, segment.bytes)?)?;
        sum = access.sum(&stream)?;
    }
    assert_eq!(sum, values.iter().sum::<u64>(), "a wrong answer instead of an error");
    assert_eq!(to.read::<u64>(&stream, 8, values.len() - 1)?, values[1..], "a wrong answer instead of an error");
    Ok(())
}

#[test]
fn kernels_find_what_was_written() {
    let gpu = TestGpu::start();
    if !gpu.maps_host_pages() {
        return;
    }
    work(&gpu, Mapping::Contiguous).unwrap();
    work(&gpu, Mapping::TwoArrays).unwrap();
    check_mapping(&gpu.kernels(), 0).unwrap();
}

#[test]
fn failures_leave_nothing_mapped() {
    for mapping in [Mapping::Contiguous, Mapping::TwoArrays] {
        let work = |gpu: &TestGpu| work(gpu, mapping);
        each_fails_once("allocation", if mapping == Mapping::Contiguous { 7 } else { 5 }, work);
        each_fails_once("copy", 6, work);
        each_fails_once("registration", u64::from(mapping == Mapping::TwoArrays), work);
        each_fails_once("synchronisation", 5, work);
        each_fails_once("device_lost", 60, work);
    }
}

#[test]
fn gpus_share_a_range_where_no_cpu_pages_are_mapped() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    gpu.configure("host_pages=0");
    let devices: Vec<Arc<Device>> = (0..2).map(|ordinal| gpu.driver.device(ordinal, 64 << 20).unwrap()).collect();
    let new = |stripes| {
        SpanningBuffer::new(&devices, &layout(Layout::GreedyInterleaved, stripes, &[2, 2]), Mapping::Contiguous)
    };
    assert_eq!(places(&gpu, &new(4).unwrap()), "0101");
    let error = new(5).unwrap_err();
    assert!(error.to_string().contains("virtual memory management that maps CPU pages"), "{error}");
    gpu.configure("host_pages=1;peer_access=0");
    let error = new(4).unwrap_err();
    assert!(error.to_string().contains("giving access to mapped memory failed on GPU 0"), "{error}");
    assert!(devices.iter().all(|device| device.memory_held() == 0));
}

#[test]
fn parts_of_a_range_are_buffers_of_their_own() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let devices: Vec<Arc<Device>> = (0..2).map(|ordinal| gpu.driver.device(ordinal, 64 << 20).unwrap()).collect();
    let before = gpu.held();
    let stream = Stream::new(&devices[1]).unwrap();
    let asked = layout(Layout::GreedyInterleaved, 4, &[1, 2]);
    let whole = SpanningBuffer::new(&devices, &asked, Mapping::Contiguous).unwrap();
    let start = whole.view().unwrap().address();
    // Within the first stripe, and to its end; of the second part one byte, and the rest.
    let (mut first, rest) = whole.split_at(STRIPE - 8).unwrap();
    let (mut second, mut third) = rest.split_at(16).unwrap();
    for (part, offset, bytes, stretches) in
        [(&first, 0, STRIPE - 8, 1), (&second, STRIPE - 8, 16, 2), (&third, STRIPE + 8, 3 * STRIPE - 8, 3)]
    {
        let view = part.view().unwrap();
        assert_eq!((view.address() - start, view.bytes(), part.segments().len()), (offset, bytes, stretches));
        let within: u64 = part.segments().iter().map(|segment| segment.bytes).sum();
        assert_eq!((within, part.segments()[0].offset), (bytes, 0));
    }
    first.fill(&stream, 1).unwrap();
    third.fill(&stream, 3).unwrap();
    second.fill(&stream, 2).unwrap();
    assert!(first.read::<u8>(&stream, 0, STRIPE as usize - 8).unwrap().iter().all(|byte| *byte == 1));
    assert_eq!(second.read::<u8>(&stream, 0, 16).unwrap(), [2; 16]);
    assert!(third.read::<u8>(&stream, 0, 3 * STRIPE as usize - 8).unwrap().iter().all(|byte| *byte == 3));
    let (none, error) = (SpanningBuffer::split_at(second, 0).unwrap(), third.split_at(4 * STRIPE).unwrap_err());
    assert_eq!((none.0.bytes(), none.0.segments().len(), none.1.bytes()), (0, 0, 16));
    assert!(error.to_string().contains("do not lie within"), "{error}");
    // Pages come back with the last part.
    assert_eq!(devices[0].memory_held() + devices[1].memory_held(), 3 * STRIPE);
    drop((first, none, stream));
    assert!(devices.iter().all(|device| device.memory_held() == 0));
    assert_eq!(gpu.held(), before);
}

#[test]
fn two_arrays_take_the_place_of_one_range() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let device = [gpu.device()];
    let asked = layout(Layout::Interleaved, 5, &[2]);
    let buffer = SpanningBuffer::new(&device, &asked, Mapping::TwoArrays).unwrap();
    assert_eq!(buffer.mapping(), Mapping::TwoArrays);
    assert_eq!((buffer.bytes(), buffer.device_bytes()), (5 * STRIPE, 2 * STRIPE));
    let stretches: Vec<_> = buffer.segments().iter().map(|part| (part.offset, part.bytes, part.place)).collect();
    assert_eq!(stretches, [(0, 2 * STRIPE, Place::Device(0)), (2 * STRIPE, 3 * STRIPE, Place::Host)]);
    assert_eq!(gpu.place(buffer.segment_view(0).unwrap().address()), 0);
    assert_eq!(gpu.place(buffer.segment_view(1).unwrap().address()), -1);
    let error = buffer.view().unwrap_err();
    assert!(error.to_string().contains("one range of addresses"), "{error}");
    // What lies in one memory alone has one address all the same.
    let all = SpanningBuffer::new(&device, &layout(Layout::Greedy, 2, &[2]), Mapping::TwoArrays).unwrap();
    assert_eq!(all.view().unwrap().bytes(), 2 * STRIPE);
}

#[test]
fn ranges_are_kept_within_the_budgets() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let device = gpu.driver.device(0, 16 * STRIPE).unwrap();
    let devices = [Arc::clone(&device)];
    let stream = Stream::new(&device).unwrap();
    let mapped = || gpu.statistics().mappings_made;
    let used = |asked: &SpanningLayout, byte: u8| {
        let before = mapped();
        let mut buffer = SpanningBuffer::new(&devices, asked, Mapping::Contiguous).unwrap();
        assert_eq!(device.memory_held(), asked.device_bytes[0]);
        buffer.fill(&stream, byte).unwrap();
        let bytes = buffer.bytes() as usize;
        assert!(buffer.read::<u8>(&stream, 0, bytes).unwrap().iter().all(|found| *found == byte));
        drop(buffer);
        assert_eq!(device.memory_held(), 0);
        mapped() - before
    };
    // Without budgets nothing is kept.
    let mixed = layout(Layout::Interleaved, 6, &[2]);
    assert_eq!((used(&mixed, 1), used(&mixed, 2)), (5, 5));
    device.keep_freed_memory(8 * STRIPE);
    device.pinned_budget().set(8 * STRIPE as usize);
    assert_eq!((used(&mixed, 3), used(&mixed, 4)), (5, 0));
    // Another length within the last stripe is the same range; another order is not.
    let shorter = SpanningLayout { bytes: mixed.bytes - 100, ..mixed.clone() };
    assert_eq!(used(&shorter, 5), 0);
    let greedy = layout(Layout::Greedy, 6, &[2]);
    assert_eq!((used(&greedy, 6), used(&mixed, 7), used(&greedy, 8)), (2, 0, 0));
    // A third range exceeds the budget for CPU memory, and the one used longest ago makes room.
    let large = layout(Layout::Greedy, 7, &[1]);
    assert_eq!((used(&large, 9), used(&large, 10), used(&mixed, 11)), (2, 0, 5));
    // Of evenly mixed pages a few more will do, with as many of the device or fewer, but at least half of its share.
    let mixes = |stripes, share| layout(Layout::Interleaved, stripes, &[share]);
    let made_of = |asked: &SpanningLayout| {
        let before = mapped();
        let buffer = SpanningBuffer::new(&devices, asked, Mapping::Contiguous).unwrap();
        let segments = buffer.segments();
        assert_eq!(segments.iter().map(|segment| segment.bytes).sum::<u64>(), asked.bytes);
        assert!(buffer.device_bytes() <= asked.device_bytes[0] && device.memory_held() <= asked.device_bytes[0]);
        drop(buffer);
        mapped() - before
    };
    assert_eq!(
        (made_of(&mixes(5, 2)), made_of(&mixes(4, 2)), made_of(&mixes(6, 2))),
        (0, 0, 0),
        "6 pages, 2 of the GPU"
    );
    assert!(made_of(&mixes(2, 2)) > 0, "three times as many pages");
    assert!(made_of(&mixes(6, 1)) > 0, "more of the GPU's");
    assert!(made_of(&mixes(6, 5)) > 0, "less than half of the GPU's");
    assert!(made_of(&mixes(4, 4)) > 0, "of the GPU alone");
    device.keep_freed_memory(0);
    device.keep_freed_memory(8 * STRIPE);
    assert_eq!(used(&mixed, 12), 5);
    // Kept pages make room for other memory of the device.
    let all = DeviceBuffer::new(&device, 16 * STRIPE).unwrap();
    assert_eq!(gpu.statistics().device_bytes, 16 * STRIPE);
    drop(all);
    assert_eq!(used(&mixed, 13), 5);
    device.keep_freed_memory(0);
    assert_eq!((gpu.statistics().physical_pieces, gpu.statistics().address_ranges), (0, 0));
    assert_eq!(used(&mixed, 14), 5);
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let device = [gpu.driver.device(0, 3 * STRIPE).unwrap()];
    let new = |asked: &SpanningLayout, mapping| SpanningBuffer::new(&device, asked, mapping);
    let over = new(&layout(Layout::Greedy, 6, &[4]), Mapping::Contiguous).unwrap_err();
    assert!(matches!(over, Error::OverBudget { .. }), "{over}");
    assert_eq!(device[0].memory_held(), 0);
    let shares = new(&layout(Layout::Greedy, 6, &[1, 1]), Mapping::Contiguous).unwrap_err();
    assert!(matches!(shares, Error::Invalid(_)), "{shares}");
    let stripe = SpanningLayout { stripe_bytes: 64 << 20, ..layout(Layout::Greedy, 6, &[1]) };
    assert!(matches!(new(&stripe, Mapping::Contiguous).unwrap_err(), Error::Invalid(_)));
    let buffer = new(&layout(Layout::Greedy, 2, &[1]), Mapping::Contiguous).unwrap();
    let stream = Stream::new(&device[0]).unwrap();
    assert!(matches!(buffer.read::<u64>(&stream, 2 * STRIPE - 8, 2).unwrap_err(), Error::Invalid(_)));
    drop(buffer);
    // A driver without virtual memory management.
    gpu.configure("granularity=0");
    let device = [gpu.device()];
    let error = SpanningBuffer::new(&device, &layout(Layout::Greedy, 2, &[1]), Mapping::Contiguous).unwrap_err();
    assert!(error.to_string().contains("virtual memory management"), "{error}");
    assert!(check_mapping(&Kernels::load(&device[0]).unwrap(), 0).is_err());
    SpanningBuffer::new(&device, &layout(Layout::Greedy, 2, &[1]), Mapping::TwoArrays).unwrap();
}

#[test]
fn larger_pages_make_larger_stripes() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    gpu.configure("granularity=4194304");
    let device = [gpu.device()];
    let buffer = SpanningBuffer::new(&device, &layout(Layout::Interleaved, 8, &[4]), Mapping::Contiguous).unwrap();
    assert_eq!(places(&gpu, &buffer), "00hh00hh");
}

#[test]
fn an_empty_buffer_takes_nothing() {
    let gpu = TestGpu::start();
    let device = [gpu.device()];
    for mapping in [Mapping::Contiguous, Mapping::TwoArrays] {
        let before = gpu.held();
        let buffer = SpanningBuffer::new(&device, &layout(Layout::Greedy, 0, &[1]), mapping).unwrap();
        assert_eq!((buffer.bytes(), buffer.segments().len()), (0, 0));
        assert_eq!(buffer.view().unwrap().bytes(), 0);
        assert_eq!(gpu.held(), before);
    }
    assert_eq!(HostBuffer::new(0, PageSize::Small).unwrap().bytes(), 0);
}
