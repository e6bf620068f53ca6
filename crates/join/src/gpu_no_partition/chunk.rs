//! A chunk of the probe side.

use std::ops::Range;
use std::time::{Duration, Instant};

use arrow::buffer::BooleanBuffer;
use overspill_machine::{Error, Result};

use super::table::GpuTable;
use crate::device::{
    AggregatedPairs, DeviceCount, DeviceRequest, PAIR_BYTES, PairBlock, PairBuffers, ProbeKeys, Seat, Unit, Workbench,
};

/// A unit is a multiple of so many rows: a page of keys, which some transfer methods pin.
const PAGE_ROWS: u64 = 512;

/// The same where kernels read keys where they are.
const FEWEST_ROWS: u64 = 32;

/// A chunk of probe rows that look into a hash table: a unit is a run of rows, which gets shorter where they have so many matches
/// that there is no room for them.
#[derive(Debug)]
pub(crate) struct GpuTableChunk {
    /// Its place on the GPU that joins all of it.
    seat: Seat,
    keys: ProbeKeys,
    most_pairs: u64,
    /// What kernels aggregate pairs to; `None` if pairs are wanted.
    aggregated: Option<AggregatedPairs>,
    /// The first row of the next unit.
    next: u64,
    unit: u64,
    /// Rows that have been left to the CPU, and why the first of them since it was asked.
    left: Vec<Range<u64>>,
    refused: Option<Error>,
    /// The time of units, from having the turn on.
    busy: Duration,
}

impl GpuTableChunk {
    /// Of keys in memory that the GPU of the place reads.
    pub(crate) fn new(seat: Seat, keys: ProbeKeys, most_pairs: u64, aggregated: Option<AggregatedPairs>) -> Self {
        let unit = keys.rows.next_multiple_of(PAGE_ROWS);
        let (left, busy) = (Vec::new(), Duration::ZERO);
        Self { seat, keys, most_pairs, aggregated, next: 0, unit, left, refused: None, busy }
    }

    fn unit(&self) -> Range<u64> {
        self.next..(self.next + self.unit).min(self.keys.rows)
    }

    pub(crate) fn next(&mut self, table: &GpuTable, request: &DeviceRequest, block: &mut PairBlock) -> Result<Unit> {
        table.check_living()?;
        let gpu = self.seat.gpu();
        let method = request.transfer_method(gpu);
        let mut bench = gpu.turn();
        let begin = Instant::now();
        let budget = gpu.workspace() / 8;
        if let Some(aggregated) = self.aggregated.as_mut().filter(|_| self.next < self.keys.rows) {
            // No pairs need room: all rows that are left are a unit.
            let rows = self.next..self.keys.rows;
            let totals = if method == gpu.fastest_method() {
                let side = self.keys.side(rows.clone())?;
                table.table.probe_aggregate(&bench.stream, &side, aggregated.kernels())?
            } else {
                let source = self.keys.keys.source().ok_or_else(|| Error::Invalid("keys without memory".to_owned()))?;
                let (pipeline, part) = (bench.pipeline(method, budget)?, rows.start * 8..rows.end * 8);
                let values = self.keys.values()?;
                table.table.probe_aggregate_transferred(pipeline, source, part, values, aggregated.kernels())?
            };
            aggregated.add(&totals)?;
            aggregated.hand_on();
            let count = rows.end - rows.start;
            self.next = rows.end;
            request.observer.add(DeviceCount::LinkBytes, count * if aggregated.reads_probe() { 16 } else { 8 });
            request.observer.probed(gpu.device().ordinal(), count);
            request.observer.add(DeviceCount::AggregatedRows, count);
            self.busy += begin.elapsed();
            return Ok(Unit::Joined);
        }
        let copies = Workbench::pipeline_bytes(method, budget);
        // Half of what is left, as there is other work memory.
        let most = (gpu.workspace().saturating_sub(copies) / 2 / PAIR_BYTES).min(self.most_pairs);
        let fewest = if method == gpu.fastest_method() { FEWEST_ROWS } else { PAGE_ROWS };
        let mut capacity = most.min(self.unit().end - self.unit().start);
        while !self.unit().is_empty() {
            let rows = self.unit();
            let mut buffers = PairBuffers::new(gpu, capacity)?;
            let found = if method == gpu.fastest_method() {
                table.table.probe_allocate(&bench.stream, &self.keys.side(rows.clone())?, &mut buffers.pairs())?
            } else {
                let source = self.keys.keys.source().ok_or_else(|| Error::Invalid("keys without memory".to_owned()))?;
                let pipeline = bench.pipeline(method, budget)?;
                let part = rows.start * 8..rows.end * 8;
                table.table.probe_transferred(pipeline, source, part, &mut buffers.pairs())?
            };
            request.observer.add(DeviceCount::LinkBytes, (rows.end - rows.start) * 8);
            if found <= buffers.capacity() {
                let count = usize::try_from(found).map_err(|_| Error::Invalid(format!("{found} pairs")))?;
                buffers.append_to(gpu, &bench.stream, count, block)?;
                request.observer.add(DeviceCount::LinkBytes, found * PAIR_BYTES);
                self.next = rows.end;
                if found <= most / 4 {
                    self.unit = (2 * self.unit).min(self.keys.rows.next_multiple_of(PAGE_ROWS));
                }
                request.observer.probed(gpu.device().ordinal(), rows.end - rows.start);
                self.busy += begin.elapsed();
                return Ok(Unit::Joined);
            }
            if found <= most {
                capacity = found;
            } else if self.unit > fewest {
                capacity = most;
                self.unit = (self.unit / 2).next_multiple_of(fewest);
            } else {
                self.refused.get_or_insert(Error::TooSmall {
                    what: "the matches of a few probe rows",
                    needed: found * PAIR_BYTES,
                    of: "memory for pairs",
                    available: most * PAIR_BYTES,
                });
                self.next = rows.end;
                self.left.push(rows);
            }
        }
        Ok(Unit::None)
    }

    /// Why the first rows were left to the CPU since this was asked last, if some were.
    pub(crate) fn take_refused(&mut self) -> Option<Error> {
        self.refused.take()
    }

    /// The rows of all units so far, and how long the GPU took for them.
    pub(crate) fn progress(&self) -> (u64, Duration) {
        (self.next, self.busy)
    }

    /// Whether no unit is left.
    pub(crate) fn is_done(&self) -> bool {
        self.next >= self.keys.rows
    }

    pub(crate) fn has_rest(&self) -> bool {
        !self.left.is_empty() || self.next < self.keys.rows
    }

    pub(crate) fn rest(&self) -> BooleanBuffer {
        let is_left = |row: u64| row >= self.next || self.left.iter().any(|range| range.contains(&row));
        BooleanBuffer::collect_bool(self.keys.rows as usize, |row| is_left(row as u64))
    }
}
