//! Pairs that a GPU finds, chunk by chunk.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::DataType;
use tracing::debug_span;

use super::block::PairRows;
use super::{Found, Lane, PairBlock, PairFinder, ProbeRows, Wanted};
use crate::co_processing::{Flight, Reservation};
use crate::cpu_partitioned;
use crate::device::{self, AggregatedPairs, DeviceChunk, DeviceCount, PAIR_BYTES, PairAggregation, ProbeKeys};
use crate::error::{JoinError, Result};
use crate::hybrid::build::add_offset_bytes;
use crate::hybrid::build_side::BuildSide;
use crate::hybrid::device_build::{DeviceBuild, wants_no_numbers};
use crate::hybrid::payload::PackedPayload;
use crate::join_type::JoinType;
use crate::keys::Keys;
use crate::memory::{Grant, HeldMemory, UnitMemory};
use crate::rows::concat_batches;
use crate::spec::{JoinSpec, Side};
use crate::triton;

/// Rows of a chunk that looks into a hash table: enough that a launch is nothing beside them.
const TABLE_CHUNK: usize = 1 << 20;

/// The most rows of a chunk that is partitioned, whatever memory there is: they have numbers of 32 bits.
const PARTITIONED_CHUNK: usize = u32::MAX as usize;

/// Pairs that there is memory for, for each row of a chunk, and at least: where rows have more matches, units are shorter.
const PAIRS_PER_ROW: usize = 2;
const FEWEST_PAIRS: usize = 1 << 16;

/// Collects probe rows in chunks, and joins them on a GPU.
#[derive(Debug)]
pub(super) struct DeviceFinder {
    /// Dropped before the memory that pays for it.
    joining: Option<Joining>,
    /// Pairs of the chunk that have been found and not handed on.
    block: device::PairBlock,
    /// They, while they are handed on.
    build_values: Vec<u64>,
    probe_values: Vec<u64>,
    /// Rows that are collected, and their keys.
    batches: Vec<RecordBatch>,
    keys: Vec<Keys>,
    rows: usize,
    most_rows: usize,
    /// For each column whose arrays address their values by 32-bit offsets, the bytes of values so far.
    offsets: Vec<usize>,
    grant: Grant,
    held: HeldMemory,
    /// Whether chunks are partitioned, which takes a copy of them.
    is_partitioned: bool,
    /// Bytes of a packed key that are not those of its column.
    key_bytes: usize,
    /// How rows of the probe side are packed, if their numbers are not wanted; `None` if the numbers are.
    payload: Option<PackedPayload>,
    /// Whether they are packed for kernels that aggregate pairs alone.
    only_aggregates: bool,
    /// Takes what kernels aggregate; `None` if the stream gives all its pairs.
    aggregation: Option<Arc<PairAggregation>>,
    /// The packed columns of the rows that are collected; `None` if a row cannot be packed.
    words: Option<Vec<ScalarBuffer<u64>>>,
    /// The batch that did not fit the chunk before.
    pending: Option<ProbeRows>,
    /// The right to give rows to a GPU that shares the probe side with the CPU.
    reservation: Option<Reservation>,
    spec: Arc<JoinSpec>,
    build: Arc<BuildSide>,
}

/// The chunk that is being joined.
#[derive(Debug)]
struct Joining {
    chunk: ChunkPlace,
    /// Its rows.
    batch: RecordBatch,
    /// Whether the unit has started.
    is_told: bool,
    /// Whether its values are packed columns, not numbers of rows.
    is_packed: bool,
    /// The keys of its rows, if pairs must be looked at again.
    keys: Option<Keys>,
}

/// Where a chunk is.
#[derive(Debug)]
enum ChunkPlace {
    Here(DeviceChunk),
    /// On the GPU, while its stream does something else.
    Away(Flight),
    /// Done with, up to the rows that were not joined.
    Done(DeviceChunk),
    /// It was not taken, or is changing places.
    Nowhere,
}

