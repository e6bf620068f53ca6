//! The indexes of a table, and its scans with them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::Session;
use datafusion::common::{Result, exec_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

use super::index::TableIndex;
use super::rows::Partitions;
use super::source::{MemoryTableSource, ScanIndex};

/// Maximum number of scans that a table keeps.
const MOST_SCANS: usize = 8;

/// The indexes of a table in memory, and scans of the table with them.
#[derive(Debug, Default)]
pub(crate) struct TableIndexes {
    indexes: Mutex<Vec<Arc<TableIndex>>>,
    scans: Mutex<Scans>,
}

/// Scans of the table as it is now.
///
/// A new scan copies the list of the table's batches, compares it with those of each index, and looks at every array for statistics.
/// Of a large table this takes tens of milliseconds, much longer than looking few rows up. Each scan that is kept takes some 50 bytes
/// for a batch and 16 for each of its arrays, about a thousandth of the table.
#[derive(Debug, Default)]
struct Scans {
    /// Number of times that the table or its indexes have changed.
    changes: u64,
    /// Least recently used first.
    kept: Vec<(ScanKey, Arc<dyn DataSource>)>,
}

/// What scans of a table differ in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScanKey {
    projection: Option<Vec<usize>>,
    shows_sizes: bool,
}

impl ScanKey {
    pub fn new(state: &dyn Session, projection: Option<&Vec<usize>>) -> Self {
        Self { projection: projection.cloned(), shows_sizes: state.config_options().explain.show_sizes }
    }
}

impl TableIndexes {
    /// All indexes.
    pub fn all(&self) -> Vec<Arc<TableIndex>> {
        self.indexes.lock().clone()
    }

    /// Forgets all kept scans, because the table or an index has changed.
    ///
    /// A statement that changes rows calls this before it releases their locks. Otherwise another statement could see the new rows,
    /// and then get a scan of the old ones.
    fn changed(&self) {
        let mut scans = self.scans.lock();
        scans.changes += 1;
        scans.kept.clear();
    }

    /// Adds an index.
    ///
    /// # Errors
    /// If the table has one of this name.
    pub fn add(&self, index: TableIndex) -> Result<()> {
        let mut all = self.indexes.lock();
        if all.iter().any(|other| other.name == index.name) {
            return exec_err!("Index '{}' already exists", index.name);
        }
        all.push(Arc::new(index));
        drop(all);
        self.changed();
        Ok(())
    }

    /// Puts an index in the place of the one of its name.
    pub fn replace(&self, index: TableIndex) {
        let index = Arc::new(index);
        let mut all = self.indexes.lock();
        all.iter_mut().filter(|other| other.name == index.name).for_each(|other| *other = Arc::clone(&index));
        drop(all);
        self.changed();
    }

    /// Removes an index. Returns false if there is none of this name.
    pub fn remove(&self, name: &str) -> bool {
        let mut all = self.indexes.lock();
        let before = all.len();
        all.retain(|index| index.name != name);
        let is_removed = all.len() < before;
        drop(all);
        self.changed();
        is_removed
    }

    /// Extends the indexes by inserted rows. `now` are the rows of the table with them, which are still locked. An index that lacks
    /// the memory is stale from then on.
    pub fn inserted(&self, new: &[RecordBatch], now: Partitions<'_>) {
        for index in self.all() {
            let mut state = index.state.lock();
            if let Ok(rows) = &*state {
                let more = rows.with_more(new.to_vec(), now).map(Arc::new);
                *state = more.map_err(|error| format!("rows were inserted, and: {}", error.strip_backtrace()));
            }
        }
        self.changed();
    }

    /// Makes all indexes stale, and frees their memory. The rows that were changed are still locked.
    pub fn outdated(&self, why: &str) {
        for index in self.all() {
            *index.state.lock() = Err(why.to_owned());
        }
        self.changed();
    }

    /// Returns the scan that was kept, or the number of changes so far if none was.
    pub fn kept_scan(&self, key: &ScanKey) -> Result<Arc<dyn ExecutionPlan>, u64> {
        let mut scans = self.scans.lock();
        let Some(place) = scans.kept.iter().position(|(other, _)| other == key) else { return Err(scans.changes) };
        let kept = scans.kept.remove(place);
        let source = Arc::clone(&kept.1);
        scans.kept.push(kept);
        // Each query gets a node of its own, because a node holds the metrics of one query.
        Ok(Arc::new(DataSourceExec::new(source)))
    }

    /// The scan `plan` of the table, with the indexes of the rows that it returns. It is kept for `key`, unless the table has changed
    /// since there were `changes` changes.
    pub fn scan(&self, plan: Arc<dyn ExecutionPlan>, key: ScanKey, changes: u64) -> Arc<dyn ExecutionPlan> {
        let Some(source) = plan.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source) else { return plan };
        let Some(memory) = source.downcast_ref::<MemorySourceConfig>() else { return plan };
        let partitions: Vec<&[RecordBatch]> = memory.partitions().iter().map(Vec::as_slice).collect();
        let indexes = self.all().into_iter().map(|index| {
            let rows = index.rows().and_then(|rows| {
                let is_current = rows.are(&partitions);
                if is_current { Ok(rows) } else { Err("the table has just been changed".to_owned()) }
            });
            ScanIndex { index, rows }
        });
        let source: Arc<dyn DataSource> = Arc::new(MemoryTableSource::new(Arc::clone(source), indexes.collect()));
        let mut scans = self.scans.lock();
        if scans.changes == changes {
            if scans.kept.len() == MOST_SCANS {
                scans.kept.remove(0);
            }
            scans.kept.push((key, Arc::clone(&source)));
        }
        Arc::new(DataSourceExec::new(source))
    }
}
