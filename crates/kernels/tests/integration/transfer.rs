//! Every transfer method brings every byte to the kernel, once.

use std::sync::Arc;

use overspill_kernels::MemoryAccess;
use overspill_machine::driver::{Device, Stream};
use overspill_machine::memory::{HostBuffer, PageSize, UnifiedBuffer};
use overspill_machine::transfer::{
    PipelineShape, Source, SourceMemory, TransferMethod, TransferPipeline, TransferRate, TransferRates,
};
use overspill_machine::{Error, Result};

use crate::faults::each_fails_once;
use crate::test_gpu::TestGpu;

const CHUNK: u64 = 2 << 20;
const SHAPE: PipelineShape = PipelineShape { chunk_bytes: CHUNK, chunks: 3, threads: 2 };

/// A relation of the kind that a method reads.
enum Relation {
    Host(HostBuffer),
    Unified(UnifiedBuffer),
}

impl Relation {
    /// Values of 8 bytes, no two the same.
    fn new(device: &Arc<Device>, memory: SourceMemory, bytes: u64) -> Result<Self> {
        let fill = |values: &mut [u64]| (0..).zip(values).for_each(|(number, value)| *value = value_at(number));
        Ok(match memory {
            SourceMemory::Pageable => {
                let mut buffer = HostBuffer::new(bytes as usize, PageSize::Small)?;
                fill(buffer.as_mut_slice());
                Self::Host(buffer)
            }
            SourceMemory::Pinned => {
                let mut buffer = HostBuffer::pinned(device, bytes as usize, PageSize::Huge)?;
                fill(buffer.as_mut_slice());
                Self::Host(buffer)
            }
            SourceMemory::Unified => {
                let mut buffer = UnifiedBuffer::new(device, bytes)?;
                fill(buffer.as_mut_slice()?);
                Self::Unified(buffer)
            }
        })
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Host(buffer) => Source::Host(buffer),
            Self::Unified(buffer) => Source::Unified(buffer),
        }
    }
}

fn value_at(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn sum_of(bytes: u64) -> u64 {
    (0..bytes / 8).map(value_at).fold(0, u64::wrapping_add)
}

/// Sums a relation on the device, and checks the sum and that the chunks follow each other.
fn sum(pipeline: &mut TransferPipeline, access: &mut MemoryAccess, stream: &Stream, relation: &Relation) -> Result<()> {
    access.reset(stream)?;
    let mut next = 0;
    pipeline.run(relation.source(), |stream, offset, chunk| {
        assert_eq!(offset, next);
        assert!(chunk.bytes() <= CHUNK);
        next += chunk.bytes();
        // SAFETY: the pipeline keeps the chunk until the stream is done, and `access` outlives it.
        unsafe { access.read(stream, chunk) }
    })?;
    assert_eq!(next, relation.source().bytes());
    assert_eq!(access.sum(stream)?, sum_of(next), "a wrong answer instead of an error");
    Ok(())
}

#[test]
fn every_method_brings_every_byte() {
    let gpu = TestGpu::start();
    gpu.set_coherent(true);
    let properties = gpu.device().properties().clone();
    for method in TransferMethod::ALL.into_iter().filter(|method| method.check_device(&properties).is_ok()) {
        // Relations are larger than what the methods that copy may take of the device.
        let limit = if method.memory() == SourceMemory::Unified { 64 << 20 } else { 7 << 20 };
        let device = gpu.driver.device(0, limit).unwrap();
        let kernels = overspill_kernels::Kernels::load(&device).unwrap();
        let stream = Stream::new(&device).unwrap();
        let mut access = MemoryAccess::new(&kernels).unwrap();
        let mut pipeline = TransferPipeline::new(&device, method, SHAPE).unwrap();
        for bytes in [8, CHUNK - 8, CHUNK, CHUNK + 8, 5 * CHUNK + 4096 + 8] {
            let relation = Relation::new(&device, method.memory(), bytes).unwrap();
            let before = gpu.statistics();
            sum(&mut pipeline, &mut access, &stream, &relation).unwrap();
            let after = gpu.statistics();
            assert_eq!(after.allocations_made, before.allocations_made, "{method} allocates while it runs");
            if method != TransferMethod::DynamicPinning {
                assert_eq!(after.registrations_made, before.registrations_made, "{method} registers while it runs");
            }
            assert_eq!(after.held(), before.held(), "{method} keeps something");
        }
    }
}

#[test]
fn an_empty_relation_has_no_chunks() {
    let gpu = TestGpu::start();
    let device = gpu.device();
    let mut pipeline = TransferPipeline::new(&device, TransferMethod::PinnedCopy, SHAPE).unwrap();
    let nothing = HostBuffer::pinned(&device, 0, PageSize::Small).unwrap();
    pipeline.run(Source::Host(&nothing), |_, _, _| panic!("a chunk of nothing")).unwrap();
}

#[test]
fn what_a_machine_lacks_is_refused_by_name() {
    let gpu = TestGpu::start();
    if !gpu.set_coherent(false) {
        return;
    }
    let device = gpu.device();
    let error = TransferPipeline::new(&device, TransferMethod::Coherence, SHAPE).unwrap_err();
    assert!(error.to_string().contains("coherence") && error.to_string().contains("page tables"), "{error}");

    let pageable = HostBuffer::new(100, PageSize::Small).unwrap();
    for method in [TransferMethod::ZeroCopy, TransferMethod::PinnedCopy, TransferMethod::UnifiedMigration] {
        let mut pipeline = TransferPipeline::new(&device, method, SHAPE).unwrap();
        let error = pipeline.run(Source::Host(&pageable), |_, _, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains(method.name()) && error.to_string().contains("pageable"), "{error}");
    }
    let error = "carrier-pigeon".parse::<TransferMethod>().unwrap_err();
    assert!(error.to_string().contains("pinned-copy"), "{error}");
    for method in TransferMethod::ALL {
        assert_eq!(method.name().parse::<TransferMethod>().unwrap(), method);
    }
}

#[test]
fn shapes_that_are_none_are_refused() {
    let gpu = TestGpu::start();
    let device = gpu.device();
    for shape in [
        PipelineShape { chunk_bytes: 0, ..SHAPE },
        PipelineShape { chunk_bytes: CHUNK + 4096, ..SHAPE },
        PipelineShape { chunks: 0, ..SHAPE },
        PipelineShape { threads: 0, ..SHAPE },
        PipelineShape { threads: 1_000_000, ..SHAPE },
    ] {
        let error = TransferPipeline::new(&device, TransferMethod::ZeroCopy, shape).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    let error = TransferPipeline::new(&device, TransferMethod::PinnedCopy, PipelineShape { chunks: 1000, ..SHAPE });
    assert!(matches!(error.unwrap_err(), Error::OverBudget { .. }));
    assert_eq!(device.memory_held(), 0);
}

#[test]
fn nothing_is_left_at_work_by_a_panic() {
    let gpu = TestGpu::start();
    let device = gpu.device();
    let kernels = overspill_kernels::Kernels::load(&device).unwrap();
    let stream = Stream::new(&device).unwrap();
    let mut access = MemoryAccess::new(&kernels).unwrap();
    for method in [TransferMethod::StagedCopy, TransferMethod::DynamicPinning, TransferMethod::PinnedCopy] {
        let relation = Relation::new(&device, method.memory(), 5 * CHUNK).unwrap();
        let mut pipeline = TransferPipeline::new(&device, method, SHAPE).unwrap();
        let held = gpu.held();
        access.reset(&stream).unwrap();
        let mut read = 0;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pipeline.run(relation.source(), |stream, offset, chunk| {
                assert!(offset < 3 * CHUNK, "on purpose");
                read += chunk.bytes();
                // SAFETY: the pipeline keeps the chunk until the stream is done, and `access` outlives it.
                unsafe { access.read(stream, chunk) }
            })
        }));
        assert!(panicked.is_err());
        // What was asked for before has been done, and nothing is pinned any more.
        assert_eq!(read, 3 * CHUNK);
        assert_eq!(gpu.held(), held, "{method}");
        assert_eq!(access.sum(&stream).unwrap(), sum_of(read), "{method}");
        sum(&mut pipeline, &mut access, &stream, &relation).unwrap();
    }
}

