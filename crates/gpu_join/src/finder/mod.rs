//! Finds pairs on a GPU, chunk by chunk.
//!
//! Where the chunk of a stream is. A stream that ends may leave the rows it is collecting to another one (`LeftRows`) instead:
//!
//! ```text
//!                     full, or the input ended
//!   collecting rows ------------------> Starting ----> Here ----------> Away    a thread of its own joins the next units
//!    ^    |                |               |            ^                |
//!    |    | no memory      | no GPU        | GPU        '----------------|
//!    |    v                v               | refused    pairs are found  | all pairs are found,
//!    |   HandedBack     Nowhere <----------'                             v or the GPU failed
//!    |   to the CPU        |                                            Done
//!    |                     |  Left: rows for the CPU                     |
//!    '---------------------'---------------------------------------------'
//! ```
//!
//! Only those threads wait for the GPU. Meanwhile the stream waits without a thread, or joins rows on the CPU if both processors share
//! the table.

mod shared;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::DataType;
use tracing::debug_span;

use crate::build::DeviceBuild;
use crate::co_processing::Reservation;
use crate::collected::{Added, Collected, FEWEST_PAIRS, PAIRS_PER_ROW};
use crate::device::{self, AggregatedPairs, DeviceCount, DeviceRequest, PAIR_BYTES};
use crate::flight::{Flight, Landing};
use crate::table::{ChunkKeys, DeviceChunk};
use overspill_join::hybrid::{
    AcceleratedRows, AggregatingStream, Found, Lane, LeftOver, PackedPayload, PairAggregation, PairBlock, PairFinder,
    PairRows, ProbeRows, Wait, Wanted,
};
use overspill_join::keys::Keys;
use overspill_join::memory::UnitMemory;
use overspill_join::rows::concat_batches;
use overspill_join::spec::{JoinSpec, Side};
use overspill_join::{JoinError, Result};

use shared::SharedFinder;

/// Rows of the first chunk that probes a hash table, and the most of a later one if GPU memory has room for its pairs. A unit costs
/// two waits and a launch, as long as a hundred thousand rows take to cross a link.
const TABLE_CHUNKS: RangeInclusive<u64> = 1 << 20..=8 << 20;

/// Maximum rows of a partitioned chunk, regardless of the memory: row numbers have 32 bits.
const PARTITIONED_CHUNK: usize = u32::MAX as usize;

/// Collects probe rows in chunks and joins them on a GPU.
#[derive(Debug)]
struct DeviceFinder {
    /// Dropped before the memory that pays for it.
    joining: Option<Joining>,
    /// Pairs of the chunk that have been found but not handed on.
    block: device::PairBlock,
    /// Values of the pairs that are being handed on.
    build_values: Vec<u64>,
    probe_values: Vec<u64>,
    collected: Collected,
    most_rows: usize,
    /// The most rows of later chunks. The first chunk that probes a hash table is small, as a query may want only its first rows.
    largest_chunk: usize,
    memory: Arc<UnitMemory>,
    /// Bytes of a packed key; 0 if its column's values are used without a copy.
    key_bytes: usize,
    /// How probe rows are packed if pairs need no probe row numbers; `None` if pairs contain the numbers.
    payload: Option<PackedPayload>,
    /// Whether rows are packed only for kernels that aggregate pairs.
    only_aggregates: bool,
    /// Receives the aggregates from kernels; `None` if the stream returns all its pairs.
    aggregation: Option<Arc<PairAggregation>>,
    /// The stream, if it leaves its last rows to others, until it has done so.
    leaving: Option<AggregatingStream>,
    /// The batch that did not fit the previous chunk.
    pending: Option<ProbeRows>,
    /// The permission to give rows to a GPU that shares the probe side with the CPU.
    reservation: Option<Reservation>,
    /// Whether the input has ended, so that the stream has nothing to do while a chunk is away.
    has_ended: bool,
    spec: Arc<JoinSpec>,
    device: Arc<DeviceBuild>,
}

#[derive(Debug)]
struct Joining {
    chunk: ChunkPlace,
    rows: ChunkRows,
    /// Whether `Found::Started` has been returned for the unit.
    is_started: bool,
    /// Whether probe values are packed columns, not row numbers.
    is_packed: bool,
    /// The keys of the rows, if pairs must be checked again.
    keys: Option<Keys>,
}

