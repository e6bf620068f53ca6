//! The tables of files, with `INSERT`s whose files are written aside.

use std::pin::Pin;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::TableType;
use datafusion::datasource::listing::ListingTable;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::ExecutionPlan;

use super::destination::Destination;
use super::exec::WriteAsideExec;

/// A folder of files as the target of an `INSERT`.
#[derive(Debug)]
pub(crate) struct AppendedAside {
    table: Arc<dyn TableProvider>,
    destination: Destination,
}

impl AppendedAside {
    /// `None` if the table is no folder of this machine.
    pub fn new(table: Arc<dyn TableProvider>) -> Option<Self> {
        let path = table.downcast_ref::<ListingTable>()?.table_paths().first()?;
        let destination = Destination::Table(Destination::local_path(path)?);
        Some(Self { table, destination })
    }
}

#[async_trait]
impl TableProvider for AppendedAside {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    // As `async_trait` would expand it, so that no future holds expressions: see `ReservedMemTable`.
    fn scan<'s, 'session, 'columns, 'filters, 'async_trait>(
        &'s self,
        state: &'session dyn Session,
        projection: Option<&'columns Vec<usize>>,
        filters: &'filters [Expr],
        limit: Option<usize>,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'async_trait>>
    where
        's: 'async_trait,
        'session: 'async_trait,
        'columns: 'async_trait,
        'filters: 'async_trait,
        Self: 'async_trait,
    {
        self.table.scan(state, projection, filters, limit)
    }

    async fn insert_into(
        &self,
        state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let sink = self.table.insert_into(state, input, op).await?;
        Ok(Arc::new(WriteAsideExec::new(sink, self.destination.clone())))
    }
}
