//! The groups of an input stream.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Result;
use datafusion::logical_expr::EmitTo;
use overspill_join::grouping::Groups;
use overspill_machine::topology::Cpu;

use super::Accumulators;
use super::few_groups::FewGroups;
use super::functions::{Functions, Layout, Which};
use super::metrics::InputMetrics;
use super::partitions::Rows;
use crate::join_execution::to_datafusion;

/// Rows that are partitioned together: each partition should get many, and the columns should stay in a cache meanwhile.
const PARTITIONED_TOGETHER: usize = 64 << 10;

/// A table of groups is worth its work if its groups have this many rows on average.
const WORTHWHILE_ROWS: usize = 2;

/// After a table that was not worth its work, that many times its groups are not grouped.
const UNGROUPED: usize = 32;

/// The share of a full table that tells whether more rows would be worth their work.
const SAMPLE: usize = 8;

/// After a sample, the groups of all rows are estimated as if each row were of any group with equal probability. More than this many times the
/// most groups of a table are too many.
const TOO_MANY: usize = 2;

/// Bytes of a group, about: its key and slot in the table, and the state of a function or two.
const GROUP_BYTES: usize = 48;

/// The most bytes of the groups of a stream: a share of the cache that cores share, as a miss there costs less than to move a row. It is bounded, as
/// machines share the largest caches.
static MOST_BYTES: LazyLock<usize> = LazyLock::new(|| {
    let cpu = Cpu::of_this_machine();
    let shared = (cpu.shared_cache().unwrap_or(0) / 8).min(16 << 20);
    usize::try_from(shared.max(cpu.private_cache().unwrap_or(1 << 20))).unwrap_or(usize::MAX)
});

/// The most groups of a stream.
static MOST_GROUPS: LazyLock<usize> = LazyLock::new(|| (*MOST_BYTES / GROUP_BYTES).clamp(8 << 10, 512 << 10));

/// Bytes of rows that are partitioned together, even if they are few.
const PARTITIONED_BYTES: usize = 64 << 20;

/// Aggregates the rows of an input stream as far as they are of few groups at a time.
pub(super) struct LocalGroups {
    functions: Arc<Functions>,
    groups: Groups,
    accumulators: Accumulators,
    /// Sums that are not yet in the accumulators.
    few: Option<FewGroups>,
    numbers: Vec<usize>,
    /// Rows of the groups.
    rows: usize,
    /// How many further rows are not grouped.
    ungrouped: usize,
    /// Whether the groups of this table have been estimated.
    is_estimated: bool,
    /// Rows that are not grouped and not yet enough to be partitioned.
    singles: Option<Rows>,
    metrics: InputMetrics,
}

impl LocalGroups {
    pub fn new(functions: &Arc<Functions>, metrics: InputMetrics) -> Result<Self> {
        Ok(Self {
            groups: functions.groups()?,
            accumulators: functions.accumulators()?,
            few: functions.few().map(FewGroups::new),
            functions: Arc::clone(functions),
            numbers: vec![],
            rows: 0,
            ungrouped: 0,
            is_estimated: false,
            singles: None,
            metrics,
        })
    }

    /// Adds rows. Returns those that are to be partitioned, if there are enough.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<Option<Rows>> {
        let keys = self.functions.keys_of(batch)?;
        if self.ungrouped > 0 {
            return self.add_singles(keys, batch);
        }
        self.numbers.clear();
        self.groups.number(&keys, &mut self.numbers).map_err(to_datafusion)?;
        self.add_to_groups(batch)?;
        self.rows += batch.num_rows();
        let is_hopeless = self.is_hopeless();
        // Keys of long texts fill a cache before there are many.
        let is_full = self.groups.len() >= *MOST_GROUPS || self.groups.row_bytes() > *MOST_BYTES;
        if !is_full && !is_hopeless {
            return Ok(None);
        }
        if is_hopeless || self.rows < WORTHWHILE_ROWS * self.groups.len() {
            self.ungrouped = UNGROUPED * self.groups.len();
        }
        self.take_groups().map(Some)
    }

    /// Adds rows to the groups that `numbers` tells.
    fn add_to_groups(&mut self, batch: &RecordBatch) -> Result<()> {
        let (functions, accumulators) = (Arc::clone(&self.functions), &mut self.accumulators);
        let groups = self.groups.len();
        let numbers = (self.numbers.as_slice(), groups);
        let few = self.few.as_mut().zip(functions.few()).filter(|(few, _)| few.takes(groups));
        let is_added = match few {
            Some((few, of)) => few.add(of, batch, numbers, accumulators)?,
            None => false,
        };
        self.metrics.narrow.add(if is_added { batch.num_rows() } else { 0 });
        let which = if is_added { Which::Others } else { Which::All };
        functions.update(accumulators, batch, numbers, which)
    }

    /// Whether the first rows show that the table will not be worth its work. `rows` of `n` equally probable groups have about `rows^2 / 2n`
    /// rows of a group that another row has as well.
    fn is_hopeless(&mut self) -> bool {
        if self.is_estimated || self.rows < *MOST_GROUPS / SAMPLE {
            return false;
        }
        self.is_estimated = true;
        let repeated = (self.rows - self.groups.len()) as f64;
        (self.rows as f64).powi(2) > 2.0 * repeated * (TOO_MANY * *MOST_GROUPS) as f64
    }

    fn add_singles(&mut self, keys: Vec<ArrayRef>, batch: &RecordBatch) -> Result<Option<Rows>> {
        self.ungrouped = self.ungrouped.saturating_sub(batch.num_rows());
        self.metrics.ungrouped.add(batch.num_rows());
        let (layout, columns) = self.functions.ungrouped(keys, batch, &self.accumulators)?;
        let singles = self.singles.get_or_insert_with(|| Rows::new(layout));
        singles.push(columns);
        let are_few = singles.len() < PARTITIONED_TOGETHER && singles.bytes() < PARTITIONED_BYTES;
        if are_few && self.ungrouped > 0 {
            return Ok(None);
        }
        Ok(self.take_singles())
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let states = self.accumulators.iter().map(|accumulator| accumulator.size()).sum::<usize>();
        let singles = self.singles.as_ref().map_or(0, Rows::bytes);
        let few = self.few.as_ref().map_or(0, FewGroups::bytes);
        self.groups.bytes() + states + few + singles + self.numbers.capacity() * size_of::<usize>()
    }

    /// All that is left.
    pub fn take(&mut self) -> Result<Rows> {
        // At most one of both has rows: singles are taken before groups are found again.
        match self.take_singles() {
            Some(singles) => Ok(singles),
            None => self.take_groups(),
        }
    }

    fn take_groups(&mut self) -> Result<Rows> {
        if let Some((few, functions)) = self.few.as_mut().zip(self.functions.few()) {
            few.take(functions, self.groups.len(), &mut self.accumulators)?;
        }
        let mut columns = self.groups.take().map_err(to_datafusion)?;
        for accumulator in &mut self.accumulators {
            columns.extend(accumulator.state(EmitTo::All)?);
        }
        self.rows = 0;
        self.is_estimated = false;
        let states = Rows::of(Layout::States, columns);
        self.metrics.partitioned.add(states.len());
        Ok(states)
    }

    fn take_singles(&mut self) -> Option<Rows> {
        let singles = self.singles.take()?;
        self.metrics.partitioned.add(singles.len());
        Some(singles)
    }
}
