//! The groups of an input stream.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat;
use datafusion::common::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use overspill_join::grouping::Groups;
use overspill_machine::topology::Cpu;

use super::functions::{Evaluated, Functions};
use super::metrics::InputMetrics;
use crate::join_execution::to_datafusion;

/// Rows of states that are partitioned together: each partition should get some, and the copies should not need fresh pages.
const PARTITIONED_TOGETHER: usize = 16 << 10;

/// A table of groups is worth its work if its groups have this many rows on average.
const WORTHWHILE_ROWS: usize = 2;

/// After a table that was not worth its work, that many times its groups are not grouped.
const UNGROUPED: usize = 32;

/// Bytes of a group, about: its key and slot in the table, and the state of a function or two.
const GROUP_BYTES: usize = 48;

/// The most bytes of the groups of a stream: a share of the cache that cores share, as a miss there costs less than to move a row. It is bounded, as
/// machines share the largest caches.
const MOST_BYTES: u64 = 16 << 20;

/// The most groups of a stream.
static MOST_GROUPS: LazyLock<usize> = LazyLock::new(|| {
    let cpu = Cpu::of_this_machine();
    let shared = cpu.shared_cache().unwrap_or(0) / 8;
    let cache = shared.min(MOST_BYTES).max(cpu.private_cache().unwrap_or(1 << 20));
    (usize::try_from(cache).unwrap_or(usize::MAX) / GROUP_BYTES).clamp(8 << 10, 512 << 10)
});

/// Aggregates the rows of an input stream as far as they are of few groups at a time.
pub(super) struct LocalGroups {
    functions: Arc<Functions>,
    groups: Groups,
    accumulators: Vec<Box<dyn GroupsAccumulator>>,
    numbers: Vec<usize>,
    /// Rows of the groups.
    rows: usize,
    /// How many further rows are not grouped.
    ungrouped: usize,
    /// States of single rows, that are not yet enough to be partitioned.
    singles: Vec<Vec<ArrayRef>>,
    single_rows: usize,
    metrics: InputMetrics,
}

impl LocalGroups {
    pub fn new(functions: &Arc<Functions>, metrics: InputMetrics) -> Result<Self> {
        Ok(Self {
            groups: functions.groups()?,
            accumulators: functions.accumulators()?,
            functions: Arc::clone(functions),
            numbers: vec![],
            rows: 0,
            ungrouped: 0,
            singles: vec![],
            single_rows: 0,
            metrics,
        })
    }

    /// Adds rows. Returns states that are to be partitioned, if there are enough.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<Option<Vec<ArrayRef>>> {
        let rows = self.functions.evaluate(batch)?;
        if self.ungrouped > 0 {
            return self.add_singles(rows);
        }
        self.numbers.clear();
        self.groups.number(&rows.keys, &mut self.numbers).map_err(to_datafusion)?;
        rows.update(&mut self.accumulators, &self.numbers, self.groups.len())?;
        self.rows += rows.rows;
        if self.groups.len() < *MOST_GROUPS {
            return Ok(None);
        }
        if self.rows < WORTHWHILE_ROWS * self.groups.len() {
            self.ungrouped = UNGROUPED * self.groups.len();
        }
        self.take_groups().map(Some)
    }

    fn add_singles(&mut self, rows: Evaluated) -> Result<Option<Vec<ArrayRef>>> {
        self.ungrouped = self.ungrouped.saturating_sub(rows.rows);
        self.single_rows += rows.rows;
        self.metrics.ungrouped.add(rows.rows);
        self.singles.push(rows.into_states(&self.accumulators)?);
        if self.single_rows < PARTITIONED_TOGETHER && self.ungrouped > 0 {
            return Ok(None);
        }
        self.take_singles().map(Some)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let states = self.accumulators.iter().map(|accumulator| accumulator.size()).sum::<usize>();
        let singles = self.singles.iter().flatten().map(|column| column.get_array_memory_size()).sum::<usize>();
        self.groups.bytes() + states + singles + self.numbers.capacity() * size_of::<usize>()
    }

    /// All states that are left.
    pub fn take(&mut self) -> Result<Vec<ArrayRef>> {
        // At most one of both has rows: singles are taken before groups are found again.
        if self.single_rows > 0 { self.take_singles() } else { self.take_groups() }
    }

    fn take_groups(&mut self) -> Result<Vec<ArrayRef>> {
        let mut columns = self.groups.take().map_err(to_datafusion)?;
        for accumulator in &mut self.accumulators {
            columns.extend(accumulator.state(EmitTo::All)?);
        }
        self.rows = 0;
        self.metrics.states.add(columns[0].len());
        Ok(columns)
    }

    fn take_singles(&mut self) -> Result<Vec<ArrayRef>> {
        let singles = std::mem::take(&mut self.singles);
        self.metrics.states.add(std::mem::take(&mut self.single_rows));
        let column = |number: usize| {
            let parts: Vec<&dyn Array> = singles.iter().map(|columns| columns[number].as_ref()).collect();
            Ok(concat(&parts)?)
        };
        (0..self.functions.states().fields().len()).map(column).collect()
    }
}
