//! The rows that lookups find.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

use super::lookup::{Lookup, LookupKeys, LookupMetrics};
use crate::indexes::Scratch;

/// Number of keys that a stream takes at once.
const TAKEN: usize = 1024;

/// The rows of a table with certain keys, in place of its scan. Streams take keys from one list until none is left.
#[derive(Debug)]
pub(super) struct IndexRowsExec {
    lookup: Arc<Lookup>,
    keys: Arc<LookupKeys>,
    metrics: LookupMetrics,
    properties: Arc<PlanProperties>,
}

impl IndexRowsExec {
    pub fn new(lookup: Arc<Lookup>, keys: Arc<LookupKeys>, partitions: usize, metrics: LookupMetrics) -> Self {
        let schema = Arc::clone(&lookup.schema);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let properties = Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative));
        Self { lookup, keys, metrics, properties }
    }
}

impl DisplayAs for IndexRowsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexRowsExec: keys={}", self.keys.words.len())
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

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = self.schema();
        let rows = IndexRowsStream {
            lookup: Arc::clone(&self.lookup),
            keys: Arc::clone(&self.keys),
            metrics: self.metrics.clone(),
            schema: Arc::clone(&schema),
            batch_size: context.session_config().batch_size(),
            found: Vec::new(),
            places: Vec::new(),
            numbers: Vec::new(),
            scratch: Scratch::default(),
        };
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::iter(rows)))))
    }
}

/// One stream of rows.
struct IndexRowsStream {
    lookup: Arc<Lookup>,
    keys: Arc<LookupKeys>,
    metrics: LookupMetrics,
    schema: SchemaRef,
    batch_size: usize,
    /// Places in the runs of the index whose rows are still to be fetched; the last first.
    found: Vec<(usize, Range<usize>)>,
    places: Vec<Range<usize>>,
    /// The numbers of the next rows.
    numbers: Vec<u32>,
    scratch: Scratch,
}

impl IndexRowsStream {
    /// Takes more keys and looks them up. Returns false if none is left.
    fn look_up(&mut self) -> bool {
        let words = &self.keys.words;
        let first = self.keys.next.fetch_add(TAKEN, Ordering::Relaxed).min(words.len());
        let taken = &words[first..(first + TAKEN).min(words.len())];
        for (run, index) in self.lookup.rows.runs().iter().enumerate() {
            index.index().look_up(taken, &mut self.places);
            self.found.extend(self.places.iter().filter(|place| !place.is_empty()).map(|place| (run, place.clone())));
        }
        self.found.reverse();
        self.metrics.lookups.add(taken.len());
        !taken.is_empty()
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.numbers.clear();
        while self.numbers.len() < self.batch_size {
            let Some((run, places)) = self.found.last_mut() else { if self.look_up() { continue } else { break } };
            let count = places.len().min(self.batch_size - self.numbers.len());
            let rows = self.lookup.rows.runs()[*run].rows();
            self.numbers.extend_from_slice(&rows[places.start..places.start + count]);
            places.start += count;
            if places.start == places.end {
                self.found.pop();
            }
        }
        if self.numbers.is_empty() {
            return Ok(None);
        }
        self.metrics.rows.add(self.numbers.len());
        let Lookup { rows, columns, .. } = self.lookup.as_ref();
        rows.fetch(&self.numbers, columns, &self.schema, &mut self.scratch).map(Some)
    }
}

impl Iterator for IndexRowsStream {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}
