//! The tables in memory that support changes of rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, internal_err};
use datafusion::datasource::MemTable;
use datafusion::datasource::memory::PartitionData;

use crate::memory::{LockedRows, ReservedMemTable};

/// A [`ReservedMemTable`], or a [`MemTable`] of DataFusion.
#[derive(Debug, Clone)]
pub(crate) struct ChangeableTable {
    /// The name of the table in the statement.
    pub name: String,
    table: Arc<dyn TableProvider>,
}

impl ChangeableTable {
    /// `None` if the rows of the table are not in memory.
    pub fn new(name: String, table: Arc<dyn TableProvider>) -> Option<Self> {
        let changeable =
            table.downcast_ref::<ReservedMemTable>().is_some() || table.downcast_ref::<MemTable>().is_some();
        changeable.then_some(Self { name, table })
    }

    pub fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    pub(super) fn partitions(&self) -> &[PartitionData] {
        match (self.table.downcast_ref::<ReservedMemTable>(), self.table.downcast_ref::<MemTable>()) {
            (Some(table), _) => table.partitions(),
            (_, Some(table)) => &table.batches,
            _ => &[],
        }
    }

    /// Whether constraints of the table are enforced.
    pub(super) fn has_keys(&self) -> bool {
        self.table.downcast_ref::<ReservedMemTable>().is_some_and(ReservedMemTable::has_keys)
    }

    /// Replaces the rows of the table by `new`. `removed` holds the rows that are removed without a replacement; `columns`
    /// are the columns with changed values.
    pub(super) fn replace(
        &self,
        locked: LockedRows<'_>,
        new: Vec<Vec<RecordBatch>>,
        removed: &[RecordBatch],
        columns: &[usize],
    ) -> Result<()> {
        match (self.table.downcast_ref::<ReservedMemTable>(), self.table.downcast_ref::<MemTable>()) {
            (Some(table), _) => table.replace(locked, new, removed, columns),
            (_, Some(table)) => {
                // Changed values need not be in the declared order.
                table.sort_order.lock().clear();
                for (mut partition, new) in locked.into_iter().zip(new) {
                    *partition = new;
                }
                Ok(())
            }
            _ => internal_err!("Table '{}' is not in memory", self.name),
        }
    }
}