#[test]
fn auto_takes_the_fastest_that_there_is() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let (pageable, pinned) = (SourceMemory::Pageable, SourceMemory::Pinned);
    let properties = gpu.device().properties().clone();
    let none = TransferRates::default();
    assert_eq!(none.best(&properties, pageable), TransferMethod::StagedCopy);
    assert_eq!(none.best(&properties, pinned), TransferMethod::ZeroCopy);
    assert_eq!(none.best(&properties, SourceMemory::Unified), TransferMethod::UnifiedPrefetch);
    let rate = |method, bytes_per_second| TransferRate { method, bytes_per_second };
    let rates = TransferRates(vec![
        rate(TransferMethod::PageableCopy, 3e9),
        rate(TransferMethod::DynamicPinning, 4e9),
        // Measured, say, on another GPU of the machine: this one lacks it.
        rate(TransferMethod::Coherence, 9e9),
        rate(TransferMethod::PinnedCopy, 8e9),
        rate(TransferMethod::ZeroCopy, 7e9),
    ]);
    assert_eq!(rates.best(&properties, pageable), TransferMethod::DynamicPinning);
    assert_eq!(rates.best(&properties, pinned), TransferMethod::PinnedCopy);
    gpu.configure("coherent=1");
    assert_eq!(rates.best(gpu.device().properties(), pageable), TransferMethod::Coherence);
}

fn each_method(gpu: &TestGpu, method: TransferMethod) -> Result<()> {
    let device = gpu.driver.device(0, 32 << 20)?;
    let kernels = overspill_kernels::Kernels::load(&device)?;
    let stream = Stream::new(&device)?;
    let mut access = MemoryAccess::new(&kernels)?;
    let relation = Relation::new(&device, method.memory(), 4 * CHUNK + 8)?;
    let mut pipeline = TransferPipeline::new(&device, method, PipelineShape { chunks: 2, ..SHAPE })?;
    sum(&mut pipeline, &mut access, &stream, &relation)
}

#[test]
fn every_failure_of_every_method_ends_in_an_error() {
    for method in TransferMethod::ALL {
        if method == TransferMethod::Coherence {
            continue;
        }
        let work = |gpu: &TestGpu| each_method(gpu, method);
        each_fails_once("allocation", 2, work);
        each_fails_once("launch", 6, work);
        each_fails_once("synchronisation", 4, work);
        if method.copies() {
            each_fails_once("copy", 6, work);
        }
        let registrations = match method {
            TransferMethod::StagedCopy => 2,
            TransferMethod::DynamicPinning => 5,
            TransferMethod::PinnedCopy | TransferMethod::ZeroCopy => 1,
            _ => 0,
        };
        each_fails_once("registration", registrations, work);
    }
}

#[test]
fn the_device_is_lost_at_each_call_of_a_transfer() {
    for method in [TransferMethod::StagedCopy, TransferMethod::DynamicPinning, TransferMethod::UnifiedPrefetch] {
        each_fails_once("device_lost", 40, |gpu| each_method(gpu, method));
    }
}
