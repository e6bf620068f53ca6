//! One execution of the node.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::cascade::Cascade;
use super::files::Files;
use super::functions::Functions;
use super::merge::{FEW_ROWS, Merge};
use super::metrics::{InputMetrics, Metrics};
use super::partitions::{Part, StatePartitions};

/// The parts of each output that has not taken them.
type Parts = Arc<Mutex<Vec<Option<Vec<Part>>>>>;

/// The streams of an execution.
pub(super) struct Streams {
    /// Those of the input. Rows of a group are in no others.
    pub inputs: Range<usize>,
    pub outputs: Range<usize>,
}

/// The inputs of one execution, which the first output that is polled reads, and the outputs that have not begun.
pub(super) struct Run {
    functions: Arc<Functions>,
    schema: SchemaRef,
    files: Option<Arc<Files>>,
    metrics: Metrics,
    context: Arc<TaskContext>,
    /// Ends when all inputs have been read. If the last output is dropped before, tasks end as well.
    inputs: Shared<BoxFuture<'static, Result<Parts, Arc<DataFusionError>>>>,
    outputs: Range<usize>,
    /// Whether each output has begun.
    begun: Vec<bool>,
}

impl Run {
    /// Executes `input`, for streams with the columns of `schema`.
    pub fn new(
        (functions, schema): (&Arc<Functions>, &SchemaRef),
        input: &Arc<dyn ExecutionPlan>,
        Streams { inputs: partitions, outputs }: Streams,
        metrics: Metrics,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        let files = Files::new(functions, &metrics, &context);
        let states = StatePartitions::new(functions, outputs.len(), 0, files.clone(), context.memory_pool());
        let states = Arc::new(states);
        let mut inputs = vec![];
        for partition in partitions {
            let consumer = MemoryConsumer::new(format!("HybridAggregateExec input[{partition}]"));
            let metrics = metrics.of_input(partition);
            inputs.push(InputStream {
                rows: input.execute(partition, Arc::clone(&context))?,
                groups: Cascade::new(functions, &states, metrics.clone())?,
                memory: consumer.with_can_spill(true).register(context.memory_pool()),
                metrics,
            });
        }
        let inputs = read_all(inputs, states).map(|parts| parts.map_err(Arc::new));
        Ok(Self {
            functions: Arc::clone(functions),
            schema: Arc::clone(schema),
            files,
            metrics,
            context,
            inputs: inputs.boxed().shared(),
            begun: vec![false; outputs.len()],
            outputs,
        })
    }

    /// Whether an output has begun.
    pub fn has_begun(&self, output: usize) -> bool {
        self.begun[output - self.outputs.start]
    }

    /// Whether all outputs have begun.
    pub fn have_all_begun(&self) -> bool {
        self.begun.iter().all(|begun| *begun)
    }

    /// The stream of an output.
    pub fn begin(&mut self, output: usize) -> Result<SendableRecordBatchStream> {
        let number = output - self.outputs.start;
        self.begun[number] = true;
        let of_output = (output, self.metrics.of_output(output));
        let mut merge = Merge::new(&self.functions, &self.schema, of_output, self.files.clone(), &self.context)?;
        let inputs = self.inputs.clone();
        let batches = async move {
            let parts = inputs.await.map_err(DataFusionError::Shared)?;
            let Some(parts) = parts.lock()[number].take() else {
                return internal_err!("output {output} of an aggregate began twice");
            };
            merge.begin(parts);
            let next = |mut merge: Merge| async move { Ok(merge.next().await?.map(|batch| (batch, merge))) };
            Ok(futures::stream::try_unfold(merge, next))
        };
        let batches = futures::stream::once(batches).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }
}

/// Reads all inputs, each in a task of its own.
async fn read_all(inputs: Vec<InputStream>, partitions: Arc<StatePartitions>) -> Result<Parts> {
    let mut tasks = JoinSet::new();
    for input in inputs {
        tasks.spawn(input.read());
    }
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(read) => read?,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(error) => return exec_err!("a task that reads the input of an aggregate was cancelled: {error}"),
        }
    }
    let parts = partitions.complete(FEW_ROWS)?;
    Ok(Arc::new(Mutex::new(parts.into_iter().map(Some).collect())))
}

struct InputStream {
    rows: SendableRecordBatchStream,
    groups: Cascade,
    memory: MemoryReservation,
    metrics: InputMetrics,
}

impl InputStream {
    async fn read(mut self) -> Result<()> {
        while let Some(batch) = self.rows.next().await.transpose()? {
            let _timer = self.metrics.time.timer();
            self.groups.add(&batch)?;
            let bytes = self.groups.bytes();
            // A table that gets no memory is partitioned early, in files if there is no other room.
            if bytes > self.memory.size() && self.memory.try_resize(bytes).is_err() {
                self.groups.finish()?;
            }
        }
        let _timer = self.metrics.time.timer();
        self.groups.finish()
    }
}
