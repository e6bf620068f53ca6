//! A probe chunk of the no-partitioning join.

use std::ops::Range;
use std::time::{Duration, Instant};

use arrow::buffer::BooleanBuffer;
use overspill_kernels::AllocatedPairs;
use overspill_machine::{Error, Result};

use super::table::GpuTable;
use crate::device::{
    AggregatedPairs, DeviceCount, DeviceRequest, PAIR_BYTES, PairBlock, ProbeKeys, Seat, Unit, Workbench,
    too_many_pairs,
};

/// A unit's row count is a multiple of this: the keys on one page, which some transfer methods pin.
const PAGE_ROWS: u64 = 512;

/// The same if kernels read keys in place.
const FEWEST_ROWS: u64 = 32;

/// A chunk of probe rows that look up a hash table. A unit is a range of rows, and is shortened if its matches do not fit the
/// memory for pairs.
#[derive(Debug)]
pub(crate) struct GpuTableChunk {
    /// The GPU that joins the whole chunk.
    seat: Seat,
    keys: ProbeKeys,
    most_pairs: u64,
    /// The aggregates that kernels compute; `None` if the pairs are needed.
    aggregated: Option<AggregatedPairs>,
    /// The first row of the next unit.
    next: u64,
    unit: u64,
    /// Rows left to the CPU, and the reason for the first of them since the last call of `take_refused`.
    left: Vec<Range<u64>>,
    refused: Option<Error>,
    /// Time spent on units, measured from getting the turn.
    busy: Duration,
}

impl GpuTableChunk {
    /// Creates a chunk. The keys must be in memory that the GPU of `seat` reads.
    pub(crate) fn new(seat: Seat, keys: ProbeKeys, most_pairs: u64, aggregated: Option<AggregatedPairs>) -> Self {
        let unit = keys.rows.next_multiple_of(PAGE_ROWS);
        let (left, busy) = (Vec::new(), Duration::ZERO);
        Self { seat, keys, most_pairs, aggregated, next: 0, unit, left, refused: None, busy }
    }

    fn unit(&self) -> Range<u64> {
        self.next..(self.next + self.unit).min(self.keys.rows)
    }

    /// Counts rows that kernels have read, with their packed columns if `and_words`.
    fn has_read(&self, request: &DeviceRequest, rows: Range<u64>, and_words: bool) {
        let [read, saved] = self.keys.link_bytes(rows, and_words);
        request.observer.add(DeviceCount::LinkBytes, read);
        request.observer.add(DeviceCount::SavedLinkBytes, saved);
    }

    pub(crate) fn next(&mut self, table: &GpuTable, request: &DeviceRequest, block: &mut PairBlock) -> Result<Unit> {
        table.check_living()?;
        let gpu = &self.seat.gpu;
        let method = request.transfer_method(gpu);
        let mut bench = gpu.turn_beside_copies(&request.share)?;
        let begin = Instant::now();
        let budget = gpu.workspace() / 8;
        if let Some(aggregated) = self.aggregated.as_mut().filter(|_| self.next < self.keys.rows) {
            // Pairs need no memory, so all remaining rows are one unit, unless they are decompressed.
            let rows = self.next..self.keys.end_of_unit(self.next, budget);
            let totals = if method == gpu.fastest_method() {
                let columns = self.keys.decompress(gpu, &bench.stream, rows.clone())?;
                let side = self.keys.side(rows.clone(), &columns)?;
                table.table.probe_aggregate(&bench.stream, &side, &aggregated.aggregates.kernels)?
            } else {
                let source = self.keys.keys.buffer().source()?;
                let (pipeline, part) = (bench.pipeline(method, budget)?, rows.start * 8..rows.end * 8);
                let (values, kernels) = (self.keys.values()?, &aggregated.aggregates.kernels);
                table.table.probe_aggregate_transferred(pipeline, source, part, values, kernels)?
            };
            aggregated.add(&totals)?;
            aggregated.hand_on();
            let (count, reads_words) = (rows.end - rows.start, aggregated.aggregates.reads_probe);
            self.next = rows.end;
            self.has_read(request, rows, reads_words);
            request.observer.probed(gpu.device().ordinal(), count);
            request.observer.add(DeviceCount::AggregatedRows, count);
            self.busy += begin.elapsed();
            return Ok(Unit::Joined);
        }
        // Rows that are decompressed end with a piece, and the next unit is as large as this one would have been.
        let end = self.keys.end_of_unit(self.next, budget);
        let there = self.next..self.unit().end.min(end);
        let copies = Workbench::pipeline_bytes(method, budget) + self.keys.room(there.clone());
        // Use half of the remaining workspace, as other working memory is needed too, and of that one half: the other half has
        // the pairs that another join copies.
        let most = (gpu.workspace().saturating_sub(copies) / 4 / PAIR_BYTES).min(self.most_pairs);
        let fewest = if method == gpu.fastest_method() { FEWEST_ROWS } else { PAGE_ROWS };
        let mut capacity = most.min(there.end - there.start);
        let columns = self.keys.decompress(gpu, &bench.stream, there.clone())?;
        let is_there = self.keys.keys.is_compressed();
        if is_there {
            self.has_read(request, there.clone(), false);
        }
        while self.next < self.keys.rows {
            let rows = self.next..self.unit().end.min(end);
            if rows.is_empty() {
                // All rows that are there were left to the CPU.
                return Ok(Unit::Joined);
            }
            let mut pairs = AllocatedPairs::new(gpu.device(), capacity)?;
            let found = if method == gpu.fastest_method() {
                table.table.probe_allocate(&bench.stream, &self.keys.side(rows.clone(), &columns)?, &mut pairs)?
            } else {
                let source = self.keys.keys.buffer().source()?;
                let pipeline = bench.pipeline(method, budget)?;
                let part = rows.start * 8..rows.end * 8;
                table.table.probe_transferred(pipeline, source, part, &mut pairs)?
            };
            if !is_there {
                self.has_read(request, rows.clone(), false);
            }
            if found <= pairs.capacity() {
                let copying = gpu.copying();
                drop(columns);
                drop(bench);
                block.append(gpu, &copying, &pairs, found)?;
                drop((pairs, copying));
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
            } else if rows.end - rows.start > fewest {
                capacity = most;
                self.unit = ((rows.end - rows.start) / 2).next_multiple_of(fewest);
            } else {
                self.refused.get_or_insert(too_many_pairs("the matches of a few probe rows", found, most));
                self.next = rows.end;
                self.left.push(rows);
            }
        }
        Ok(Unit::None)
    }

    /// The reason why rows were left to the CPU, for the first such rows since the last call.
    pub(crate) fn take_refused(&mut self) -> Option<Error> {
        self.refused.take()
    }

    /// Number of rows in all units so far, and the time the GPU took for them.
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
