//! Compares kernels with plain references on a real device, for errors that tests without a device cannot find.
//!
//! Outputs are poisoned before each run and runs are repeated, as a result that depends on the order of memory operations is
//! wrong only sometimes.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use overspill_kernels::{
    Algorithm, Extents, Gather, HashFunction, HashPartitioner, HashPartitioning, HashTable, Input, JoinSide, KeyColumn,
    KeyWidth, LocalJoin, MemoryAccess, MovedColumn, Output, PairAggregate, PartitionPlan, PartitionedJoin,
    PartitionedSide, Partitioner, PayloadInput, PrefixSum, Radix, TableKind, TablePlacement, Values, check_mapping,
    murmur3_word,
};
use overspill_machine::Error as MachineError;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{Buffer, DeviceBuffer, HostBuffer, PageSize, Placement, UnifiedBuffer};
use overspill_machine::transfer::{PipelineShape, Source, SourceMemory, TransferMethod, TransferPipeline};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::Gpu;
use crate::{Error, Result};

/// The extent of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckEffort {
    /// The number of tuples of a relation.
    pub tuples: u64,
    /// The number of runs of each partitioner.
    pub repeats: u64,
}

impl CheckEffort {
    /// For a device at full speed.
    pub const FULL: Self = Self { tuples: 4_000_000, repeats: 20 };
    /// For an emulated device, or one that a checker slows down.
    pub const SMALL: Self = Self { tuples: 20_000, repeats: 2 };
}

/// The content of fresh and poisoned memory.
const POISON: u8 = 0xA5;

/// A check of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCheck {
    /// Prefix sums.
    PrefixSums,
    /// A partitioner, whose columns lie in GPU memory or in pinned CPU memory.
    Partition(Algorithm, bool),
    /// Two partitioners at the same time, each on half of the multiprocessors.
    TwoPartitioners,
    /// A hash partition, in which rows keep their order.
    HashPartition,
    /// A hash table of each kind.
    Table(TableChecked),
    /// A local join of a rank, whose pairs are made rows.
    LocalJoin,
    /// A join of partitions in the scratchpad.
    PartitionedJoin,
    /// A transfer method.
    Transfer(TransferMethod),
    /// Pages of both memories in one range of addresses.
    Mapping,
}

/// A kind of hash table to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TableChecked {
    Perfect,
    LinearProbing,
    MultiValue,
}

impl KernelCheck {
    /// All checks, the one that a faulty driver may crash in last.
    pub fn all() -> Vec<Self> {
        let partitions =
            Algorithm::ALL.into_iter().flat_map(|algorithm| [false, true].map(|pinned| (algorithm, pinned)));
        let tables = [TableChecked::Perfect, TableChecked::LinearProbing, TableChecked::MultiValue];
        std::iter::once(Self::PrefixSums)
            .chain(partitions.map(|(algorithm, pinned)| Self::Partition(algorithm, pinned)))
            .chain([Self::TwoPartitioners, Self::HashPartition])
            .chain(tables.map(Self::Table))
            .chain([Self::LocalJoin, Self::PartitionedJoin])
            .chain(TransferMethod::ALL.map(Self::Transfer))
            .chain([Self::Mapping])
            .collect()
    }

    /// The name, in lower case and without spaces.
    pub fn name(self) -> String {
        match self {
            Self::PrefixSums => "check-prefix-sums".to_owned(),
            Self::Partition(algorithm, pinned) => {
                format!("check-partition-{algorithm}-in-{}-memory", if pinned { "cpu" } else { "gpu" })
            }
            Self::TwoPartitioners => "check-two-partitioners".to_owned(),
            Self::HashPartition => "check-hash-partition".to_owned(),
            Self::Table(TableChecked::Perfect) => "check-table-perfect".to_owned(),
            Self::Table(TableChecked::LinearProbing) => "check-table-linear-probing".to_owned(),
            Self::Table(TableChecked::MultiValue) => "check-table-multi-value".to_owned(),
            Self::LocalJoin => "check-local-join".to_owned(),
            Self::PartitionedJoin => "check-partitioned-join".to_owned(),
            Self::Transfer(method) => format!("check-transfer-{method}"),
            Self::Mapping => "check-mapping".to_owned(),
        }
        .replace(' ', "-")
    }