/// Whether a batch was taken into a chunk.
enum Taken {
    /// It was, and there is room for more.
    Collected,
    /// It was, or will be; a chunk is full.
    Full,
    /// There is no memory for it: the CPU must join it.
    No(ProbeRows),
    /// The GPU has enough to do: the CPU joins it beside.
    Beside(ProbeRows),
}

impl DeviceFinder {
    /// For a build side on a GPU; `None` if it is not on one.
    pub(super) fn for_join(
        spec: &Arc<JoinSpec>,
        build: &Arc<BuildSide>,
        memory: &Arc<UnitMemory>,
        aggregation: Option<&Arc<PairAggregation>>,
    ) -> Option<Self> {
        let device = build.device.as_ref()?;
        // Dictionaries of several batches may have more values together than keys for them.
        if spec.probe_schema.fields().iter().any(|field| has_narrow_dictionary(field.data_type())) {
            return None;
        }
        // The rows of a chunk that looks into a table come in about their order, so that their columns are at hand.
        let (most_rows, payload) = match device.table.chunk_rows() {
            None => (TABLE_CHUNK, None),
            Some(rows) => (rows.min(PARTITIONED_CHUNK), probe_payload(spec, device)),
        };
        let reads_probe = device.aggregates.as_ref().is_some_and(|aggregates| aggregates.reads_probe);
        let only_aggregates = payload.is_none() && reads_probe && aggregation.is_some();
        let payload = if only_aggregates { PackedPayload::of(spec, Side::Probe) } else { payload };
        Some(Self {
            batches: Vec::new(),
            keys: Vec::new(),
            rows: 0,
            most_rows,
            offsets: vec![0; spec.probe_schema.fields().len()],
            grant: memory.grant(),
            held: HeldMemory::default(),
            words: payload.is_some().then(Vec::new),
            is_partitioned: device.table.chunk_rows().is_some(),
            key_bytes: spec.codec.packed_bytes().unwrap_or(0),
            payload,
            only_aggregates,
            aggregation: aggregation.cloned(),
            pending: None,
            joining: None,
            block: device::PairBlock::default(),
            build_values: Vec::new(),
            probe_values: Vec::new(),
            reservation: None,
            spec: Arc::clone(spec),
            build: Arc::clone(build),
        })
    }

    /// Takes a batch into the chunk that is collected.
    fn collect(&mut self, device: &DeviceBuild, probe_rows: ProbeRows) -> Taken {
        let ProbeRows { batch, keys, .. } = &probe_rows;
        let rows = batch.num_rows();
        if rows == 0 {
            return Taken::Collected;
        }
        if let Some(shared) = device.table.shared() {
            if self.joining.is_none() && self.reservation.is_none() && device.request.gpu.lost_because().is_none() {
                self.reservation = shared.dispatcher.try_reserve();
                self.most_rows = shared.dispatcher.batch_rows();
            }
            if self.joining.is_some() || self.reservation.is_none() {
                return Taken::Beside(probe_rows);
            }
        }
        debug_assert!(
            self.pending.is_none() && self.joining.is_none(),
            "a chunk is joined before the next is collected"
        );
        let is_addressable = add_offset_bytes(batch, &mut self.offsets);
        if self.rows > 0 && (self.rows + rows > self.most_rows || !is_addressable) {
            self.pending = Some(probe_rows);
            return Taken::Full;
        }
        let is_packable = self.payload.as_ref().is_some_and(|payload| keys.matchable.is_none() && payload.takes(batch));
        // The columns are copied once, when the chunk is complete; keys and columns cross the link from memory of their own,
        // and where they are partitioned, partitions are a copy more.
        let partitions = |rows| triton::host_bytes(rows).max(cpu_partitioned::host_bytes(rows));
        let paid = if self.rows > 0 { partitions(self.rows) } else { 0 };
        let partitions = partitions(self.rows + rows).saturating_sub(paid);
        let copies = ProbeKeys::bytes(rows, true) + if self.is_partitioned { partitions } else { 0 };
        // Keys that are not a column are there until they are copied, and again if pairs are looked at; so are packed columns.
        let packed = rows * (2 * self.key_bytes + size_of::<u64>());
        // Those that are handed on, and those that are found meanwhile.
        let pairs = |rows: usize| 2 * (rows * PAIRS_PER_ROW).max(FEWEST_PAIRS) * PAIR_BYTES as usize;
        let pairs = pairs(self.rows + rows) - if self.rows > 0 { pairs(self.rows) } else { 0 };
        if self.grant.try_grow(2 * self.held.add(batch) + 2 * keys.bytes() + packed + copies + pairs).is_err() {
            if self.rows == 0 {
                self.clear();
                return Taken::No(probe_rows);
            }
            self.pending = Some(probe_rows);
            return Taken::Full;
        }
        match (&mut self.words, &self.payload) {
            (Some(words), Some(payload)) if is_packable => words.push(payload.pack(batch)),
            (words, _) => *words = None,
        }
        self.rows += rows;
        self.batches.push(probe_rows.batch);
        self.keys.push(probe_rows.keys);
        if self.rows == self.most_rows { Taken::Full } else { Taken::Collected }
    }

