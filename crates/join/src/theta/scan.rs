//! Joins batches of the stream side with blocks of the other side.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{filter, prep_null_mask_filter};
use arrow::datatypes::DataType;

use super::block::{Block, Candidates, Index};
use super::output::{MatchedRows, OutputRows};
use super::spec::ThetaSpec;
use crate::error::Result;
use crate::hybrid::Step;
use crate::memory::{RowSizes, SideSizes, fitting_pairs};
use crate::spec::{ResidualFilter, Side};

/// Maximum rows and positions that one step checks without finding a pair.
const STEP_WORK: usize = 1 << 16;

/// Maximum bytes of the pairs of one step, unless a single pair takes more: no grant pays for copies of compared rows.
const STEP_BYTES: usize = 1 << 20;

/// Joins a batch of the stream side with a block, step by step.
#[derive(Debug)]
pub struct BlockJoin {
    spec: Arc<ThetaSpec>,
    /// The side of the blocks.
    side: Side,
    current: Option<Current>,
}

/// A batch and how far it has been joined.
#[derive(Debug)]
struct Current {
    block: Arc<Block>,
    batch: RecordBatch,
    /// The rows of the batch that have matched.
    matched: Arc<MatchedRows>,
    candidates: Candidates,
    filter: Option<Arc<dyn ResidualFilter>>,
    /// The number of finished stream rows, and the first block position that the next stream row has not been compared with.
    done: usize,
    position: u32,
    /// Pairs that are still to be emitted as a number of rows without columns.
    counted: u64,
    /// Bytes that copies of the batch's rows take.
    sizes: RowSizes,
    /// Maximum pairs of a step: as many as fit if they are of average size.
    most: usize,
    /// Candidate pairs that did not fit their step: positions in the block, and stream rows.
    waiting: Option<(Vec<u32>, Vec<u32>)>,
}

impl BlockJoin {
    /// Creates a join of blocks of `side` with batches of the other side.
    pub fn new(spec: Arc<ThetaSpec>, side: Side) -> Self {
        Self { spec, side, current: None }
    }

    fn stream_side(&self) -> Side {
        match self.side {
            Side::Build => Side::Probe,
            Side::Probe => Side::Build,
        }
    }

    /// Starts joining a batch with a block; `matched` records which rows of the batch match.
    ///
    /// # Errors
    /// Fails if an Arrow kernel does.
    pub fn start(&mut self, block: Arc<Block>, batch: RecordBatch, matched: Arc<MatchedRows>) -> Result<()> {
        let rows = batch.num_rows();
        let search = self.spec.search(self.side).zip(block.index());
        // Expressions that fail for some rows may be ones that the condition never evaluates for these rows.
        let keys = search.and_then(|(search, _)| search.stream_keys.evaluate(&batch).ok());
        let (candidates, filter) = match (search, keys) {
            (Some((search, index)), Some(keys)) => (index.candidates(search, &keys, rows)?, search.residual.clone()),
            _ => {
                let positions = vec![0..block.batch().num_rows() as u32; rows];
                let order = (0..rows as u32).collect();
                (Candidates { positions, ranks: None, order }, self.spec.condition.clone())
            }
        };
        let sizes = self.spec.row_sizes(self.stream_side(), &batch);
        let most = (STEP_BYTES / (block.sizes().average() + sizes.average())).clamp(1, self.spec.batch_size);
        let (done, position, counted, waiting) = (0, 0, 0, None);
        let mut current =
            Current { block, batch, matched, candidates, filter, done, position, counted, sizes, most, waiting };
        if current.filter.is_none() && current.candidates.ranks.is_none() {
            self.mark_candidates(&mut current);
        }
        self.current = Some(current);
        Ok(())
    }

