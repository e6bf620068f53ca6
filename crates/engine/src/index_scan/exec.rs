//! The plan node.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use overspill_index::WordRanges;

use super::{IndexMetrics, IndexRowsExec, IndexedScan, Wanted};
use crate::config::IndexUse;
use crate::indexes::TableIndex;

/// Nanoseconds of a thread to fetch a row, and to find by a filter that a row does not pass. Only their ratio counts.
const FETCH: usize = 40;
const FILTER: usize = 1;

/// The scan of a table below a filter of an indexed column: either all rows, or only those whose key may pass the filter.
#[derive(Debug)]
pub struct IndexScanExec {
    input: Arc<dyn ExecutionPlan>,
    scan: Arc<IndexedScan>,
    words: WordRanges,
    used: Option<IndexUse>,
    /// The rows to fetch; `None` if all are scanned.
    wanted: Arc<OnceLock<Option<Wanted>>>,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl IndexScanExec {
    /// Of the rows of `input`, which is that scan, those with these words.
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        scan: IndexedScan,
        words: WordRanges,
        used: Option<IndexUse>,
    ) -> Self {
        let properties = Arc::clone(input.properties());
        let (wanted, metrics) = (Arc::default(), ExecutionPlanMetricsSet::new());
        Self { input, scan: Arc::new(scan), words, used, wanted, metrics, properties }
    }

    /// Looks the words up, and decides whether the rows are worth fetching each.
    fn decide(&self) -> Option<Wanted> {
        let metrics = IndexMetrics::new(&self.metrics);
        let rows = &self.scan.rows;
        let (mut places, mut found) = (Vec::new(), Vec::new());
        for (run, index) in rows.runs().iter().enumerate() {
            index.index().look_up_ranges(&self.words, &mut places);
            found.extend(places.drain(..).map(|places| (run, places)));
        }
        metrics.lookups.add(self.words.ranges().len() * rows.runs().len());
        let count: usize = found.iter().map(|(_, places)| places.len()).sum();
        if self.used != Some(IndexUse::Always) && count * FETCH > rows.rows() * FILTER {
            metrics.refuse("more rows than are worth fetching each");
            return None;
        }
        Some(Wanted::places(&found))
    }
}

impl DisplayAs for IndexScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableIndex { name, column, kind, .. } = self.scan.index.as_ref();
        let ranges = self.words.ranges().len();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "IndexScanExec: index={name}, column={column}, kind={kind}, ranges={ranges}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "index={name}\nkind={kind}\nranges={ranges}"),
        }
    }
}

impl ExecutionPlan for IndexScanExec {
    fn name(&self) -> &'static str {
        "IndexScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return internal_err!("IndexScanExec has one input");
        };
        Ok(Arc::new(Self {
            properties: Arc::clone(input.properties()),
            input,
            scan: Arc::clone(&self.scan),
            words: self.words.clone(),
            used: self.used,
            wanted: Arc::default(),
            metrics: ExecutionPlanMetricsSet::new(),
        }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(wanted) = self.wanted.get_or_init(|| self.decide()) else {
            return self.input.execute(partition, context);
        };
        let partitions = self.properties.output_partitioning().partition_count();
        let metrics = IndexMetrics::new(&self.metrics);
        IndexRowsExec::new(Arc::clone(&self.scan), wanted.clone(), partitions, metrics).execute(partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("IndexScanExec over {} inputs", inputs.len()),
        }
    }
}
