//! A build side on a GPU, and the probe chunks joined with it.

use std::sync::Arc;
use std::time::Duration;

use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use overspill_advisor::Strategy;
use overspill_machine::{Error, Result};
use tracing::debug_span;

use crate::co_processing::SharedTable;
use crate::cpu_partitioned::{self, HostPartitions};
use crate::device::{
    AggregatedPairs, BuildColumns, DeviceCount, DeviceRequest, PairBlock, ProbeKeys, Seat, Unit, words,
};
use crate::no_partition::{GpuTable, GpuTableChunk, Home};
use crate::radix::{RadixChunk, RadixTable};
use crate::triton::{self, PartitionedRelation};
use overspill_join::keys::Keys;
use overspill_join::memory::Grant;

/// A build side in the form that a GPU joins it in.
#[derive(Debug)]
pub(crate) enum DeviceTable {
    NoPartition(GpuTable),
    /// Partitioned by the strategy Triton or CpuPartitioned.
    Partitioned(Strategy, RadixTable),
    Shared(SharedTable),
}

impl DeviceTable {
    /// Builds with the first strategy that is possible. `None` if none is, if a strategy of the CPU comes first, or if the GPU
    /// failed.
    pub(crate) fn build(
        request: &DeviceRequest,
        mut columns: BuildColumns,
        threads: usize,
        memory: &mut Grant,
    ) -> Option<Self> {
        for strategy in &request.advisor.strategies(columns.rows, columns.is_dense()) {
            match request.ended_because() {
                None => {}
                Some(Error::TakenBack) => {
                    request.observer.add(DeviceCount::Moves, 1);
                    return None;
                }
                Some(reason) => {
                    request.observer.failed(*strategy, &reason.to_string());
                    return None;
                }
            }
            let _building =
                debug_span!("give build side to the GPU", strategy = strategy.name(), rows = columns.rows).entered();
            let built = match strategy {
                Strategy::NoPartition | Strategy::Radix | Strategy::Hybrid => return None,
                Strategy::GpuNoPartition => {
                    GpuTable::build(request, &columns, Home::Gpu { threads }, memory).map(Self::NoPartition)
                }
                Strategy::Triton => {
                    triton::build(request, &columns, threads).map(|table| Self::Partitioned(*strategy, table))
                }
                Strategy::CpuPartitioned => cpu_partitioned::build(request, &mut columns, threads)
                    .map(|table| Self::Partitioned(*strategy, table)),
                Strategy::Het => SharedTable::on_host(request, &columns, threads, memory).map(Self::Shared),
                Strategy::GpuHet => SharedTable::copied(request, &columns, memory).map(Self::Shared),
            };
            match built {
                Ok(table) => {
                    let (state, spilled) = match &table {
                        Self::NoPartition(table) | Self::Shared(SharedTable { table, .. }) => {
                            (table.bytes, table.spilled)
                        }
                        Self::Partitioned(_, table) => {
                            (table.build.relation.bytes(), table.build.relation.spilled_bytes())
                        }
                    };
                    request.observer.add(DeviceCount::Joins(table.strategy()), 1);
                    request.observer.add(DeviceCount::BuildRows, columns.rows);
                    request.observer.add(DeviceCount::StateBytes, state);
                    request.observer.add(DeviceCount::SpilledBytes, spilled);
                    return Some(table);
                }
                Err(error) => request.report(*strategy, &error),
            }
        }
        None
    }

    /// Bytes of CPU memory for a build side of `rows` rows, excluding the rows themselves, with any strategy.
    pub(crate) fn host_bytes(rows: usize) -> usize {
        BuildColumns::bytes(rows) + Self::partitioned_bytes(rows)
    }

    /// Bytes of CPU memory that `rows` partitioned rows of either side take with any strategy, if none of them is cached.
    pub(crate) fn partitioned_bytes(rows: usize) -> usize {
        PartitionedRelation::host_bytes(rows).max(HostPartitions::bytes_of(rows))
    }