    /// Runs the check.
    ///
    /// # Errors
    /// If an answer is wrong, or the device fails or cannot do it ([`Error::is_missing`]).
    pub fn run(self, gpu: &Gpu, effort: CheckEffort) -> Result<()> {
        match self {
            Self::PrefixSums => prefix_sums(gpu, effort),
            Self::Partition(algorithm, pinned) => partitions(gpu, effort, algorithm, pinned),
            Self::TwoPartitioners => halves(gpu, effort),
            Self::HashPartition => hash_partition(gpu, effort),
            Self::Table(kind) => table(gpu, effort, kind),
            Self::LocalJoin => local_join(gpu, effort),
            Self::PartitionedJoin => partitioned_join(gpu, effort),
            Self::Transfer(method) => {
                method.check_device(gpu.device().properties())?;
                transfer(gpu, effort, method)
            }
            Self::Mapping => Ok(check_mapping(&gpu.kernels, 0)?),
        }
    }
}

fn random_values(count: u64, seed: u64) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.random()).collect()
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn expect(right: bool, what: impl FnOnce() -> String) -> Result<()> {
    if right { Ok(()) } else { Err(Error::Wrong { what: what() }) }
}

fn prefix_sums(gpu: &Gpu, effort: CheckEffort) -> Result<()> {
    for length in [0, 1, 2047, 2048, 2049, effort.tuples] {
        let values = random_values(length, length);
        let device = DeviceBuffer::from_slice(&gpu.stream, &values)?;
        let mut sums = DeviceBuffer::new(gpu.device(), length * 8)?;
        sums.fill(&gpu.stream, POISON)?;
        let total = PrefixSum::new(&gpu.kernels, length)?.run(&gpu.stream, device.view(), sums.view_mut())?;
        let mut sum = 0u64;
        let mut expected = Vec::with_capacity(values.len());
        for value in &values {
            expected.push(sum);
            sum = sum.wrapping_add(*value);
        }
        let found: Vec<u64> = sums.read(&gpu.stream, values.len())?;
        expect(total == sum && found == expected, || format!("the prefix sum of {length} values"))?;
    }
    Ok(())
}

/// A column of 8-byte values.
fn column(gpu: &Gpu, pinned: bool, values: u64) -> Result<Buffer> {
    let placement = if pinned { Placement::Host { pages: PageSize::Huge, pinned } } else { Placement::Device };
    Ok(Buffer::new(gpu.device(), placement, values * 8)?)
}

