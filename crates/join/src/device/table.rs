//! A build side on a GPU, and the chunks of the probe side that are joined with it.

use arrow::buffer::BooleanBuffer;
use overspill_machine::{Error, Result};

use super::columns::{BuildColumns, ProbeKeys, words};
use super::pairs::PairBlock;
use super::request::{DeviceCount, DeviceRequest, GpuStrategy};
use crate::gpu_no_partition::{GpuTable, GpuTableChunk};
use crate::keys::Keys;
use crate::triton::{TritonBuild, TritonChunk};

/// A build side that a GPU has taken in.
#[derive(Debug)]
pub(crate) enum DeviceTable {
    NoPartition(GpuTable),
    Triton(TritonBuild),
}

impl DeviceTable {
    /// Takes a build side in by the first of the strategies that is possible; `None` if none is, or the GPU failed.
    pub(crate) fn build(request: &DeviceRequest, columns: &BuildColumns) -> Option<Self> {
        for strategy in &request.strategies {
            if let Some(reason) = request.gpu.lost_because() {
                request.observer.failed(*strategy, reason);
                return None;
            }
            let built = match strategy {
                GpuStrategy::NoPartition => GpuTable::build(request, columns).map(Self::NoPartition),
                GpuStrategy::Triton => TritonBuild::build(request, columns).map(Self::Triton),
            };
            match built {
                Ok(table) => {
                    let (joins, spilled) = match &table {
                        Self::NoPartition(table) => (DeviceCount::NoPartitionJoins, table.spilled_bytes()),
                        Self::Triton(table) => (DeviceCount::TritonJoins, table.spilled_bytes()),
                    };
                    request.observer.add(joins, 1);
                    request.observer.add(DeviceCount::BuildRows, columns.rows);
                    request.observer.add(DeviceCount::SpilledBytes, spilled);
                    return Some(table);
                }
                Err(error) => request.report(*strategy, &error),
            }
        }
        None
    }

    /// Bytes of CPU memory that a build side of so many rows takes besides its rows, whatever the strategy.
    pub(crate) fn host_bytes(rows: usize) -> usize {
        BuildColumns::bytes(rows) + TritonBuild::host_bytes(rows)
    }

    pub(crate) fn strategy(&self) -> GpuStrategy {
        match self {
            Self::NoPartition(_) => GpuStrategy::NoPartition,
            Self::Triton(_) => GpuStrategy::Triton,
        }
    }

    /// Starts on a chunk whose pairs of a unit must be at most so many.
    pub(crate) fn start(&self, request: &DeviceRequest, keys: ProbeKeys, most_pairs: u64) -> Result<DeviceChunk> {
        let state = match self {
            Self::NoPartition(_) => ChunkState::NoPartition(GpuTableChunk::new(keys, most_pairs)),
            Self::Triton(table) => ChunkState::Triton(Box::new(TritonChunk::new(table, request, keys, most_pairs)?)),
        };
        Ok(DeviceChunk { state, has_failed: false, was_refused: false })
    }
}

/// A chunk of the probe side that is being joined.
#[derive(Debug)]
pub(crate) struct DeviceChunk {
    state: ChunkState,
    has_failed: bool,
    /// Whether it was said already that some of it is left to the CPU.
    was_refused: bool,
}

#[derive(Debug)]
enum ChunkState {
    NoPartition(GpuTableChunk),
    Triton(Box<TritonChunk>),
}

/// What became of a unit, or that there is none left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// So many probe rows were joined.
    Joined(u64),
    /// All units are done with.
    None,
}

impl DeviceChunk {
    /// Joins the next unit, whose pairs replace those in the block; false if there is none left. What could not be joined is
    /// among [`DeviceChunk::rest`].
    pub(crate) fn next(&mut self, table: &DeviceTable, request: &DeviceRequest, block: &mut PairBlock) -> bool {
        while !self.has_failed {
            block.clear();
            let joined = match (&mut self.state, table) {
                (ChunkState::NoPartition(chunk), DeviceTable::NoPartition(table)) => chunk.next(table, request, block),
                (ChunkState::Triton(chunk), DeviceTable::Triton(table)) => chunk.next(table, request, block),
                _ => Err(Error::Invalid("a chunk of another strategy than its table".to_owned())),
            };
            match joined {
                Ok(Unit::Joined(rows)) => {
                    request.observer.add(DeviceCount::ProbeRows, rows);
                    return true;
                }
                Ok(Unit::None) => return false,
                // Another unit may be smaller.
                Err(error @ Error::TooSmall { .. }) => {
                    if !std::mem::replace(&mut self.was_refused, true) {
                        request.report(table.strategy(), &error);
                    }
                    match &mut self.state {
                        ChunkState::NoPartition(chunk) => chunk.leave(),
                        ChunkState::Triton(chunk) => chunk.leave(),
                    }
                }
                Err(error) => {
                    request.report(table.strategy(), &error);
                    self.has_failed = true;
                }
            }
        }
        block.clear();
        false
    }

    /// The rows that have not been joined, by their keys; `None` if there are none.
    pub(crate) fn rest(&self, keys: &Keys) -> Option<BooleanBuffer> {
        let rest = match &self.state {
            ChunkState::NoPartition(chunk) => chunk.rest(),
            ChunkState::Triton(chunk) => chunk.rest(&words(keys)),
        };
        (rest.count_set_bits() > 0).then_some(rest)
    }

    /// Whether there are such rows, without their keys.
    pub(crate) fn has_rest(&self) -> bool {
        match &self.state {
            ChunkState::NoPartition(chunk) => chunk.has_rest(),
            ChunkState::Triton(chunk) => chunk.has_rest(),
        }
    }
}
