//! Joins pairs of partitions in scratchpad memory (paper 1, section 5.1).

use std::sync::Arc;

use overspill_machine::driver::{Arguments, Function, Queued, Stream};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};

use super::aggregates::{PairAggregate, PairTotals, Totals};
use super::arguments::{JoinOutput, JoinSide, Values};
use super::pairs::AllocatedPairs;
use crate::partition::{Extents, FinePartitions};
use crate::{Kernels, KeyWidth, Radix};

/// The layout of `join/scheduler.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct JoinTask {
    build_begin: u64,
    build_end: u64,
    probe_begin: u64,
    probe_end: u64,
}

const THREADS: u32 = 512;
/// Two blocks, so that one probes while the other builds.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;
/// Threads of the block that writes the tasks.
const SCHEDULER_THREADS: u32 = 256;
/// Bytes of scratchpad memory that the driver reserves for each block, from compute capability 8.0 on.
const DRIVER_SCRATCHPAD: u64 = 1 << 10;
/// Equals `kBuckets` and `kBucketBits`.
const BUCKETS: u64 = 2048;
const BUCKET_BITS: u32 = 11;
/// Probe tuples that a block takes at a time. Several blocks share a skewed partition; rebuilding its table for each piece is
/// cheap compared to probing this many tuples.
const PIECE: u64 = 64 << 10;

/// One side of a join, partitioned.
#[derive(Debug, Clone, Copy)]
pub struct PartitionedSide<'a> {
    /// The columns.
    pub side: JoinSide<'a>,
    /// Where its partitions are.
    pub extents: &'a Extents,
}

impl<'a> From<&'a FinePartitions> for PartitionedSide<'a> {
    fn from(partitions: &'a FinePartitions) -> Self {
        let values = match partitions.values() {
            (values, 4) => Values::Four(values),
            (values, _) => Values::Eight(values),
        };
        Self { side: JoinSide { keys: partitions.keys(), values }, extents: partitions.extents() }
    }
}

/// A build side and a probe side that were queued, in this order.
type QueuedSides<'a> = [&'a Arc<Queued<FinePartitions>>; 2];

/// Joins two sides that were partitioned by the same bits of the same hash.
#[derive(Debug)]
pub struct PartitionedJoin {
    kernels: Kernels,
    key: KeyWidth,
    radix: Radix,
    capacity: u32,
    scratchpad: u64,
    /// Loaded in advance, as loading waits for running kernels.
    schedule: Function,
    aggregate: Function,
    allocate: Function,
}

impl PartitionedJoin {
    /// Creates a join for partitions made by `radix`. All keys of a partition share its bits and the bits that it skips.
    ///
    /// # Errors
    /// If the hash has no bits left for the buckets, or the scratchpad is too small for the buckets.
    pub fn new(kernels: &Kernels, key: KeyWidth, radix: Radix) -> Result<Self> {
        if radix.shift() + radix.bits() + BUCKET_BITS > 64 {
            return Err(Error::Invalid(format!(
                "partitions by {} bits below {} others leave fewer than the {BUCKET_BITS} bits of a bucket",
                radix.bits(),
                radix.shift()
            )));
        }
        let blocks = u64::from(kernels.share().per_multiprocessor(BLOCKS_PER_MULTIPROCESSOR));
        let available = kernels.device().properties().scratchpad_per_block;
        let tuple = 8 + key.bytes() + 4;
        let join = |sink: &str| kernels.function(&format!("join_partitions_{sink}_u{}", key.bytes() * 8));
        let (aggregate, allocate) = (join("aggregate")?, join("allocate")?);
        let others = aggregate.static_scratchpad().max(allocate.static_scratchpad()) + DRIVER_SCRATCHPAD;
        let capacity = (available / blocks).saturating_sub(others + BUCKETS * 4) / tuple / 2 * 2;
        if capacity == 0 {
            return Err(Error::TooSmall {
                what: "joining in scratchpad memory",
                needed: blocks * (others + BUCKETS * 4 + 2 * tuple),
                of: "scratchpad memory a block",
                available,
            });
        }
        Ok(Self {
            schedule: kernels.function("schedule_join_tasks")?,
            aggregate,
            allocate,
            kernels: kernels.clone(),
            key,
            radix,
            capacity: u32::try_from(capacity)
                .map_err(|_| Error::Invalid(format!("a scratchpad of {capacity} tuples")))?,
            scratchpad: BUCKETS * 4 + capacity * tuple,
        })
    }

    /// The number of build tuples that fit the scratchpad. Larger partitions are joined in pieces of this size, each against
    /// the whole probe partition.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Joins and aggregates without writing pairs.
    ///
    /// # Errors
    /// If the sides do not fit the partitions, there are more aggregates than [`PairAggregate::MOST`], or the device fails.
    pub fn aggregate(
        &self,
        stream: &Stream,
        build: &PartitionedSide<'_>,
        probe: &PartitionedSide<'_>,
        aggregates: &[PairAggregate],
    ) -> Result<PairTotals> {
        let mut totals = Totals::new(stream, aggregates)?;
        let output = totals.output()?;
        // SAFETY: all that is borrowed or owned here outlives the work, which is waited for, also after an error.
        let _tasks = unsafe { self.enqueue(stream, &self.aggregate, [build, probe], output)? };
        totals.read(stream)
    }