    /// Marks the matched rows if every candidate is a match. Counts their pairs if the output needs nothing else.
    fn mark_candidates(&self, current: &mut Current) {
        let positions = &current.candidates.positions;
        if self.spec.tracks(self.stream_side()) {
            for (row, _) in positions.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
                current.matched.set(row as u32);
            }
        }
        if self.spec.tracks(self.side) {
            let mut ranges: Vec<_> = positions.iter().filter(|range| !range.is_empty()).cloned().collect();
            ranges.sort_unstable_by_key(|range| range.start);
            current.block.matched().set_ranges(ranges.into_iter());
        }
        if !self.spec.join_type.emits_pairs() {
            current.done = current.candidates.order.len();
        } else if self.spec.output_columns.is_empty() {
            current.counted = positions.iter().map(|range| range.len() as u64).sum();
            current.done = current.candidates.order.len();
        }
    }

    /// Continues with the batch: compares a bounded number of pairs and returns at most one output batch.
    ///
    /// # Errors
    /// Fails if the condition cannot be evaluated or an Arrow kernel fails.
    pub fn step(&mut self) -> Result<Step> {
        let (spec, side) = (Arc::clone(&self.spec), self.side);
        let Some(current) = &mut self.current else { return Ok(Step::Finished) };
        if current.counted > 0 {
            let rows = current.counted.min(spec.batch_size as u64);
            current.counted -= rows;
            let options = RecordBatchOptions::new().with_row_count(Some(rows as usize));
            let output = RecordBatch::try_new_with_options(Arc::clone(&spec.output_schema), vec![], &options)?;
            return Ok(Step::Output(output));
        }
        if current.done == current.candidates.order.len() && current.waiting.is_none() {
            self.current = None;
            return Ok(Step::Finished);
        }
        let (positions, rows) = match current.waiting.take() {
            Some(pairs) => pairs,
            None => current.next_pairs(&spec, side),
        };
        if positions.is_empty() {
            return Ok(Step::Working);
        }
        let copies = current.filter.is_some() || spec.join_type.emits_pairs();
        let (positions, rows) = if copies { current.fitting(positions, rows) } else { (positions, rows) };
        let (mut positions, mut rows) = (UInt32Array::from(positions), UInt32Array::from(rows));
        if let Some(condition) = &current.filter {
            let pairs = OutputRows::pairs(side, (current.block.batch(), &positions), (&current.batch, &rows));
            let columns = pairs.columns(|_| DataType::Null, condition.columns())?;
            let passed = passed(condition.evaluate(columns, positions.len())?);
            if passed.true_count() < passed.len() {
                positions = filter(&positions, &passed)?.as_primitive().clone();
                rows = filter(&rows, &passed)?.as_primitive().clone();
            }
        }
        if current.filter.is_some() || current.candidates.ranks.is_some() {
            current.mark(&spec, side, &positions, &rows);
        }
        if !spec.join_type.emits_pairs() || positions.is_empty() {
            return Ok(Step::Working);
        }
        let pairs = OutputRows::pairs(side, (current.block.batch(), &positions), (&current.batch, &rows));
        pairs.output(&spec).map(Step::Output)
    }
}

/// Returns a mask without nulls; nulls count as false.
fn passed(mask: BooleanArray) -> BooleanArray {
    if mask.null_count() > 0 { prep_null_mask_filter(&mask) } else { mask }
}

impl Current {
    /// The next candidates, at most as many as a step compares: positions in the block, and the stream row of each. May be
    /// empty although more follow.
    fn next_pairs(&mut self, spec: &ThetaSpec, side: Side) -> (Vec<u32>, Vec<u32>) {
        // If the join emits no pairs, only matches that are not known yet are searched for.
        let for_marks = !spec.join_type.emits_pairs();
        let skips_block_rows = for_marks && spec.tracks(side);
        let skips_stream_rows = for_marks && !skips_block_rows;
        let most = self.most;
        let (mut positions, mut rows) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let mut work = 0;
        while positions.len() < most && work < STEP_WORK {
            let Some(row) = self.candidates.order.get(self.done).copied() else { break };
            let Range { start, end } = self.candidates.positions[row as usize];
            let mut position = self.position.max(start);
            let found = positions.len();
            if skips_stream_rows && self.matched.get(row) {
                position = end;
            } else if let (Some(ranges), Some(ranks)) =
                (&self.candidates.ranks, self.block.index().and_then(Index::ranks))
            {
                let range = &ranges[row as usize];
                while positions.len() < most && work < STEP_WORK {
                    let Some(next) = ranks.next(position..end, range) else {
                        position = end;
                        break;
                    };
                    position = next + 1;
                    work += 1;
                    if !(skips_block_rows && self.block.matched().get(next)) {
                        positions.push(next);
                    }
                    if skips_stream_rows && self.filter.is_none() {
                        position = end;
                        break;
                    }
                }
            } else if skips_block_rows {
                while position < end && positions.len() < most && work < STEP_WORK {
                    if !self.block.matched().get(position) {
                        positions.push(position);
                    }
                    position += 1;
                    work += 1;
                }
            } else {
                let stop = end.min(position.saturating_add((most - positions.len()) as u32));
                positions.extend(position..stop);
                position = position.max(stop);
            }
            rows.resize(rows.len() + positions.len() - found, row);
            work += 1;
            if position >= end {
                self.done += 1;
                self.position = 0;
            } else {
                self.position = position;
            }
        }
        (positions, rows)
    }

    /// The pairs that fit a step; the others wait.
    fn fitting(&mut self, positions: Vec<u32>, rows: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
        let (mut positions, mut rows) = (positions, rows);
        let (block, batch) = (self.block.sizes(), &self.sizes);
        let sides = [SideSizes::Rows(block, &positions), SideSizes::Rows(batch, &rows)];
        let fitting = fitting_pairs(positions.len(), STEP_BYTES, sides);
        if fitting < positions.len() {
            self.waiting = Some((positions.split_off(fitting), rows.split_off(fitting)));
        }
        (positions, rows)
    }

    fn mark(&self, spec: &ThetaSpec, side: Side, positions: &UInt32Array, rows: &UInt32Array) {
        let (block_tracked, stream_tracked) = match side {
            Side::Build => (spec.tracks(Side::Build), spec.tracks(Side::Probe)),
            Side::Probe => (spec.tracks(Side::Probe), spec.tracks(Side::Build)),
        };
        if block_tracked {
            positions.values().iter().for_each(|position| self.block.matched().set(*position));
        }
        if stream_tracked {
            rows.values().iter().for_each(|row| self.matched.set(*row));
        }
    }
}