    /// Starts joining what has been collected.
    fn start(&mut self) -> Result<()> {
        let build = Arc::clone(&self.build);
        let Some(device) = &build.device else { return Ok(()) };
        let request = &device.request;
        let _giving = debug_span!("give chunk to the GPU", rows = self.rows).entered();
        let keys = std::mem::take(&mut self.keys);
        let batches = std::mem::take(&mut self.batches);
        let mut words = self.words.take();
        let rows = std::mem::take(&mut self.rows);
        // Rows that cannot match have a key that others may have: their pairs are looked at.
        let are_matchable = keys.iter().all(|keys| keys.matchable.is_none());
        let aggregates = device.aggregates.as_ref();
        let aggregated = aggregates
            .filter(|aggregates| are_matchable && (words.is_some() || !aggregates.reads_probe))
            .zip(self.aggregation.as_ref())
            .and_then(|(aggregates, aggregation)| AggregatedPairs::new(aggregates, aggregation));
        if self.only_aggregates && aggregated.is_none() {
            words = None;
        }
        let started = device.table.seat(request).and_then(|seat| {
            let gpu = Arc::clone(seat.gpu());
            // Kernels read what is partitioned where it is.
            let is_streamed = device.table.strategy().streams_probe_rows();
            let method = if is_streamed { request.transfer_method(&gpu) } else { gpu.fastest_method() };
            let most_pairs = (rows * PAIRS_PER_ROW).max(FEWEST_PAIRS) as u64;
            let start = |keys: ProbeKeys| {
                Ok((keys.has_unmatchable, device.table.start(request, seat, keys, most_pairs, aggregated)?))
            };
            ProbeKeys::new(&gpu, method, &keys, words.as_deref(), 1)
                .and_then(start)
                .inspect_err(|error| request.report(device.table.strategy(), error))
                .ok()
        });
        drop(keys);
        let batch = concat_batches(self.spec.schema(Side::Probe), batches, 1)?;
        let is_packed = words.is_some();
        let (chunk, keys) = match started {
            Some((has_unmatchable, chunk)) => {
                let is_looked_at = has_unmatchable || device.keys.is_some();
                let keys = is_looked_at.then(|| self.spec.keys(Side::Probe, &batch)).transpose()?;
                let chunk = match device.table.shared() {
                    Some(_) => ChunkPlace::Away(Flight::start(&device.table, request, chunk)),
                    None => ChunkPlace::Here(chunk),
                };
                (chunk, keys)
            }
            None => (ChunkPlace::Nowhere, None),
        };
        self.joining = Some(Joining { chunk, batch, is_told: false, is_packed, keys });
        self.block.clear();
        Ok(())
    }

