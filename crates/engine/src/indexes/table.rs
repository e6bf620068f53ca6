//! The indexes of a table.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

use super::index::TableIndex;
use super::rows::Partitions;
use super::source::{IndexedSource, ScanIndex};

/// The indexes of a table in memory.
#[derive(Debug, Default)]
pub(crate) struct TableIndexes(Mutex<Vec<Arc<TableIndex>>>);

impl TableIndexes {
    /// All indexes.
    pub fn all(&self) -> Vec<Arc<TableIndex>> {
        self.0.lock().clone()
    }

    /// Adds an index.
    ///
    /// # Errors
    /// If the table has one of this name.
    pub fn add(&self, index: TableIndex) -> Result<()> {
        let mut all = self.0.lock();
        if all.iter().any(|other| other.name == index.name) {
            return exec_err!("Index '{}' already exists", index.name);
        }
        all.push(Arc::new(index));
        Ok(())
    }

    /// Puts an index in the place of the one of its name.
    pub fn replace(&self, index: TableIndex) {
        let index = Arc::new(index);
        self.0.lock().iter_mut().filter(|other| other.name == index.name).for_each(|other| *other = Arc::clone(&index));
    }

    /// Removes an index. Returns false if there is none of this name.
    pub fn remove(&self, name: &str) -> bool {
        let mut all = self.0.lock();
        let before = all.len();
        all.retain(|index| index.name != name);
        all.len() < before
    }

    /// Extends the indexes by inserted rows. `now` are the rows of the table with them. An index that lacks the memory is stale from
    /// then on.
    pub fn inserted(&self, new: &[RecordBatch], now: Partitions<'_>) {
        for index in self.all() {
            let mut state = index.state.lock();
            if let Ok(rows) = &*state {
                let more = rows.with_more(new.to_vec(), now).map(Arc::new);
                *state = more.map_err(|error| format!("rows were inserted, and: {}", error.strip_backtrace()));
            }
        }
    }

    /// Makes all indexes stale, and frees their memory.
    pub fn outdated(&self, why: &str) {
        for index in self.all() {
            *index.state.lock() = Err(why.to_owned());
        }
    }

    /// The scan of the table, with the indexes of the rows that it returns.
    pub fn scan(&self, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let all = self.all();
        let scan = plan.downcast_ref::<DataSourceExec>().filter(|_| !all.is_empty());
        let Some(source) = scan.map(DataSourceExec::data_source) else { return plan };
        let Some(memory) = source.downcast_ref::<MemorySourceConfig>() else { return plan };
        let partitions: Vec<&[RecordBatch]> = memory.partitions().iter().map(Vec::as_slice).collect();
        let indexes = all.into_iter().map(|index| {
            let rows = index.rows().and_then(|rows| {
                let is_current = rows.are(&partitions);
                if is_current { Ok(rows) } else { Err("the table has just been changed".to_owned()) }
            });
            ScanIndex { index, rows }
        });
        let source = IndexedSource::new(Arc::clone(source), indexes.collect());
        Arc::new(DataSourceExec::new(Arc::new(source)))
    }
}
