//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::TryStreamExt;
use overspill_index::WordRanges;
use tokio::sync::OnceCell;

use super::wanted::RunPlaces;
use super::{IndexMetrics, IndexRowsExec, IndexedScan, MemoryRows, ScannedRows, Wanted};
use crate::config::IndexUse;
use crate::indexes::IndexedRows;
use crate::indexes::files::Sought;

/// Nanoseconds of a thread to fetch a row, to fetch the row after the one that was fetched before, and to find by a filter that a row
/// does not pass. Only their ratios count.
const FETCH: usize = 40;
const FETCH_NEXT: usize = 4;
const FILTER: usize = 1;

/// Size of the sample of rows that tells how many are followed by the next row of the table.
const SAMPLE: usize = 1024;

/// The scan of a table below a filter of an indexed column: either all rows, or only those whose key may pass the filter.
#[derive(Debug)]
pub struct IndexScanExec {
    search: Arc<Search>,
    properties: Arc<PlanProperties>,
}

/// What is looked up, and what has been found.
#[derive(Debug)]
struct Search {
    /// The scan of all rows.
    input: Arc<dyn ExecutionPlan>,
    scan: Arc<IndexedScan>,
    words: WordRanges,
    used: Option<IndexUse>,
    /// The scan of certain rows; `None` if all are scanned.
    found: OnceCell<Option<Found>>,
    metrics: ExecutionPlanMetricsSet,
}

/// A scan of certain rows.
#[derive(Debug)]
struct Found {
    plan: Arc<dyn ExecutionPlan>,
    /// Pays for the numbers of the rows, if they are not part of the index.
    _memory: Option<Arc<MemoryReservation>>,
}

impl IndexScanExec {
    /// Of the rows of `input`, which is that scan, those with these words.
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        scan: IndexedScan,
        words: WordRanges,
        used: Option<IndexUse>,
    ) -> Self {
        Self::over(input, Arc::new(scan), words, used)
    }

    fn over(input: Arc<dyn ExecutionPlan>, scan: Arc<IndexedScan>, words: WordRanges, used: Option<IndexUse>) -> Self {
        let properties = Arc::clone(input.properties());
        let (found, metrics) = (OnceCell::new(), ExecutionPlanMetricsSet::new());
        Self { search: Arc::new(Search { input, scan, words, used, found, metrics }), properties }
    }
}

impl Search {
    /// Looks the words up, and decides whether the rows are worth fetching each.
    async fn run(&self, task: &TaskContext) -> Result<Option<Found>> {
        let metrics = IndexMetrics::new(&self.metrics);
        let always = self.used == Some(IndexUse::Always);
        match &self.scan.rows {
            ScannedRows::Stale(_) => Ok(None),
            ScannedRows::Memory(rows) => {
                let plan = self.in_memory(rows, always, metrics);
                Ok(plan.map(|plan| Found { plan, _memory: None }))
            }
            ScannedRows::Files(rows) => {
                let sought = Sought::Words(self.words.clone());
                metrics.lookups.add(sought.lookups());
                let order = self.input.output_ordering();
                Ok(match rows.select(sought, always, order, task).await? {
                    Ok(selected) => {
                        metrics.selected(&selected);
                        Some(Found { plan: selected.plan, _memory: Some(selected.memory) })
                    }
                    Err(why) => {
                        metrics.refuse(why);
                        None
                    }
                })
            }
        }
    }

    fn in_memory(
        &self,
        memory: &Arc<MemoryRows>,
        always: bool,
        metrics: IndexMetrics,
    ) -> Option<Arc<dyn ExecutionPlan>> {
        let rows = &memory.rows;
        let (mut places, mut found) = (Vec::new(), Vec::new());
        for (run, index) in rows.runs().iter().enumerate() {
            index.index().look_up_ranges(&self.words, &mut places);
            found.extend(places.drain(..).map(|places| (run, places)));
        }
        metrics.lookups.add(self.words.ranges().len() * rows.runs().len());
        let count: usize = found.iter().map(|(_, places)| places.len()).sum();
        if !always && fetching(rows, &found, count) > rows.rows() * FILTER {
            metrics.refuse("more rows than are worth fetching each");
            return None;
        }
        let partitions = self.input.output_partitioning().partition_count();
        Some(Arc::new(IndexRowsExec::new(Arc::clone(memory), Wanted::places(&found), partitions, metrics)))
    }
}

/// The time to fetch `count` rows, which are at these places.
fn fetching(rows: &IndexedRows, found: &[RunPlaces], count: usize) -> usize {
    let step = count / SAMPLE + 1;
    let (mut sample, mut followed) = (0, 0);
    for (run, places) in found {
        let numbers = &rows.runs()[*run].rows()[places.clone()];
        let pairs = numbers.windows(2).step_by(step);
        sample += numbers.len().div_ceil(step);
        followed += pairs.filter(|pair| pair[0].checked_add(1) == Some(pair[1])).count();
    }
    let next = count * followed / sample.max(1);
    (count - next) * FETCH + next * FETCH_NEXT
}

impl DisplayAs for IndexScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Search { scan, words, .. } = self.search.as_ref();
        let (index, ranges) = (scan.explained(), words.ranges().len());
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "IndexScanExec: {index}, ranges={ranges}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "{}\nranges={ranges}", index.replace(", ", "\n")),
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
        vec![&self.search.input]
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
        let Search { scan, words, used, .. } = self.search.as_ref();
        Ok(Arc::new(Self::over(input, Arc::clone(scan), words.clone(), *used)))
    }

    fn execute(&self, partition: usize, task: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let search = Arc::clone(&self.search);
        let rows = async move {
            match search.found.get_or_try_init(|| search.run(&task)).await? {
                Some(found) => found.plan.execute(partition, task),
                None => search.input.execute(partition, task),
            }
        };
        let rows = futures::stream::once(rows).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.search.metrics.clone_inner())
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
