//! The measuring kernels do what they measure.

use overspill_kernels::{AccessPattern, GpuEffort, MemoryAccess, measure_gpu};
use overspill_machine::Error;
use overspill_machine::driver::Stream;
use overspill_machine::measure::{Chain, MeasuredMemory, Processor};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::transfer::{SourceMemory, TransferMethod};

use crate::faults::each_fails_once;
use crate::test_gpu::{TestGpu, scaled, seeds};

#[test]
fn reads_and_copies_are_whole() {
    let gpu = TestGpu::start();
    for (seed, length) in seeds().zip([2u64, 1000, 100_000].into_iter().cycle()) {
        gpu.schedule(seed);
        let kernels = gpu.kernels();
        let stream = Stream::new(kernels.device()).unwrap();
        let mut access = MemoryAccess::new(&kernels).unwrap();
        let length = scaled(length);
        let values: Vec<u64> = (0..length).map(|number| number * number + 1).collect();
        let from = DeviceBuffer::from_slice(&stream, &values).unwrap();
        let mut to = DeviceBuffer::new(kernels.device(), length * 8 + 16).unwrap();
        to.fill(&stream, 0).unwrap();
        access.reset(&stream).unwrap();
        access.timed_read(&stream, from.view()).unwrap();
        assert_eq!(access.sum(&stream).unwrap(), values.iter().sum::<u64>());
        access.copy(&stream, from.view(), &mut to.view_mut()).unwrap();
        let copied = to.read::<u64>(&stream, length as usize + 2).unwrap();
        assert_eq!((&copied[..values.len()], &copied[values.len()..]), (&values[..], &[0, 0][..]));
        let error = access.copy(&stream, to.view(), &mut DeviceBuffer::new(kernels.device(), 8).unwrap().view_mut());
        assert!(matches!(error, Err(Error::Invalid(_))));
    }
}

const GRANULARITIES: [(u64, u64); 6] = [(4, 0), (8, 4), (32, 0), (128, 64), (256, 8), (512, 16)];

#[test]
fn random_reads_stay_within() {
    let gpu = TestGpu::start();
    for (seed, (granularity, misalignment)) in
        seeds().flat_map(|seed| GRANULARITIES.iter().map(move |case| (seed, *case)))
    {
        gpu.schedule(seed);
        let kernels = gpu.kernels();
        let stream = Stream::new(kernels.device()).unwrap();
        let mut access = MemoryAccess::new(&kernels).unwrap();
        let bytes = 64 * granularity + misalignment;
        // Nothing but zeros within: the sum says whether anything was read around them.
        let guard = 4096;
        let mut values = vec![0xFFu8; (bytes + 2 * guard) as usize];
        values[guard as usize..(guard + bytes) as usize].fill(0);
        let mut memory = DeviceBuffer::from_slice(&stream, &values).unwrap();
        let pattern = AccessPattern { write: false, granularity, misalignment, accesses: 10 };
        access.reset(&stream).unwrap();
        let (count, seconds) =
            access.access_randomly(&stream, &mut memory.view_mut().slice(guard, bytes).unwrap(), pattern).unwrap();
        assert!(count >= 10 && seconds >= 0.0);
        assert_eq!(access.sum(&stream).unwrap(), 0, "{pattern:?}");
    }
}

