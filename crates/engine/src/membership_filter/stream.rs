//! One stream of rows that are tested.

use std::sync::{Arc, Weak};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::BuildKeys;
use super::pace::Pace;
use crate::join_execution::output::OutputBatches;
use crate::join_execution::to_datafusion;

/// What EXPLAIN ANALYZE shows of a stream.
pub(super) struct Metrics {
    baseline: BaselineMetrics,
    /// Rows whose keys were tested, for each test.
    tested: Count,
    /// Rows that were dropped.
    dropped: Count,
}

impl Metrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).counter(name, partition);
        let (tested, dropped) = (counter("tested_rows"), counter("dropped_rows"));
        Self { baseline: BaselineMetrics::new(metrics, partition), tested, dropped }
    }
}

/// A test of rows.
pub(super) struct Test {
    /// The join owns the keys and pays for their memory. This stream must not keep them: a repartition above it can hold the stream after the
    /// join's streams were dropped.
    keys: Weak<BuildKeys>,
    /// The columns of the key.
    columns: Vec<usize>,
    pace: Pace,
}

impl Test {
    pub fn new(keys: &Arc<BuildKeys>, columns: Vec<usize>) -> Self {
        Self { keys: Arc::downgrade(keys), columns, pace: Pace::default() }
    }

    /// Which rows of a batch may have a key of a build side, and whether the share of such rows was judged anew.
    /// `None` if the batch is not tested.
    fn members(&mut self, batch: &RecordBatch) -> Result<Option<(BooleanArray, bool)>> {
        let keys = self.keys.upgrade();
        let whole = keys.as_ref().and_then(|keys| keys.whole());
        let Some(keys) = whole.filter(|_| self.pace.tests_next()) else { return Ok(None) };
        let columns: Vec<ArrayRef> = self.columns.iter().map(|column| Arc::clone(batch.column(*column))).collect();
        let members = keys.members(&columns).map_err(to_datafusion)?;
        let is_judged = self.pace.note(batch.num_rows(), members.count_set_bits());
        Ok(Some((BooleanArray::new(members, None), is_judged)))
    }
}

/// Returns the rows whose keys may be on the build sides, in their order.
pub(super) struct MembershipStream {
    input: SendableRecordBatchStream,
    /// In the order in which rows are tested: the test that the fewest rows pass comes first, as the others then see few.
    tests: Vec<Test>,
    output: OutputBatches,
    metrics: Metrics,
}

impl MembershipStream {
    pub fn new(input: SendableRecordBatchStream, tests: Vec<Test>, batch_size: usize, metrics: Metrics) -> Self {
        let output = OutputBatches::new(&input.schema(), batch_size);
        Self { input, tests, output, metrics }
    }

    pub fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.input.schema();
        let batches = futures::stream::try_unfold(self, |mut stream| async move {
            Ok(stream.next().await?.map(|batch| (batch, stream)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.next_full() {
                return Ok(Some(batch.record_output(&self.metrics.baseline)));
            }
            match self.input.next().await.transpose()? {
                Some(batch) => self.add(batch)?,
                None if self.output.is_empty() => return Ok(None),
                None => self.output.finish()?,
            }
        }
    }

    /// Adds the rows of a batch that pass all tests.
    fn add(&mut self, batch: RecordBatch) -> Result<()> {
        let Self { tests, metrics, .. } = self;
        let _timer = metrics.baseline.elapsed_compute().timer();
        let (mut rows, mut is_judged) = (batch, false);
        for test in tests.iter_mut() {
            if rows.num_rows() == 0 {
                break;
            }
            let Some((members, judged)) = test.members(&rows)? else { continue };
            let (tested, passed) = (rows.num_rows(), members.true_count());
            metrics.tested.add(tested);
            metrics.dropped.add(tested - passed);
            is_judged |= judged;
            if passed < tested {
                rows = filter_record_batch(&rows, &members)?;
            }
        }
        if is_judged {
            tests.sort_by(|one, other| one.pace.share().total_cmp(&other.pace.share()));
        }
        Ok(self.output.push(rows)?)
    }
}