fn partitions(gpu: &Gpu, effort: CheckEffort, algorithm: Algorithm, pinned: bool) -> Result<()> {
    let keys = random_values(effort.tuples, 17);
    let mut input = column(gpu, pinned, effort.tuples)?;
    input.write(&gpu.stream, &keys)?;
    for bits in [1, 4, 6, 9, 11] {
        let radix = Radix::new(bits, 0, HashFunction::Murmur3)?;
        let budget = gpu.device().memory_limit() / 8;
        let plan =
            match PartitionPlan::new(&gpu.kernels, algorithm, KeyWidth::Eight, &[8], radix, effort.tuples, budget) {
                Ok(plan) => plan,
                // The scratchpad of some devices holds fewer partitions.
                Err(MachineError::TooSmall { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
        let mut out_keys = column(gpu, pinned, plan.output_tuples())?;
        let mut out_rows = column(gpu, pinned, plan.output_tuples())?;
        let mut partitioner = Partitioner::new(&gpu.kernels, plan)?;
        for repeat in 0..effort.repeats {
            out_keys.fill(&gpu.stream, POISON)?;
            out_rows.fill(&gpu.stream, POISON)?;
            let from = Input { keys: input.view(gpu.device())?, payloads: vec![PayloadInput::RowIds(0)] };
            let mut to =
                Output { keys: out_keys.view_mut(gpu.device())?, payloads: vec![out_rows.view_mut(gpu.device())?] };
            let partitions = partitioner.run(&gpu.stream, &from, &mut to)?;
            let (found, rows): (Vec<u64>, Vec<u64>) = (out_keys.read(&gpu.stream)?, out_rows.read(&gpu.stream)?);
            let wrong = wrong_tuple(&keys, &partitions, &[found, rows], radix);
            expect(wrong.is_none(), || {
                format!("partitioning {} ways, run {repeat}, tuple {}", radix.fanout(), wrong.unwrap_or_default())
            })?;
        }
    }
    Ok(())
}

/// The place of a tuple that is in the wrong partition, is there twice, or has another row's key; the number of tuples if one of
/// them is missing. All processors look: one alone takes many times as long as a GPU needs to partition.
fn wrong_tuple(keys: &[u64], partitions: &[(u64, u64)], [found, rows]: &[Vec<u64>; 2], radix: Radix) -> Option<usize> {
    let seen: Vec<AtomicBool> = keys.iter().map(|_| AtomicBool::new(false)).collect();
    let is_right = |partition: usize, at: usize| {
        let row = size(rows[at]);
        keys.get(row) == Some(&found[at])
            && radix.partition(found[at]) as usize == partition
            && !seen[row].swap(true, Ordering::Relaxed)
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let in_part = |part: usize| {
        partitions.iter().enumerate().find_map(|(partition, (start, length))| {
            // A part of each partition, as there may be fewer partitions than threads.
            let [begin, end] = [part, part + 1].map(|part| size(start + length * part as u64 / threads as u64));
            (begin..end).find(|at| !is_right(partition, *at))
        })
    };
    let wrong = std::thread::scope(|scope| {
        let in_part = &in_part;
        let looking: Vec<_> = (0..threads).map(|part| scope.spawn(move || in_part(part))).collect();
        let wrong =
            looking.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        wrong.fold(None, Option::or)
    });
    let count: u64 = partitions.iter().map(|(_, length)| length).sum();
    wrong.or_else(|| (size(count) != keys.len()).then_some(keys.len()))
}

/// Partitions in two threads, each with its own stream and confined to half of the device.
fn halves(gpu: &Gpu, effort: CheckEffort) -> Result<()> {
    let half = (gpu.device().properties().multiprocessors / 2).max(1);
    std::thread::scope(|scope| {
        let threads = [Algorithm::Shared, Algorithm::Hierarchical].map(|algorithm| {
            scope.spawn(move || {
                let kernels = gpu.kernels.confined_to(half)?;
                let confined = Gpu { stream: Stream::new(gpu.device())?, kernels, emulated: gpu.emulated };
                partitions(&confined, effort, algorithm, false)
            })
        });
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Rows of a partition keep their order, so one answer alone is right. Keys repeat, and others move with them.
fn hash_partition(gpu: &Gpu, effort: CheckEffort) -> Result<()> {
    let (rows, device) = (effort.tuples, gpu.device());
    let keys: Vec<u64> = random_values(rows, 11).iter().map(|key| key % (rows / 8 + 1)).collect();
    let numbers: Vec<u32> = (0..).take(keys.len()).collect();
    let from = (DeviceBuffer::from_slice(&gpu.stream, &keys)?, DeviceBuffer::from_slice(&gpu.stream, &numbers)?);
    let mut to = (DeviceBuffer::new(device, rows * 8)?, DeviceBuffer::new(device, rows * 4)?);
    for partitions in [3, 60, 1000] {
        let partitioning = HashPartitioning { partitions, seed: 1, home: 0 };
        let partitioner = HashPartitioner::new(&gpu.kernels, partitioning)?;
        let partition = |row: u32| (u64::from(murmur3_word(keys[row as usize], 1)) * u64::from(partitions)) >> 32;
        let mut expected = numbers.clone();
        expected.sort_by_cached_key(|row| partition(*row));
        let expected_keys: Vec<u64> = expected.iter().map(|row| keys[*row as usize]).collect();
        for repeat in 0..effort.repeats {
            to.0.fill(&gpu.stream, POISON)?;
            to.1.fill(&gpu.stream, POISON)?;
            let key = KeyColumn { values: from.0.view(), width: 8, is_float: false, validity: None };
            let mut columns = [
                MovedColumn { from: from.0.view(), to: to.0.view_mut(), width: 8 },
                MovedColumn { from: from.1.view(), to: to.1.view_mut(), width: 4 },
            ];
            let places = partitioner.run(&gpu.stream, rows, &[key], &mut columns)?;
            let (found, order): (Vec<u64>, Vec<u32>) =
                (to.0.read(&gpu.stream, keys.len())?, to.1.read(&gpu.stream, keys.len())?);
            // A partition starts with the first row that no partition before it has.
            let start = |number: u64| expected.partition_point(|row| partition(*row) < number) as u64;
            let starts = (0..=u64::from(partitions)).map(start);
            let is_right = order == expected && found == expected_keys && starts.eq(places.starts().iter().copied());
            expect(is_right, || format!("a hash partition {partitions} ways, run {repeat}"))?;
        }
    }
    Ok(())
}

/// Unique keys from 1 on in random order.
fn unique_keys(count: u64) -> Vec<u64> {
    use rand::seq::SliceRandom;
    let mut keys: Vec<u64> = (1..=count).collect();
    keys.shuffle(&mut ChaCha8Rng::seed_from_u64(count));
    keys
}

fn totals(build: &[u64], build_values: &[u64], probe: &[u64], probe_values: &[u64]) -> (u64, u64) {
    let mut table: HashMap<u64, Vec<u64>> = HashMap::new();
    build.iter().zip(build_values).for_each(|(key, value)| table.entry(*key).or_default().push(*value));
    let (mut matches, mut sum) = (0u64, 0u64);
    for (key, value) in probe.iter().zip(probe_values) {
        for matched in table.get(key).into_iter().flatten() {
            matches += 1;
            sum = sum.wrapping_add(*matched).wrapping_add(*value);
        }
    }
    (matches, sum)
}

fn table(gpu: &Gpu, effort: CheckEffort, checked: TableChecked) -> Result<()> {
    let build_tuples = effort.tuples / 4;
    let (kind, build) = match checked {
        TableChecked::Perfect => {
            (TableKind::Perfect { smallest_key: 1, slots: build_tuples }, unique_keys(build_tuples))
        }
        TableChecked::LinearProbing => (TableKind::LinearProbing, unique_keys(build_tuples)),
        TableChecked::MultiValue => {
            let keys = random_values(build_tuples, 5).iter().map(|key| key % (build_tuples / 3 + 1) + 1).collect();
            (TableKind::MultiValue, keys)
        }
    };
    let probe: Vec<u64> = random_values(effort.tuples, 6).iter().map(|key| key % (build_tuples * 2) + 1).collect();
    let values = |count: u64| (0..count).map(|value| value * 3).collect::<Vec<u64>>();
    let (build_values, probe_values) = (values(build_tuples), values(effort.tuples));
    let expected = totals(&build, &build_values, &probe, &probe_values);
    let device = |values: &[u64]| DeviceBuffer::from_slice(&gpu.stream, values);
    let (keys, payload) = (device(&build)?, device(&build_values)?);
    let (probe_keys, probe_payload) = (device(&probe)?, device(&probe_values)?);
    let build_side = JoinSide { keys: keys.view(), values: Values::Eight(payload.view()) };
    let probe_side = JoinSide { keys: probe_keys.view(), values: Values::Eight(probe_payload.view()) };
    for repeat in 0..effort.repeats {
        let mut table = HashTable::new(
            &gpu.kernels,
            kind,
            KeyWidth::Eight,
            build_tuples,
            HashFunction::MultiplyShift,
            TablePlacement::Device,
        )?;
        expect(table.build(&gpu.stream, &build_side)? == 0, || format!("building a table, run {repeat}"))?;
        let found = table.probe_aggregate(&gpu.stream, &probe_side, &PairAggregate::SUMS)?;
        expect((found.matches, found.sum()) == expected, || format!("probing a table, run {repeat}"))?;
    }
    Ok(())
}

fn two_columns((high, low): &(DeviceBuffer, DeviceBuffer)) -> [KeyColumn<'_>; 2] {
    [(high, 8), (low, 4)].map(|(column, width)| KeyColumn {
        values: column.view(),
        width,
        is_float: false,
        validity: None,
    })
}

/// Keys of two columns. Every build key is there twice, and half of the probe rows have one of them.
fn local_join(gpu: &Gpu, effort: CheckEffort) -> Result<()> {
    let (rows, stream) = (effort.tuples, &gpu.stream);
    let (build_rows, keys) = (rows / 4 / 2 * 2, rows / 4 / 2);
    let number = |row: u64| (row * 7 + 3) % keys;
    // The lower column alone is the same for many rows.
    let columns = |numbers: &[u64]| -> Result<_> {
        let high: Vec<u64> = numbers.iter().map(|number| number / 3).collect();
        let low: Vec<u32> = numbers.iter().map(|number| (number % 3) as u32).collect();
        Ok((DeviceBuffer::from_slice(stream, &high)?, DeviceBuffer::from_slice(stream, &low)?))
    };
    let build: Vec<u64> = (0..build_rows).map(|row| row / 2).collect();
    let probe: Vec<u64> = (0..rows).map(|row| if row % 2 == 0 { number(row) } else { keys + row }).collect();
    let (build_columns, probe_columns) = (columns(&build)?, columns(&probe)?);
    let payload = DeviceBuffer::from_slice(stream, &build)?;
    let (join, gather) = (LocalJoin::new(&gpu.kernels)?, Gather::new(&gpu.kernels)?);
    let probe_rows = || (0..rows).step_by(2);
    let expected: Vec<u64> = probe_rows().flat_map(|row| [number(row); 2]).collect();
    let expected_rows: Vec<u32> = probe_rows().flat_map(|row| [row as u32; 2]).collect();
    for repeat in 0..effort.repeats {
        let table = join.build(stream, build_rows, &two_columns(&build_columns))?;
        let pairs = join.probe(stream, &table, rows, &two_columns(&probe_columns))?;
        let mut to = DeviceBuffer::new(gpu.device(), pairs.build.count() * 8)?;
        to.fill(stream, POISON)?;
        let column = MovedColumn { from: payload.view(), to: to.view_mut(), width: 8 };
        gather.run(stream, &pairs.build, &mut [column])?;
        let found: Vec<u64> = to.read(stream, size(pairs.build.count()))?;
        // Both rows of a key, in any order.
        let build_rows = pairs.build.read(stream)?;
        let are_both = build_rows.chunks(2).all(|pair| matches!(pair, [one, other] if one ^ other == 1));
        let is_right = found == expected && pairs.probe.read(stream)? == expected_rows && are_both;
        expect(is_right, || format!("a local join, run {repeat}"))?;
    }
    Ok(())
}

fn partitioned_join(gpu: &Gpu, effort: CheckEffort) -> Result<()> {
    let build_tuples = effort.tuples / 4;
    let build = unique_keys(build_tuples);
    let probe: Vec<u64> = random_values(effort.tuples, 8).iter().map(|key| key % build_tuples + 1).collect();
    let rows = |count: u64| (0..count).collect::<Vec<u64>>();
    let expected = totals(&build, &rows(build_tuples), &probe, &rows(effort.tuples));
    // About a thousand build tuples per partition.
    let bits = (build_tuples / 1024).max(2).ilog2().clamp(1, 11);
    let radix = Radix::new(bits, 0, HashFunction::MultiplyShift)?;
    let partition = |keys: &[u64]| -> Result<_> {
        let input = DeviceBuffer::from_slice(&gpu.stream, keys)?;
        let budget = gpu.device().memory_limit() / 8;
        let tuples = keys.len() as u64;
        let plan = PartitionPlan::new(&gpu.kernels, Algorithm::Shared, KeyWidth::Eight, &[8], radix, tuples, budget)?;
        let mut keys = DeviceBuffer::new(gpu.device(), plan.output_tuples() * 8)?;
        let mut rows = DeviceBuffer::new(gpu.device(), plan.output_tuples() * 8)?;
        keys.fill(&gpu.stream, POISON)?;
        rows.fill(&gpu.stream, POISON)?;
        let from = Input { keys: input.view(), payloads: vec![PayloadInput::RowIds(0)] };
        let mut to = Output { keys: keys.view_mut(), payloads: vec![rows.view_mut()] };
        let partitions = Partitioner::new(&gpu.kernels, plan)?.run(&gpu.stream, &from, &mut to)?;
        Ok((keys, rows, Extents::new(&gpu.stream, &partitions)?))
    };
    let join = PartitionedJoin::new(&gpu.kernels, KeyWidth::Eight, radix)?;
    for repeat in 0..effort.repeats {
        let (build_keys, build_rows, build_extents) = partition(&build)?;
        let (probe_keys, probe_rows, probe_extents) = partition(&probe)?;
        let build_side = PartitionedSide {
            side: JoinSide { keys: build_keys.view(), values: Values::Eight(build_rows.view()) },
            extents: &build_extents,
        };
        let probe_side = PartitionedSide {
            side: JoinSide { keys: probe_keys.view(), values: Values::Eight(probe_rows.view()) },
            extents: &probe_extents,
        };
        let found = join.aggregate(&gpu.stream, &build_side, &probe_side, &PairAggregate::SUMS)?;
        expect((found.matches, found.sum()) == expected, || format!("joining partitions, run {repeat}"))?;
    }
    Ok(())
}

fn transfer(gpu: &Gpu, effort: CheckEffort, method: TransferMethod) -> Result<()> {
    let values = random_values(effort.tuples, 9);
    let expected = values.iter().fold(0u64, |sum, value| sum.wrapping_add(*value));
    let mut access = MemoryAccess::new(&gpu.kernels)?;
    let (host, unified);
    let source = match method.memory() {
        SourceMemory::Unified => {
            let mut buffer = UnifiedBuffer::new(gpu.device(), effort.tuples * 8)?;
            buffer.as_mut_slice::<u64>()?.copy_from_slice(&values);
            unified = buffer;
            Source::Unified(&unified)
        }
        memory => {
            let bytes = size(effort.tuples * 8);
            let mut buffer = match memory {
                SourceMemory::Pinned => HostBuffer::pinned(gpu.device(), bytes, PageSize::Huge)?,
                _ => HostBuffer::new(bytes, PageSize::Small)?,
            };
            buffer.as_mut_slice::<u64>().copy_from_slice(&values);
            host = buffer;
            Source::Host(&host)
        }
    };
    let shape = PipelineShape { chunk_bytes: 2 << 20, ..PipelineShape::default() };
    let mut pipeline = TransferPipeline::new(gpu.device(), method, shape)?;
    for repeat in 0..effort.repeats {
        access.reset(&gpu.stream)?;
        // SAFETY: the pipeline keeps each chunk until its stream is done, and waits for all before it returns.
        pipeline.run(source, |stream, _, chunk| unsafe { access.read(stream, chunk) })?;
        expect(access.sum(&gpu.stream)? == expected, || format!("a transfer, run {repeat}"))?;
    }
    Ok(())
}