/// The rows of a chunk.
#[derive(Debug)]
enum ChunkRows {
    /// As pairs refer to them.
    Whole(RecordBatch),
    /// As they came. Kernels aggregate their pairs, so that they are no unit unless some are left to the CPU.
    Collected(Vec<RecordBatch>),
}

/// Where a chunk is.
#[derive(Debug)]
enum ChunkPlace {
    /// On its way to the GPU. `None` if that does not take it.
    Starting(Flight<Option<DeviceChunk>>),
    Here(DeviceChunk),
    /// On the GPU.
    Away(Flight<Landed>),
    /// Finished, except for the rows that were not joined.
    Done(DeviceChunk),
    /// The GPU did not take it, or it is being moved.
    Nowhere,
}

/// The result of joining units.
#[derive(Debug)]
struct Landed {
    chunk: DeviceChunk,
    /// The pairs of the last.
    pairs: device::PairBlock,
    /// Whether there was a unit left to join at last.
    was_joined: bool,
    /// Number of rows in the units, and the time the GPU took for them.
    rows: u64,
    time: Duration,
}

impl Landed {
    /// Joins units of a chunk until one has pairs, which replace those in the block: all of them if kernels aggregate.
    fn join(mut chunk: DeviceChunk, mut pairs: device::PairBlock, request: &DeviceRequest, landing: &Landing) -> Self {
        let before = chunk.progress();
        let mut was_joined = chunk.next(request, &mut pairs);
        while was_joined && pairs.len() == 0 && !chunk.is_done() && !landing.is_dropped() {
            was_joined = chunk.next(request, &mut pairs);
        }
        let now = chunk.progress();
        Self { chunk, pairs, was_joined, rows: now.0 - before.0, time: now.1 - before.1 }
    }
}

enum Taken {
    /// The batch was taken, and the chunk has room for more.
    Collected,
    /// The batch was taken or is pending; the chunk is full.
    Full,
    /// There is no memory for the batch: the CPU must join it.
    No(ProbeRows),
    /// The GPU is busy: the CPU joins the batch meanwhile.
    Beside(ProbeRows),
}

impl DeviceFinder {
    /// Creates the finder; `None` if chunks of the probe side cannot be collected.
    fn for_join(
        spec: &Arc<JoinSpec>,
        device: &Arc<DeviceBuild>,
        memory: &Arc<UnitMemory>,
        stream: Option<AggregatingStream>,
    ) -> Option<Self> {
        // The dictionaries of several batches together may have more values than their keys can number.
        if spec.probe_schema.fields().iter().any(|field| has_narrow_dictionary(field.data_type())) {
            return None;
        }
        // A chunk that probes a hash table returns its rows in roughly their order, so their columns are cheap to read
        // unpacked.
        let table = device.searched()?;
        let (first_rows, largest_chunk, payload) = match table.chunk_rows() {
            None => {
                let rows = device.request.gpu.workspace() / 4 / PAIR_BYTES;
                let most = rows.clamp(*TABLE_CHUNKS.start(), *TABLE_CHUNKS.end()) as usize;
                (*TABLE_CHUNKS.start() as usize, most, None)
            }
            Some(rows) => {
                let packed = device.payload.as_ref().and_then(|_| PackedPayload::of(spec, Side::Probe));
                let rows = rows.min(PARTITIONED_CHUNK);
                (rows, rows, packed.filter(|payload| !payload.is_empty()))
            }
        };
        let reads_probe = device.aggregates.as_ref().is_some_and(|aggregates| aggregates.reads_probe);
        let only_aggregates = payload.is_none() && reads_probe && stream.is_some();
        let payload = if only_aggregates { PackedPayload::of(spec, Side::Probe) } else { payload };
        Some(Self {
            collected: Collected::new(memory, spec.probe_schema.fields().len(), payload.is_some()),
            most_rows: first_rows,
            largest_chunk,
            memory: Arc::clone(memory),
            key_bytes: spec.codec.packed_bytes().unwrap_or(0),
            payload,
            only_aggregates,
            aggregation: stream.as_ref().map(|stream| Arc::clone(&stream.aggregation)),
            // Small chunks of a hash table cost little more than large ones.
            leaving: stream.filter(|_| table.chunk_rows().is_some()),
            pending: None,
            joining: None,
            block: device::PairBlock::default(),
            build_values: Vec::new(),
            probe_values: Vec::new(),
            reservation: None,
            has_ended: false,
            spec: Arc::clone(spec),
            device: Arc::clone(device),
        })
    }

