//! A scan of a table in memory, which may have indexes.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::{DataSource, OpenArgs};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::DisplayFormatType;
use datafusion::physical_plan::SortOrderPushdownResult;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use parking_lot::Mutex;

use super::index::TableIndex;
use super::rows::IndexedRows;

/// An index of a scanned table.
#[derive(Debug, Clone)]
pub(crate) struct ScanIndex {
    pub index: Arc<TableIndex>,
    /// The indexed rows, if they are those that are scanned; else why not.
    pub rows: Result<Arc<IndexedRows>, String>,
}

/// The scan of a table in memory, with the indexes of the table. It scans as without them.
#[derive(Debug)]
pub(crate) struct MemoryTableSource {
    source: Arc<dyn DataSource>,
    pub indexes: Vec<ScanIndex>,
    /// The statistics by partition, as far as they have been asked for. Rules ask for them again and again, and computing them takes a
    /// look at every array: of a large table that is most of the time of a query that looks few rows up.
    statistics: Mutex<HashMap<Option<usize>, Arc<Statistics>>>,
}

impl MemoryTableSource {
    pub fn new(source: Arc<dyn DataSource>, indexes: Vec<ScanIndex>) -> Self {
        Self { source, indexes, statistics: Mutex::default() }
    }

    fn with(&self, source: Arc<dyn DataSource>) -> Arc<dyn DataSource> {
        Arc::new(Self::new(source, self.indexes.clone()))
    }

    /// The columns of the table that are scanned; `None` if not all rows are.
    pub fn columns(&self) -> Option<Vec<usize>> {
        let memory = self.source.downcast_ref::<MemorySourceConfig>().filter(|memory| memory.fetch().is_none())?;
        Some(memory.projection().clone().unwrap_or_else(|| (0..memory.original_schema().fields().len()).collect()))
    }
}

impl DataSource for MemoryTableSource {
    fn open(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.source.open(partition, context)
    }

    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt_as(format, f)?;
        for ScanIndex { index, rows } in &self.indexes {
            if let Err(why) = rows {
                let why = format!("index {} is stale: {why}", index.name);
                match format {
                    DisplayFormatType::TreeRender => writeln!(f, "{why}")?,
                    _ => write!(f, ", {why}")?,
                }
            }
        }
        Ok(())
    }

    fn repartitioned(
        &self,
        target_partitions: usize,
        file_min_size: usize,
        output_ordering: Option<LexOrdering>,
    ) -> Result<Option<Arc<dyn DataSource>>> {
        let source = self.source.repartitioned(target_partitions, file_min_size, output_ordering)?;
        Ok(source.map(|source| self.with(source)))
    }

    fn output_partitioning(&self) -> Partitioning {
        self.source.output_partitioning()
    }

    fn eq_properties(&self) -> EquivalenceProperties {
        self.source.eq_properties()
    }

    fn scheduling_type(&self) -> SchedulingType {
        self.source.scheduling_type()
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        if let Some(statistics) = self.statistics.lock().get(&partition) {
            return Ok(Arc::clone(statistics));
        }
        let statistics = self.source.partition_statistics(partition)?;
        self.statistics.lock().insert(partition, Arc::clone(&statistics));
        Ok(statistics)
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn DataSource>> {
        self.source.with_fetch(limit).map(|source| self.with(source))
    }

    fn fetch(&self) -> Option<usize> {
        self.source.fetch()
    }

    fn metrics(&self) -> ExecutionPlanMetricsSet {
        self.source.metrics()
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn DataSource>>> {
        Ok(self.source.try_swapping_with_projection(projection)?.map(|source| self.with(source)))
    }

    fn try_pushdown_sort(&self, order: &[PhysicalSortExpr]) -> Result<SortOrderPushdownResult<Arc<dyn DataSource>>> {
        Ok(self.source.try_pushdown_sort(order)?.map(|source| self.with(source)))
    }

    fn with_preserve_order(&self, preserve_order: bool) -> Option<Arc<dyn DataSource>> {
        self.source.with_preserve_order(preserve_order).map(|source| self.with(source))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.source.apply_expressions(f)
    }

    fn with_new_state(&self, state: Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn DataSource>> {
        self.source.with_new_state(state).map(|source| self.with(source))
    }

    fn create_sibling_state(&self, config: &ConfigOptions) -> Option<Arc<dyn Any + Send + Sync>> {
        self.source.create_sibling_state(config)
    }

    fn open_with_args(&self, args: OpenArgs) -> Result<SendableRecordBatchStream> {
        self.source.open_with_args(args)
    }
}