#[test]
fn random_writes_stay_within_and_reach_all() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let mut access = MemoryAccess::new(&kernels).unwrap();
    for (seed, (granularity, misalignment)) in
        seeds().flat_map(|seed| GRANULARITIES.iter().map(move |case| (seed, *case)))
    {
        gpu.schedule(seed);
        let bytes = 64 * granularity + misalignment;
        // Bytes around the array show whether anything else is written.
        let guard = 4096;
        let mut memory = DeviceBuffer::new(kernels.device(), bytes + 2 * guard).unwrap();
        memory.fill(&stream, 0xFF).unwrap();
        let pattern = AccessPattern { write: true, granularity, misalignment, accesses: 200 };
        let (count, seconds) =
            access.access_randomly(&stream, &mut memory.view_mut().slice(guard, bytes).unwrap(), pattern).unwrap();
        assert!(count >= 200 && seconds >= 0.0);
        let after = memory.read::<u8>(&stream, (bytes + 2 * guard) as usize).unwrap();
        let written = (guard + misalignment) as usize..(guard + misalignment + 64 * granularity) as usize;
        assert!(after[written.clone()].iter().all(|byte| *byte == 0), "{pattern:?} leaves some out");
        assert!(after[..written.start].iter().chain(&after[written.end..]).all(|byte| *byte == 0xFF), "{pattern:?}");
    }
    for (granularity, misalignment) in [(0, 0), (3, 0), (1024, 0), (512, 4)] {
        let mut memory = DeviceBuffer::new(kernels.device(), 1 << 16).unwrap();
        let pattern = AccessPattern { write: false, granularity, misalignment, accesses: 1 };
        let refused = access.access_randomly(&stream, &mut memory.view_mut(), pattern);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{pattern:?}");
    }
}

#[test]
fn chains_are_followed() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let mut access = MemoryAccess::new(&kernels).unwrap();
    let chain = Chain { range: 1 << 16, stride: 256 };
    let mut array = vec![0u64; (chain.range / 8) as usize];
    let start = chain.lay(&mut array);
    let next = DeviceBuffer::from_slice(&stream, &array).unwrap();
    for (seed, steps) in seeds().zip([0, 1, 100, chain.places()].into_iter().cycle()) {
        gpu.schedule(seed);
        // SAFETY: the chain leads only to places of its own.
        let (end, _) = unsafe { access.chase(&stream, next.view(), start, steps) }.unwrap();
        assert_eq!(end, Chain::follow(&array, start, steps));
    }
    // SAFETY: refused before anything is read.
    let refused = unsafe { access.chase(&stream, next.view(), chain.range, 1) };
    assert!(matches!(refused, Err(Error::Invalid(_))));
}

const EFFORT: GpuEffort =
    GpuEffort { array_bytes: 4 << 20, longest_range: 8 << 20, stride: 64 << 10, runs: 1, reads: 16, unified: true };

#[test]
fn every_memory_and_method_is_measured() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    for (coherent, memories, methods) in [(0, 3, 7), (1, 5, 8)] {
        gpu.configure(&format!("coherent={coherent}"));
        let kernels = gpu.kernels();
        let before = gpu.held();
        let measured = measure_gpu(&kernels, 0, EFFORT).unwrap();
        assert_eq!((measured.rates.len(), measured.latency.len()), (memories, memories));
        for rates in &measured.rates {
            assert_eq!(rates.processor, Processor::Gpu { ordinal: 0 });
            assert!(rates.read > 0.0 && rates.copy > 0.0 && rates.random_reads > 0.0 && rates.latency > 0.0);
        }
        assert_eq!(measured.rates[0].memory, MeasuredMemory::Gpu { ordinal: 0 });
        assert!(measured.latency.iter().all(|curve| curve.points.len() == 4));
        assert_eq!(measured.transfers[0].0.len(), methods);
        let [work] = measured.gpu_work[..] else { panic!("{:?}", measured.gpu_work) };
        assert!(work.random_writes > 0.0 && work.random_host_writes > 0.0 && work.launch > 0.0, "{work:?}");
        assert_eq!(gpu.held(), before);
        assert_eq!(kernels.device().memory_held(), 0);
    }
    let measured = measure_gpu(&gpu.kernels(), 0, GpuEffort { unified: false, ..EFFORT }).unwrap();
    let unified = |method: &TransferMethod| method.memory() == SourceMemory::Unified;
    assert!(!measured.transfers[0].0.iter().any(|rate| unified(&rate.method)), "unified memory is opt-in");
}

#[test]
fn what_fails_while_measuring_is_an_error() {
    let effort = GpuEffort { longest_range: 1 << 20, array_bytes: 2 << 20, ..EFFORT };
    let work = |gpu: &TestGpu| measure_gpu(&gpu.kernels(), 0, effort).map(|_| ());
    each_fails_once("registration", 4, work);
}
