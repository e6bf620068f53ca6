//! The groups of an input stream.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Result;

use super::few_groups::FewGroups;
use super::functions::{Functions, Layout, Which};
use super::metrics::InputMetrics;
use super::partitions::Rows;
use super::table::CachedGroups;

/// Rows that are partitioned together: each partition should get many, and the columns should stay in a cache meanwhile.
const PARTITIONED_TOGETHER: usize = 64 << 10;

/// Bytes of rows that are partitioned together, even if they are few.
const PARTITIONED_BYTES: usize = 64 << 20;

/// Aggregates the rows of an input stream as far as they are of few groups at a time.
pub(super) struct LocalGroups {
    functions: Arc<Functions>,
    table: CachedGroups,
    /// Sums that are not yet in the accumulators.
    few: Option<FewGroups>,
    /// Rows that are not grouped and not yet enough to be partitioned.
    singles: Option<Rows>,
    metrics: InputMetrics,
}

impl LocalGroups {
    pub fn new(functions: &Arc<Functions>, metrics: InputMetrics) -> Result<Self> {
        Ok(Self {
            table: CachedGroups::new(Some(functions.groups_of_rows()?), functions.accumulators()?),
            few: functions.few().map(FewGroups::new),
            functions: Arc::clone(functions),
            singles: None,
            metrics,
        })
    }

    /// Adds rows. Returns those that are to be partitioned, if there are enough.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<Option<Rows>> {
        let keys = self.functions.keys_of(batch)?;
        if self.table.is_paused() {
            return self.add_singles(keys, batch);
        }
        self.table.number(&keys, batch.num_rows())?;
        self.add_to_groups(batch)?;
        if !self.table.is_done() {
            return Ok(None);
        }
        self.take_groups().map(Some)
    }

    /// Adds rows to the groups that have been numbered for them.
    fn add_to_groups(&mut self, batch: &RecordBatch) -> Result<()> {
        let functions = Arc::clone(&self.functions);
        let (numbers, groups, accumulators) = self.table.numbered();
        let numbers = (numbers, groups);
        let few = self.few.as_mut().zip(functions.few()).filter(|(few, _)| few.takes(groups));
        let is_added = match few {
            Some((few, of)) => few.add(of, batch, numbers, accumulators)?,
            None => false,
        };
        self.metrics.narrow.add(if is_added { batch.num_rows() } else { 0 });
        let which = if is_added { Which::Others } else { Which::All };
        functions.update(accumulators, batch, numbers, which)
    }

    fn add_singles(&mut self, keys: Vec<ArrayRef>, batch: &RecordBatch) -> Result<Option<Rows>> {
        self.table.skip(batch.num_rows());
        self.metrics.ungrouped.add(batch.num_rows());
        let (layout, columns) = self.functions.ungrouped(keys, batch, &self.table.accumulators)?;
        let singles = self.singles.get_or_insert_with(|| Rows::new(layout));
        singles.push(columns);
        let are_few = singles.len() < PARTITIONED_TOGETHER && singles.bytes() < PARTITIONED_BYTES;
        if are_few && self.table.is_paused() {
            return Ok(None);
        }
        Ok(self.singles.take())
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let singles = self.singles.as_ref().map_or(0, Rows::bytes);
        self.table.bytes() + self.few.as_ref().map_or(0, FewGroups::bytes) + singles
    }

    /// All that is left.
    pub fn take(&mut self) -> Result<Rows> {
        // At most one of both has rows: singles are taken before groups are found again.
        match self.singles.take() {
            Some(singles) => Ok(singles),
            None => self.take_groups(),
        }
    }

    fn take_groups(&mut self) -> Result<Rows> {
        if let Some((few, functions)) = self.few.as_mut().zip(self.functions.few()) {
            few.take(functions, self.table.len(), &mut self.table.accumulators)?;
        }
        Ok(Rows::of(Layout::States, self.table.take()?))
    }
}
