//! One stream of filtered rows.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricType, RatioMetrics, RecordOutput,
};
use datafusion::physical_plan::stream::{EmptyRecordBatchStream, RecordBatchStreamAdapter};
use futures::StreamExt;

use super::conjuncts::Conjuncts;
use super::order::{Order, SAMPLE, Sample};
use super::rows::Rows;
use crate::join_execution::output::OutputBatches;

/// What EXPLAIN ANALYZE shows of a stream.
pub(super) struct Metrics {
    baseline: BaselineMetrics,
    /// The share of rows that passed.
    selectivity: RatioMetrics,
    /// Rows that each conjunct was evaluated on, those of samples not included.
    evaluated: Vec<Count>,
    /// How often the order of conjuncts changed.
    reorderings: Count,
}

impl Metrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet, partition: usize, conjuncts: usize) -> Self {
        let evaluated = |conjunct: usize| {
            MetricBuilder::new(metrics)
                .with_new_label("conjunct", conjunct.to_string())
                .counter("evaluated_rows", partition)
        };
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            selectivity: MetricBuilder::new(metrics)
                .with_type(MetricType::Summary)
                .ratio_metrics("selectivity", partition),
            evaluated: (1..=conjuncts).map(evaluated).collect(),
            reorderings: MetricBuilder::new(metrics).counter("reorderings", partition),
        }
    }
}

/// Returns the rows of its input that pass all conjuncts, in their order.
pub(super) struct AdaptiveFilterStream {
    input: SendableRecordBatchStream,
    conjuncts: Arc<Conjuncts>,
    order: Order,
    projection: Option<Vec<usize>>,
    /// Rows that may still be returned; `None` without a limit.
    wanted: Option<usize>,
    /// The schema of the output.
    schema: SchemaRef,
    output: OutputBatches,
    has_ended: bool,
    metrics: Metrics,
}

impl AdaptiveFilterStream {
    /// Filters a partition of the input of `planned`.
    pub fn new(
        planned: &FilterExec,
        conjuncts: &Arc<Conjuncts>,
        input: SendableRecordBatchStream,
        metrics: Metrics,
    ) -> Self {
        let schema = planned.schema();
        Self {
            input,
            output: OutputBatches::new(&schema, planned.batch_size()),
            schema,
            order: Order::new(conjuncts),
            conjuncts: Arc::clone(conjuncts),
            projection: planned.projection().as_ref().map(|projection| projection.to_vec()),
            wanted: planned.fetch(),
            has_ended: false,
            metrics,
        }
    }

    pub fn into_stream(self) -> SendableRecordBatchStream {
        let schema = SchemaRef::clone(&self.schema);
        let batches = futures::stream::try_unfold(self, |mut stream| async move {
            Ok(stream.next().await?.map(|batch| (batch, stream)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.next_full() {
                self.metrics.selectivity.add_part(batch.num_rows());
                return Ok(Some(batch.record_output(&self.metrics.baseline)));
            }
            if self.has_ended {
                return Ok(None);
            }
            match self.input.next().await.transpose()? {
                Some(batch) => self.add(&batch)?,
                None => self.end()?,
            }
        }
    }

    /// Returns what has been collected, and then ends.
    fn end(&mut self) -> Result<()> {
        self.has_ended = true;
        // The input may free its memory.
        self.input = Box::pin(EmptyRecordBatchStream::new(self.input.schema()));
        Ok(self.output.finish()?)
    }

    /// Adds the rows of a batch that pass.
    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let elapsed = self.metrics.baseline.elapsed_compute().clone();
        let _timer = elapsed.timer();
        self.metrics.selectivity.add_total(batch.num_rows());
        let rows = self.filter(batch)?;
        if rows.count() > 0 {
            let mut selected = rows.selected(self.projection.as_deref())?;
            if let Some(wanted) = &mut self.wanted {
                selected = selected.slice(0, selected.num_rows().min(*wanted));
                *wanted -= selected.num_rows();
            }
            self.output.push(selected)?;
        }
        if self.wanted == Some(0) { self.end() } else { Ok(()) }
    }

    /// Evaluates the conjuncts on a batch.
    fn filter<'a>(&mut self, batch: &'a RecordBatch) -> Result<Rows<'a>> {
        let mut rows = Rows::new(batch);
        let measures = self.order.measures_next(batch.num_rows());
        for group in 0..self.order.groups() {
            if measures && self.order.is_measured(group, rows.count()) {
                let samples = self.samples(group, &mut rows)?;
                if self.order.rank(group, samples) {
                    self.metrics.reorderings.add(1);
                }
            }
            for number in self.order.group(group) {
                if rows.count() == 0 {
                    return Ok(rows);
                }
                let conjunct = &self.conjuncts.all[*number];
                if conjunct.is_barrier {
                    rows.copy();
                } else {
                    rows.copy_if_cheaper(conjunct, self.order.cost(*number));
                }
                let evaluated = rows.evaluated();
                self.metrics.evaluated[*number].add(evaluated);
                let passing = conjunct.passing(rows.columns(&conjunct.columns)?, evaluated)?;
                rows.retain(passing);
            }
        }
        Ok(rows)
    }

    /// Evaluates each conjunct of a group on the same few of the rows that have passed the groups before.
    fn samples(&self, group: usize, rows: &mut Rows) -> Result<Vec<Sample>> {
        rows.copy();
        let length = rows.evaluated().min(SAMPLE);
        // Another place in each batch, as rows at one place may be alike.
        let start = self.order.measurements() * SAMPLE % (rows.evaluated() - length + 1);
        let sample = |number: &usize| {
            let conjunct = &self.conjuncts.all[*number];
            let columns = rows.columns(&conjunct.columns)?;
            let columns = columns.iter().map(|column| column.slice(start, length)).collect();
            let begin = Instant::now();
            let passing = conjunct.passing(columns, length)?;
            Ok(Sample { passing, nanos: begin.elapsed().as_nanos() as f64 / length as f64 })
        };
        self.order.group(group).iter().map(sample).collect()
    }
}
