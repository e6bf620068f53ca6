//! Tables of files with `INSERT`s that write aside.

use std::pin::Pin;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::TableType;
use datafusion::datasource::listing::{ListingTable, ListingTableConfig};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::ExecutionPlan;

use super::destination::Destination;
use super::format::AsideFormat;

/// A folder of files as the target of an `INSERT`: its new files are moved there when all of them are complete, and get the
/// extension of the existing files.
#[derive(Debug)]
pub struct AppendedAside {
    table: Arc<dyn TableProvider>,
    /// The same table with a format that writes aside.
    aside: ListingTable,
}

impl AppendedAside {
    /// Makes the target of a [`ListingTable`]; `None` if the table is of another type, or not a local folder.
    pub fn new(table: Arc<dyn TableProvider>) -> Option<Self> {
        let listing = table.downcast_ref::<ListingTable>()?;
        Destination::local_path(listing.table_paths().first()?)?;
        let mut options = listing.options().clone();
        options.format = Arc::new(AsideFormat::of_table(options.format));
        // The last columns are the partition columns.
        let schema = table.schema();
        let of_files = schema.fields().len() - options.table_partition_cols.len();
        let of_files = Schema::new_with_metadata(schema.fields()[..of_files].to_vec(), schema.metadata().clone());
        let config = ListingTableConfig::new_with_multi_paths(listing.table_paths().clone())
            .with_listing_options(options)
            .with_schema(Arc::new(of_files));
        let aside = ListingTable::try_new(config).ok()?;
        Some(Self { table, aside })
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

    // Written as `async_trait` would expand it, so that no future holds expressions: see `ReservedMemTable`.
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
        self.aside.insert_into(state, input, op).await
    }
}
