//! The rows that lookups find.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::wanted::{RunPlaces, Share, Wanted};
use super::{IndexMetrics, MemoryRows};
use crate::indexes::Scratch;

/// Some rows of a table in memory, in place of its scan.
#[derive(Debug)]
pub(crate) struct IndexRowsExec {
    rows: Arc<MemoryRows>,
    wanted: Wanted,
    metrics: IndexMetrics,
    properties: Arc<PlanProperties>,
}

impl IndexRowsExec {
    pub fn new(rows: Arc<MemoryRows>, wanted: Wanted, partitions: usize, metrics: IndexMetrics) -> Self {
        let schema = Arc::clone(&rows.schema);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let properties = Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative));
        Self { rows, wanted, metrics, properties }
    }
}

impl DisplayAs for IndexRowsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexRowsExec")
    }
}

impl ExecutionPlan for IndexRowsExec {
    fn name(&self) -> &'static str {
        "IndexRowsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("IndexRowsExec has no inputs") }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = self.schema();
        let streams = self.properties.output_partitioning().partition_count();
        let rows = IndexRowsStream {
            rows: Arc::clone(&self.rows),
            share: Share { wanted: self.wanted.clone(), next: partition, streams, found: Vec::new() },
            metrics: self.metrics.clone(),
            schema: Arc::clone(&schema),
            batch_size: context.session_config().batch_size(),
            places: Vec::new(),
            numbers: Vec::new(),
            words: Vec::new(),
            scratch: Scratch::default(),
        };
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::iter(rows)))))
    }
}

/// One stream of rows.
struct IndexRowsStream {
    rows: Arc<MemoryRows>,
    share: Share,
    metrics: IndexMetrics,
    schema: SchemaRef,
    batch_size: usize,
    /// Places in the runs of the index whose rows are still to be fetched; the last first.
    places: Vec<RunPlaces>,
    /// The numbers of the next rows.
    numbers: Vec<u32>,
    /// Their words, if they are at hand.
    words: Vec<u64>,
    scratch: Scratch,
}

impl IndexRowsStream {
    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let MemoryRows { rows, columns, .. } = self.rows.as_ref();
        self.numbers.clear();
        self.words.clear();
        while self.numbers.len() < self.batch_size {
            let Some((run, places)) = self.places.last_mut() else {
                if self.share.take(rows, &mut self.places, &self.metrics) { continue } else { break }
            };
            let count = places.len().min(self.batch_size - self.numbers.len());
            let (numbers, words) = self.share.wanted.rows(rows, *run);
            let taken = places.start..places.start + count;
            self.numbers.extend_from_slice(&numbers[taken.clone()]);
            self.words.extend_from_slice(words.get(taken).unwrap_or_default());
            places.start += count;
            if places.start == places.end {
                self.places.pop();
            }
        }
        if self.numbers.is_empty() {
            return Ok(None);
        }
        self.metrics.rows.add(self.numbers.len());
        rows.fetch(&self.numbers, &self.words, columns, &self.schema, &mut self.scratch).map(Some)
    }
}

impl Iterator for IndexRowsStream {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}