    /// Whether the GPU is at work on a chunk that need not be waited for.
    fn is_away(&self) -> bool {
        self.joining.as_ref().is_some_and(|joining| matches!(&joining.chunk, ChunkPlace::Away(_)))
    }

    /// Whether it is done with it.
    fn has_landed(&self) -> bool {
        let has_landed = |flight: &Flight| flight.has_landed();
        self.joining.as_ref().is_some_and(|joining| matches!(&joining.chunk, ChunkPlace::Away(at) if has_landed(at)))
    }

    /// Waits until it is, and takes its pairs.
    fn land(&mut self, device: &DeviceBuild) {
        let Some(joining) = &mut self.joining else { return };
        joining.chunk = match std::mem::replace(&mut joining.chunk, ChunkPlace::Nowhere) {
            ChunkPlace::Away(flight) => {
                let landed = flight.land(&device.table, &device.request);
                self.block = landed.pairs;
                if let Some(shared) = device.table.shared().filter(|_| landed.was_joined) {
                    shared.dispatcher.note(landed.rows, landed.time);
                }
                if landed.was_joined && !landed.chunk.is_done() {
                    ChunkPlace::Here(landed.chunk)
                } else {
                    // The GPU is free for others, however long the pairs take.
                    self.reservation = None;
                    ChunkPlace::Done(landed.chunk)
                }
            }
            other => other,
        };
    }

    /// Goes on with the chunk that is here.
    fn search(&mut self, device: &DeviceBuild, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        let Some(joining) = &mut self.joining else { return Ok(Found::Idle) };
        if !joining.is_told {
            joining.is_told = true;
            return Ok(Found::Started(Lane::Main, joining.batch.clone()));
        }
        if self.block.len() == 0 {
            let place = std::mem::replace(&mut joining.chunk, ChunkPlace::Nowhere);
            joining.chunk = match place {
                ChunkPlace::Here(chunk) if device.table.shared().is_some() => {
                    ChunkPlace::Away(Flight::start(&device.table, &device.request, chunk))
                }
                ChunkPlace::Here(mut chunk) => match chunk.next(&device.table, &device.request, &mut self.block) {
                    true => ChunkPlace::Here(chunk),
                    false => ChunkPlace::Done(chunk),
                },
                other => other,
            };
            match &joining.chunk {
                ChunkPlace::Here(_) => {}
                ChunkPlace::Away(_) => return Ok(Found::Working),
                ChunkPlace::Done(_) | ChunkPlace::Nowhere => return self.finish(device),
            }
        }
        let (build, probe) = (&mut self.build_values, &mut self.probe_values);
        build.clear();
        probe.clear();
        self.block.take(wanted.pairs, build, probe).map_err(JoinError::host)?;
        if let Some(keys) = &joining.keys {
            device.keep_equal(keys, build, probe);
        }
        device.take_values(build, &mut pairs.build);
        if joining.is_packed {
            std::mem::swap(pairs.probe.packed(), probe);
        } else {
            take_numbers(probe, &mut pairs.probe);
        }
        Ok(Found::Pairs(Lane::Main))
    }

    /// Ends the chunk, of which all pairs have been handed on.
    fn finish(&mut self, device: &DeviceBuild) -> Result<Found> {
        let Some(Joining { chunk, batch, .. }) = self.joining.take() else { return Ok(Found::Idle) };
        let spec = Arc::clone(&self.spec);
        let keys = |batch: &RecordBatch| spec.keys(Side::Probe, batch);
        let rest = match &chunk {
            ChunkPlace::Done(done) if done.has_rest() => done.rest(&keys(&batch)?),
            ChunkPlace::Done(_) => None,
            _ => (batch.num_rows() > 0).then(|| BooleanBuffer::new_set(batch.num_rows())),
        };
        drop(chunk);
        let left = rest.as_ref().map_or(0, BooleanBuffer::count_set_bits);
        device.request.observer.add(DeviceCount::ReturnedRows, left as u64);
        self.clear();
        let Some(rest) = rest else { return Ok(Found::Done(Lane::Main)) };
        // The rows that have found their matches find them no more.
        let mut keys = keys(&batch)?;
        keys.matchable = NullBuffer::union(keys.matchable.as_ref(), Some(&NullBuffer::new(rest)));
        Ok(Found::Left(ProbeRows { batch, keys, is_apart: true }))
    }

