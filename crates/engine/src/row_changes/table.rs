//! The tables in memory whose rows can be changed.

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
    /// What the statement calls it.
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

    /// Whether constraints of the table are held to.
    pub(super) fn has_keys(&self) -> bool {
        self.table.downcast_ref::<ReservedMemTable>().is_some_and(ReservedMemTable::has_keys)
    }

    /// Puts `new` in the place of the rows of the table. `removed` are the rows that go without another in their place;
    /// `columns` are those whose values differ.
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
                // Changed values need not be in the order that was declared.
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