    /// Bytes of CPU memory that a partition of `rows` probe rows takes while it is staged for kernels, if partitions are staged.
    pub(crate) fn staged_bytes(&self, rows: usize) -> usize {
        match self {
            Self::Partitioned(Strategy::CpuPartitioned, table) => rows * 16 / table.build.relation.fanout().max(1),
            _ => 0,
        }
    }

    /// Number of rows in a chunk for which partitions have the planned size. `None` if chunks are not partitioned.
    pub(crate) fn chunk_rows(&self) -> Option<usize> {
        let Self::Partitioned(_, table) = self else { return None };
        Some(usize::try_from(table.build.plan.chunk_tuples()).unwrap_or(usize::MAX))
    }

    /// Bytes of CPU memory that the build side takes, excluding its rows and memory that was charged separately.
    pub(crate) fn resident_host_bytes(&self) -> usize {
        let bytes = match self {
            Self::NoPartition(_) | Self::Shared(_) => 0,
            Self::Partitioned(Strategy::CpuPartitioned, table) => table.build.relation.spilled_bytes() / 16 * 17,
            Self::Partitioned(_, table) => table.build.relation.spilled_bytes(),
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    pub(crate) fn strategy(&self) -> Strategy {
        match self {
            Self::NoPartition(_) => Strategy::GpuNoPartition,
            Self::Partitioned(strategy, _) => *strategy,
            Self::Shared(shared) => shared.strategy(),
        }
    }

    /// The table, if the CPU probes it as well.
    pub(crate) fn shared(&self) -> Option<&SharedTable> {
        let Self::Shared(shared) = self else { return None };
        Some(shared)
    }

    /// Assigns a chunk to a GPU. `None` if no GPU can join it any more.
    fn seat(&self, request: &DeviceRequest) -> Option<Seat> {
        match self {
            Self::NoPartition(table) | Self::Shared(SharedTable { table, .. }) => table.seat(),
            Self::Partitioned(..) => Seat::take(std::slice::from_ref(&request.gpu)),
        }
    }

    /// Whether a chunk is partitioned when it starts. That waits for a turn on the GPU.
    pub(crate) fn partitions_chunks(&self) -> bool {
        matches!(self, Self::Partitioned(..))
    }

    /// Starts to join a chunk, with `threads` threads. `None` if no GPU joins it; if that is an error, it is reported. A unit has at
    /// most `most_pairs` pairs, or none if kernels aggregate them.
    pub(crate) fn start(
        self: &Arc<Self>,
        request: &DeviceRequest,
        rows: &ChunkKeys,
        most_pairs: u64,
        aggregated: Option<AggregatedPairs>,
        threads: usize,
    ) -> Option<DeviceChunk> {
        let seat = self.seat(request)?;
        // Kernels read partitioned rows in place.
        let is_streamed = self.strategy().streams_probe_rows();
        let method = if is_streamed { request.transfer_method(&seat.gpu) } else { seat.gpu.fastest_method() };
        ProbeKeys::new(&seat.gpu, method, &rows.keys, rows.words.as_deref(), threads)
            .and_then(|keys| self.start_on(request, seat, keys, most_pairs, aggregated, threads))
            .inspect_err(|error| request.report(self.strategy(), error))
            .ok()
    }

    fn start_on(
        self: &Arc<Self>,
        request: &DeviceRequest,
        seat: Seat,
        mut keys: ProbeKeys,
        most_pairs: u64,
        aggregated: Option<AggregatedPairs>,
        threads: usize,
    ) -> Result<DeviceChunk> {
        let has_unmatchable = keys.has_unmatchable;
        if let Self::NoPartition(_) = &**self
            && request.transfer_method(&seat.gpu) == seat.gpu.fastest_method()
        {
            // Kernels that write pairs read packed columns of rows that match only.
            let reads_words = aggregated.as_ref().is_some_and(|aggregated| aggregated.aggregates.reads_probe);
            keys.compress(&request.compressor, reads_words, threads)?;
        }
        let state = match &**self {
            Self::NoPartition(_) | Self::Shared(_) => {
                ChunkState::NoPartition(Box::new(GpuTableChunk::new(seat, keys, most_pairs, aggregated)))
            }
            Self::Partitioned(Strategy::CpuPartitioned, table) => {
                let keys = &mut keys;
                ChunkState::Partitioned(cpu_partitioned::start(table, request, keys, most_pairs, aggregated, threads)?)
            }
            Self::Partitioned(_, table) => {
                ChunkState::Partitioned(triton::start(table, request, &keys, most_pairs, aggregated, threads)?)
            }
        };
        Ok(DeviceChunk { table: Arc::clone(self), state, has_unmatchable, has_failed: false, was_refused: false })
    }
}

/// The keys of a chunk's rows.
#[derive(Debug)]
pub(crate) struct ChunkKeys {
    pub(crate) keys: Vec<Keys>,
    /// The packed columns of the rows, if the GPU gets them.
    pub(crate) words: Option<Vec<ScalarBuffer<u64>>>,
}

/// A chunk of the probe side that is being joined.
#[derive(Debug)]
pub(crate) struct DeviceChunk {
    table: Arc<DeviceTable>,
    state: ChunkState,
    /// Whether some rows cannot match.
    pub(crate) has_unmatchable: bool,
    has_failed: bool,
    /// Whether a refusal was already reported for this chunk.
    was_refused: bool,
}

#[derive(Debug)]
enum ChunkState {
    NoPartition(Box<GpuTableChunk>),
    Partitioned(RadixChunk),
}

impl DeviceChunk {
    /// Joins the next unit and replaces the pairs in the block with its pairs; false if no unit is left. Rows that could not be
    /// joined are among [`DeviceChunk::rest`]. Aggregates computed by kernels are passed to the stream.
    pub(crate) fn next(&mut self, request: &DeviceRequest, block: &mut PairBlock) -> bool {
        let table = &*self.table;
        while !self.has_failed {
            block.clear();
            let _joining = debug_span!("join on the GPU", strategy = table.strategy().name()).entered();
            let joined = match (&mut self.state, table) {
                (
                    ChunkState::NoPartition(chunk),
                    DeviceTable::NoPartition(table) | DeviceTable::Shared(SharedTable { table, .. }),
                ) => chunk.next(table, request, block),
                (ChunkState::Partitioned(chunk), DeviceTable::Partitioned(_, table)) => {
                    chunk.next(&table.build, request, block)
                }
                _ => Err(Error::Invalid("a chunk of another strategy than its table".to_owned())),
            };
            let refused = match &mut self.state {
                ChunkState::NoPartition(chunk) => chunk.take_refused(),
                ChunkState::Partitioned(chunk) => chunk.take_refused(),
            };
            if let Some(error) = refused.filter(|_| !self.was_refused) {
                self.was_refused = true;
                request.report(table.strategy(), &error);
            }
            match joined {
                Ok(Unit::Joined) => return true,
                Ok(Unit::None) => return false,
                Err(error) => {
                    request.report(table.strategy(), &error);
                    self.has_failed = true;
                }
            }
        }
        block.clear();
        false
    }

    /// The rows that have not been joined, given their keys. `None` if there are none.
    pub(crate) fn rest(&self, keys: &Keys) -> Option<BooleanBuffer> {
        let rest = match &self.state {
            ChunkState::NoPartition(chunk) => chunk.rest(),
            ChunkState::Partitioned(chunk) => chunk.rest(&words(keys)),
        };
        (rest.count_set_bits() > 0).then_some(rest)
    }

    /// Number of rows in the units so far, and the time they took. Zero if the chunk's units are not ranges of rows.
    pub(crate) fn progress(&self) -> (u64, Duration) {
        match &self.state {
            ChunkState::NoPartition(chunk) => chunk.progress(),
            ChunkState::Partitioned(_) => (0, Duration::ZERO),
        }
    }

    /// Whether no unit is known to be left.
    pub(crate) fn is_done(&self) -> bool {
        self.has_failed || matches!(&self.state, ChunkState::NoPartition(chunk) if chunk.is_done())
    }

    /// Whether some rows have not been joined. Does not need the keys.
    pub(crate) fn has_rest(&self) -> bool {
        match &self.state {
            ChunkState::NoPartition(chunk) => chunk.has_rest(),
            ChunkState::Partitioned(chunk) => chunk.has_rest(),
        }
    }
}