    /// Makes room for the next chunk.
    fn clear(&mut self) {
        self.joining = None;
        self.reservation = None;
        self.block.clear();
        self.held = HeldMemory::default();
        self.offsets.fill(0);
        self.words = self.payload.is_some().then(Vec::new);
        let bytes = self.grant.bytes();
        self.grant.shrink(bytes);
    }
}

impl PairFinder for DeviceFinder {
    fn push(&mut self, rows: ProbeRows) -> Result<Option<ProbeRows>> {
        let build = Arc::clone(&self.build);
        let Some(device) = &build.device else { return Ok(Some(rows)) };
        if rows.is_apart {
            return Ok(Some(rows));
        }
        let (observer, count) = (&device.request.observer, rows.batch.num_rows() as u64);
        match self.collect(device, rows) {
            Taken::Collected => {}
            Taken::Full => self.start()?,
            Taken::No(rows) => {
                observer.add(DeviceCount::ReturnedRows, count);
                return Ok(Some(rows));
            }
            Taken::Beside(rows) => {
                observer.add(DeviceCount::SharedRows, count);
                return Ok(Some(rows));
            }
        }
        Ok(None)
    }

    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        let build = Arc::clone(&self.build);
        let Some(device) = &build.device else { return Ok(Found::Idle) };
        if self.has_landed() {
            self.land(device);
        }
        if self.joining.is_some() && !self.is_away() {
            return self.search(device, wanted, pairs);
        }
        // Beside a chunk that is away the CPU joins it.
        let Some(pending) = self.pending.take() else { return Ok(Found::Idle) };
        Ok(self.push(pending)?.map_or(Found::Working, Found::HandedBack))
    }

    fn end(&mut self) -> Result<bool> {
        if self.rows > 0 {
            self.start()?;
            return Ok(true);
        }
        let build = Arc::clone(&self.build);
        match &build.device {
            Some(device) if self.is_away() => self.land(device),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn packed_rows(&self) -> Option<&PackedPayload> {
        self.payload.as_ref()
    }
}

impl DeviceBuild {
    /// Takes the values of the build rows of pairs, as the GPU has them, into a block; anything is left in `values`.
    pub(super) fn take_values(&self, values: &mut Vec<u64>, build: &mut PairRows) {
        if self.payload.is_some() {
            std::mem::swap(build.packed(), values);
        } else {
            take_numbers(values, build);
        }
    }
}

/// Takes the numbers of the rows of pairs into a block.
pub(super) fn take_numbers(values: &[u64], rows: &mut PairRows) {
    let numbers = rows.numbers();
    numbers.clear();
    numbers.extend(values.iter().map(|row| *row as u32));
}

/// Whether values are numbered by 8 or 16 bits.
fn has_narrow_dictionary(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(key, _) => key.primitive_width().is_some_and(|bytes| bytes < 4),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_narrow_dictionary(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_narrow_dictionary(field.data_type())),
        _ => false,
    }
}

/// How probe rows are packed, if a join wants nothing of them but their columns with those of their matches.
fn probe_payload(spec: &JoinSpec, device: &DeviceBuild) -> Option<PackedPayload> {
    let is_wanted = spec.join_type == JoinType::Inner
        && spec.filter.is_none()
        && wants_no_numbers(spec)
        && device.payload.is_some();
    PackedPayload::of(spec, Side::Probe).filter(|payload| is_wanted && !payload.is_empty())
}