    /// Joins and writes pairs in any order. Returns the number of matches. If `pairs` has room for fewer, the remaining pairs were
    /// not written.
    ///
    /// # Errors
    /// As [`PartitionedJoin::aggregate`].
    pub fn allocate(
        &self,
        stream: &Stream,
        build: &PartitionedSide<'_>,
        probe: &PartitionedSide<'_>,
        pairs: &mut AllocatedPairs,
    ) -> Result<u64> {
        let output = pairs.output(stream)?;
        // SAFETY: as above.
        let _tasks = unsafe { self.enqueue(stream, &self.allocate, [build, probe], output)? };
        pairs.found(stream)
    }

    /// As [`PartitionedJoin::aggregate`], for sides that were queued, without a wait.
    ///
    /// # Errors
    /// As [`PartitionedJoin::aggregate`].
    pub fn queue_aggregate(
        &self,
        stream: &Stream,
        sides: QueuedSides<'_>,
        aggregates: &[PairAggregate],
    ) -> Result<Queued<Totals>> {
        let mut totals = Totals::new(stream, aggregates)?;
        let output = totals.output()?;
        self.queue(stream, &self.aggregate, sides, output, totals)
    }

    /// As [`PartitionedJoin::allocate`], for sides that were queued, without a wait.
    ///
    /// # Errors
    /// As [`PartitionedJoin::aggregate`].
    pub fn queue_allocate(
        &self,
        stream: &Stream,
        sides: QueuedSides<'_>,
        mut pairs: AllocatedPairs,
    ) -> Result<Queued<AllocatedPairs>> {
        let output = pairs.output(stream)?;
        self.queue(stream, &self.allocate, sides, output, pairs)
    }

    /// Queues a join whose output is in `result`.
    fn queue<T>(
        &self,
        stream: &Stream,
        join: &Function,
        sides: QueuedSides<'_>,
        output: JoinOutput,
        result: T,
    ) -> Result<Queued<T>> {
        let [build, probe] = sides.map(|side| PartitionedSide::from(side.result()));
        sides.iter().try_for_each(|side| side.precede(stream))?;
        // SAFETY: the sides, the tasks and the output live until the work is done, in what is returned.
        let tasks = unsafe { self.enqueue(stream, join, [&build, &probe], output)? };
        Queued::new(stream, result, (tasks, sides.map(Arc::clone)))
    }

    /// Queues the kernels of a join. Returns the memory that they use besides the sides and the output. After an error nothing is
    /// queued any more.
    ///
    /// # Safety
    /// The sides, the output and what is returned must live until the stream has done the work, which includes the work of
    /// writing the sides.
    unsafe fn enqueue(
        &self,
        stream: &Stream,
        join: &Function,
        [build, probe]: [&PartitionedSide<'_>; 2],
        output: JoinOutput,
    ) -> Result<Tasks> {
        let device = self.kernels.device();
        let fanout = self.radix.fanout();
        let (build_input, probe_input) = (build.side.arguments(self.key)?, probe.side.arguments(self.key)?);
        for (extents, tuples) in [(build.extents, build_input.tuples), (probe.extents, probe_input.tuples)] {
            if extents.fanout() != fanout || extents.end() > tuples {
                return Err(Error::Invalid(format!(
                    "{} partitions that end by tuple {}, expected {fanout} in {tuples} tuples",
                    extents.fanout(),
                    extents.end()
                )));
            }
        }
        // The last task of each partition may be a shorter piece.
        let most_tasks = u64::from(fanout) + probe_input.tuples / PIECE;
        let mut tasks = DeviceBuffer::new(device, most_tasks * size_of::<JoinTask>() as u64)?;
        // The number of tasks, and the number of tasks taken.
        let mut counters = DeviceBuffer::new(device, 16)?;
        counters.fill(stream, 0)?;
        let addresses = [build.extents, probe.extents].map(|side| [side.starts_address(), side.counts().address()]);
        let tasks_address = tasks.view_mut().address();
        let (task_count, next_task) = (counters.view_mut().address(), counters.view_mut().address() + 8);

        let share = self.kernels.share();
        let resident = join.resident_blocks(THREADS, self.scratchpad)?;
        let shape = share.shape(share.blocks(resident), THREADS, self.scratchpad);
        let hash = self.radix.hash_function() as u32;
        let shared_bits = self.radix.shift() + self.radix.bits();
        let scheduling = Arguments::default()
            .with(&addresses[0][0])
            .with(&addresses[0][1])
            .with(&addresses[1][0])
            .with(&addresses[1][1])
            .with(&fanout)
            .with(&PIECE)
            .with(&tasks_address)
            .with(&most_tasks)
            .with(&task_count);
        let joining = Arguments::default()
            .with(&build_input)
            .with(&probe_input)
            .with(&tasks_address)
            .with(&task_count)
            .with(&next_task)
            .with(&self.capacity)
            .with(&hash)
            .with(&shared_bits)
            .with(&output);
        // SAFETY: the parameters match the kernels, the partitions lie within their sides, and the tasks within their buffer; the
        // caller promises the rest.
        let launched = unsafe {
            self.schedule
                .launch(stream, share.shape(1, SCHEDULER_THREADS, 0), scheduling)
                .and_then(|()| join.launch(stream, shape, joining))
        };
        match launched {
            Ok(()) => Ok(Tasks { _tasks: tasks, _counters: counters }),
            Err(error) => stream.synchronize().and(Err(error)),
        }
    }
}

/// The pairs of partitions to join, and how many of them have been written and taken.
#[derive(Debug)]
struct Tasks {
    _tasks: DeviceBuffer,
    _counters: DeviceBuffer,
}