    /// Adds a batch to the chunk that is being collected.
    fn collect(&mut self, device: &DeviceBuild, probe_rows: ProbeRows) -> Taken {
        if probe_rows.batch.num_rows() == 0 {
            return Taken::Collected;
        }
        if let Some(shared) = device.shared() {
            if self.joining.is_none() && self.reservation.is_none() && device.request.ended_because().is_none() {
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
        let Some(table) = device.searched() else {
            // The query has the GPU no more.
            if self.collected.rows == 0 {
                return Taken::No(probe_rows);
            }
            self.pending = Some(probe_rows);
            return Taken::Full;
        };
        match self.collected.add(probe_rows, &table, self.payload.as_ref(), self.key_bytes, self.most_rows) {
            Added::Taken if self.collected.rows < self.most_rows => Taken::Collected,
            Added::Taken => Taken::Full,
            Added::NoMemory(probe_rows) => {
                // Rows that others have left hold memory until they are joined.
                if self.may_leave() {
                    let own = self.take_collected();
                    self.collected = device.left.take(own, self.largest_chunk);
                }
                if self.collected.rows == 0 {
                    self.clear();
                    return Taken::No(probe_rows);
                }
                self.pending = Some(probe_rows);
                Taken::Full
            }
            Added::Full(probe_rows) => {
                self.pending = Some(probe_rows);
                Taken::Full
            }
        }
    }

    /// Whether other streams may join the collected rows, and this one theirs.
    fn may_leave(&self) -> bool {
        let has_gpu = self.device.request.ended_because().is_none();
        self.leaving.is_some() && (self.collected.rows == 0 || self.aggregated().is_some() && has_gpu)
    }

    fn take_collected(&mut self) -> Collected {
        let nothing = self.nothing();
        std::mem::replace(&mut self.collected, nothing)
    }

    /// The aggregates of the collected rows' pairs, if kernels can aggregate them.
    fn aggregated(&self) -> Option<AggregatedPairs> {
        let (aggregates, aggregation) = (self.device.aggregates.as_ref()?, self.aggregation.as_ref()?);
        // Rows that cannot match have a key word that other rows may have, so their pairs must be checked.
        let collected = &self.collected;
        let can = collected.are_matchable() && (collected.words.is_some() || !aggregates.reads_probe);
        if can { AggregatedPairs::new(aggregates, aggregation) } else { None }
    }

    /// Starts joining the collected rows.
    fn start(&mut self) -> Result<()> {
        let device = Arc::clone(&self.device);
        let aggregated = self.aggregated();
        let collected = &mut self.collected;
        let threads = collected.threads();
        let giving = debug_span!("give chunk to the GPU", rows = collected.rows, streams = collected.streams);
        let keys = std::mem::take(&mut collected.keys);
        let batches = std::mem::take(&mut collected.batches);
        let mut words = collected.words.take();
        let rows = std::mem::take(&mut collected.rows);
        if self.only_aggregates && aggregated.is_none() {
            words = None;
        }
        let (has_pairs, is_packed) = (aggregated.is_none(), words.is_some());
        let most_pairs = (rows * PAIRS_PER_ROW).max(FEWEST_PAIRS) as u64;
        let chunk = match device.table() {
            None => ChunkPlace::Nowhere,
            Some(table) => {
                let (request, keys) = (device.request.clone(), ChunkKeys { keys, words });
                let partitions = table.partitions_chunks();
                let start = move |_: &Landing| {
                    let _giving = giving.entered();
                    table.start(&request, &keys, most_pairs, aggregated, threads)
                };
                // Without partitions the CPU copies the keys, and nothing waits for the GPU.
                if partitions {
                    ChunkPlace::Starting(Flight::start(start))
                } else {
                    ChunkPlace::of(start(&Landing::default()))
                }
            }
        };
        let rows = if has_pairs {
            ChunkRows::Whole(concat_batches(self.spec.schema(Side::Probe), batches, 1)?)
        } else {
            ChunkRows::Collected(batches)
        };
        self.joining = Some(Joining { chunk, rows, is_started: false, is_packed, keys: None });
        self.block.clear();
        self.take_keys()
    }

    /// Computes the keys of the chunk that is here, if its pairs must be checked.
    fn take_keys(&mut self) -> Result<()> {
        let has_hashes = self.device.keys.is_some();
        match &mut self.joining {
            Some(Joining { chunk: ChunkPlace::Here(chunk), rows: ChunkRows::Whole(batch), keys, .. })
                if chunk.has_unmatchable || has_hashes =>
            {
                *keys = Some(self.spec.keys(Side::Probe, batch)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the chunk is on another thread.
    fn is_away(&self) -> bool {
        let place = self.joining.as_ref().map(|joining| &joining.chunk);
        matches!(place, Some(ChunkPlace::Starting(_) | ChunkPlace::Away(_)))
    }

    /// Takes the chunk back if its thread is done with it. Otherwise returns what to wait for.
    fn land(&mut self) -> Result<Option<Wait>> {
        let Some(joining) = &mut self.joining else { return Ok(None) };
        match std::mem::replace(&mut joining.chunk, ChunkPlace::Nowhere) {
            ChunkPlace::Starting(flight) if flight.has_landed() => {
                joining.chunk = ChunkPlace::of(flight.land());
                self.take_keys()?;
            }
            ChunkPlace::Away(flight) if flight.has_landed() => {
                let Landed { chunk, pairs, was_joined, rows, time } = flight.land();
                self.block = pairs;
                if let Some(shared) = self.device.shared().filter(|_| was_joined) {
                    shared.dispatcher.note(rows, time);
                }
                joining.chunk = if was_joined && !chunk.is_done() {
                    ChunkPlace::Here(chunk)
                } else {
                    // Releases the GPU for others, however long it takes to hand on the pairs.
                    self.reservation = None;
                    ChunkPlace::Done(chunk)
                }
            }
            place => {
                joining.chunk = place;
                return Ok(match &joining.chunk {
                    ChunkPlace::Starting(flight) => Some(Wait::new(flight.landing())),
                    ChunkPlace::Away(flight) => Some(Wait::new(flight.landing())),
                    _ => None,
                });
            }
        }
        Ok(None)
    }

    /// Continues with the chunk that is here.
    fn search(&mut self, device: &DeviceBuild, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        let Some(joining) = &mut self.joining else { return Ok(Found::Idle) };
        if !joining.is_started {
            joining.is_started = true;
            if let ChunkRows::Whole(batch) = &joining.rows {
                return Ok(Found::Started(Lane::Main, batch.clone()));
            }
        }
        if self.block.len() == 0 {
            joining.chunk = match std::mem::replace(&mut joining.chunk, ChunkPlace::Nowhere) {
                ChunkPlace::Here(chunk) => {
                    let (request, block) = (device.request.clone(), std::mem::take(&mut self.block));
                    ChunkPlace::Away(Flight::start(move |landing| Landed::join(chunk, block, &request, landing)))
                }
                other => other,
            };
            // The next call waits for the thread.
            return if self.is_away() { Ok(Found::Working) } else { self.finish(device) };
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

    /// Ends the chunk after all its pairs have been handed on.
    fn finish(&mut self, device: &DeviceBuild) -> Result<Found> {
        let Some(joining) = self.joining.take() else { return Ok(Found::Idle) };
        let spec = Arc::clone(&self.spec);
        let is_done = matches!(&joining.chunk, ChunkPlace::Done(done) if !done.has_rest());
        let (chunk, rows) = match joining.rows {
            // The rows that are left refer to a unit after all.
            ChunkRows::Collected(batches) if !is_done => {
                let batch = concat_batches(spec.schema(Side::Probe), batches, 1)?;
                self.joining = Some(Joining { rows: ChunkRows::Whole(batch.clone()), ..joining });
                return Ok(Found::Started(Lane::Main, batch));
            }
            rows => (joining.chunk, rows),
        };
        let keys = |batch: &RecordBatch| spec.keys(Side::Probe, batch);
        let rest = match (rows, &chunk) {
            (ChunkRows::Whole(batch), ChunkPlace::Done(done)) if !is_done => {
                done.rest(&keys(&batch)?).map(|rest| (batch, rest))
            }
            (ChunkRows::Whole(batch), _) if !is_done && batch.num_rows() > 0 => {
                let all = BooleanBuffer::new_set(batch.num_rows());
                Some((batch, all))
            }
            _ => None,
        };
        drop(chunk);
        let left = rest.as_ref().map_or(0, |(_, rest)| rest.count_set_bits());
        device.request.observer.add(DeviceCount::ReturnedRows, left as u64);
        self.clear();
        let Some((batch, rest)) = rest else { return Ok(Found::Done(Lane::Main)) };
        // Rows that have found their matches must not find them again.
        let mut keys = keys(&batch)?;
        keys.matchable = NullBuffer::union(keys.matchable.as_ref(), Some(&NullBuffer::new(rest)));
        Ok(Found::Left(ProbeRows { batch, keys, is_apart: true }))
    }

    /// Resets the finder for the next chunk.
    fn clear(&mut self) {
        self.most_rows = (2 * self.most_rows).min(self.largest_chunk);
        self.joining = None;
        self.reservation = None;
        self.block.clear();
        self.collected = self.nothing();
    }

    /// No collected rows.
    fn nothing(&self) -> Collected {
        Collected::new(&self.memory, self.spec.probe_schema.fields().len(), self.payload.is_some())
    }
}

impl PairFinder for DeviceFinder {
    fn push(&mut self, rows: ProbeRows) -> Result<Option<ProbeRows>> {
        let device = Arc::clone(&self.device);
        if rows.is_apart {
            return Ok(Some(rows));
        }
        let (observer, count) = (&device.request.observer, rows.batch.num_rows() as u64);
        match self.collect(&device, rows) {
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
        let device = Arc::clone(&self.device);
        if let Some(wait) = self.land()?
            && (self.has_ended || device.shared().is_none())
        {
            return Ok(Found::Waiting(wait));
        }
        if self.joining.is_some() && !self.is_away() {
            return self.search(&device, wanted, pairs);
        }
        // While a chunk is on a GPU that shares the rows with the CPU, `push` hands the batch back and the CPU joins it.
        let Some(pending) = self.pending.take() else { return Ok(Found::Idle) };
        Ok(self.push(pending)?.map_or(Found::Working, Found::HandedBack))
    }

    fn end(&mut self) -> Result<bool> {
        if self.may_leave() {
            let (rows, device) = (self.take_collected(), Arc::clone(&self.device));
            if let Some(rows) = device.left.leave(rows, &mut self.leaving, self.largest_chunk) {
                self.collected = rows;
            }
        }
        if self.collected.rows > 0 {
            self.start()?;
            return Ok(true);
        }
        self.has_ended = true;
        Ok(self.is_away())
    }

    fn packed_rows(&self) -> Option<&PackedPayload> {
        self.payload.as_ref()
    }
}

impl AcceleratedRows for DeviceBuild {
    fn payload(&self) -> Option<&PackedPayload> {
        self.payload.as_ref()
    }

    fn finder(
        self: Arc<Self>,
        spec: &Arc<JoinSpec>,
        memory: &Arc<UnitMemory>,
        aggregating: Option<AggregatingStream>,
        on_cpu: Box<dyn PairFinder>,
    ) -> Box<dyn PairFinder> {
        match DeviceFinder::for_join(spec, &self, memory, aggregating) {
            Some(device) if self.shared().is_some() => {
                Box::new(LeftOver::new(Box::new(device), Box::new(SharedFinder::new(&self))))
            }
            Some(device) => Box::new(LeftOver::new(Box::new(device), on_cpu)),
            None => on_cpu,
        }
    }
}

impl ChunkPlace {
    /// Of a chunk, unless the GPU did not take it.
    fn of(started: Option<DeviceChunk>) -> Self {
        started.map_or(Self::Nowhere, Self::Here)
    }
}

impl DeviceBuild {
    /// Moves the build values of pairs, as the GPU returned them, into a block; `values` is left unspecified.
    fn take_values(&self, values: &mut Vec<u64>, build: &mut PairRows) {
        if self.payload.is_some() {
            std::mem::swap(build.packed(), values);
        } else {
            take_numbers(values, build);
        }
    }
}

/// Copies the row numbers of pairs into a block.
fn take_numbers(values: &[u64], rows: &mut PairRows) {
    let numbers = rows.numbers();
    numbers.clear();
    numbers.extend(values.iter().map(|row| *row as u32));
}

/// Whether a type contains a dictionary with keys of 8 or 16 bits.
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
