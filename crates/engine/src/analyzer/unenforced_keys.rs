//! Prevents the optimizer from relying on keys that are not enforced.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::{ScanArgs, ScanResult, Session, TableProvider};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, Statistics};
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::{MemTable, TableType, provider_as_source, source_as_provider};
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown, TableScanBuilder};
use datafusion::physical_plan::ExecutionPlan;

/// Hides the `PRIMARY KEY` and `UNIQUE` constraints of DataFusion's own tables, in memory and of files, from the optimizer.
///
/// DataFusion 55 accepts such constraints of a `CREATE TABLE`, enforces none of them, and still removes `DISTINCT` and joins
/// because of them: `SELECT DISTINCT a` returns a key twice if it was inserted twice. A
/// [`ReservedMemTable`](crate::memory::ReservedMemTable) enforces its constraints, and tables of other kinds are trusted to
/// declare valid ones.
pub(super) fn unenforced_keys(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    if !scans_unenforced(&plan)? {
        return Ok(plan);
    }
    let hidden = plan.transform_up_with_subqueries(|node| match unenforced(&node) {
        Some(table) => {
            let LogicalPlan::TableScan(scan) = node else { return Ok(Transformed::no(node)) };
            let source = provider_as_source(Arc::new(WithoutKeys { table }));
            let rebuilt = TableScanBuilder::new(scan.table_name, source)
                .with_projection(scan.projection)
                .with_filters(scan.filters)
                .with_fetch(scan.fetch)
                .build()?;
            Ok(Transformed::yes(LogicalPlan::TableScan(rebuilt)))
        }
        // The schemas of the nodes above also contain what follows from the keys of a table.
        None => Ok(Transformed::yes(node.recompute_schema()?)),
    })?;
    Ok(hidden.data)
}

/// Whether the plan, or a subquery in it, scans a table with unenforced keys.
fn scans_unenforced(plan: &LogicalPlan) -> Result<bool> {
    let visited = plan.apply_with_subqueries(|node| {
        Ok(if unenforced(node).is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(visited == TreeNodeRecursion::Stop)
}

/// The table that a node scans, if it has unenforced keys.
fn unenforced(node: &LogicalPlan) -> Option<Arc<dyn TableProvider>> {
    let LogicalPlan::TableScan(scan) = node else { return None };
    let table = source_as_provider(&scan.source).ok()?;
    let is_datafusions = table.downcast_ref::<MemTable>().is_some() || table.downcast_ref::<ListingTable>().is_some();
    let has_keys = table.constraints().is_some_and(|constraints| constraints.iter().len() > 0);
    (is_datafusions && has_keys).then_some(table)
}

/// A table that scans another one and declares no keys.
#[derive(Debug)]
struct WithoutKeys {
    table: Arc<dyn TableProvider>,
}

// Methods with expressions are written as `async_trait` would expand them, so that no future holds expressions: see
// `ReservedMemTable`.
impl TableProvider for WithoutKeys {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.table.get_table_definition()
    }

    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        self.table.get_logical_plan()
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.table.get_column_default(column)
    }

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

    fn scan_with_args<'a, 's, 'session, 'async_trait>(
        &'s self,
        state: &'session dyn Session,
        args: ScanArgs<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<ScanResult>> + Send + 'async_trait>>
    where
        'a: 'async_trait,
        's: 'async_trait,
        'session: 'async_trait,
        Self: 'async_trait,
    {
        self.table.scan_with_args(state, args)
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }

    fn statistics(&self) -> Option<Statistics> {
        self.table.statistics()
    }
}
