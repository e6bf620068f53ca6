//! The rows of a running statement.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow::array::AsArray;
use arrow::datatypes::{SchemaRef, UInt64Type};
use arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{Stream, StreamExt, TryStreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::Span;

use crate::error::{Error, Result, cancelled_or};
use crate::files::with_files_named;
use crate::progress::Monitor;
use crate::statement::{Kind, Prepared};

/// The results of a statement: a stream of batches.
///
/// The statement runs on the threads of its session while the stream is read, at most some batches ahead. Dropping the
/// results stops it. The stream ends after an error.
pub struct Results {
    kind: Kind,
    plan: Arc<dyn ExecutionPlan>,
    monitor: Monitor,
    batches: mpsc::Receiver<Result<RecordBatch, DataFusionError>>,
    task: JoinSet<()>,
    describe: Box<dyn Fn(DataFusionError) -> Error + Send + Sync>,
    _running: Span,
}

impl Results {
    /// The results of a prepared statement, and the task that sends their batches. `describe` describes errors.
    pub(crate) fn new(
        prepared: Prepared,
        running: Span,
        describe: impl Fn(DataFusionError) -> Error + Send + Sync + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let Prepared { kind, plan, context } = prepared;
        // A small channel between the query and its reader, as no budget counts its content.
        let (sender, batches) = mpsc::channel(1);
        let monitor = Monitor::new(&plan, context.memory_pool());
        let results = Self {
            kind,
            plan: Arc::clone(&plan),
            monitor,
            batches,
            task: JoinSet::new(),
            describe: Box::new(describe),
            _running: running,
        };
        (results, send(plan, context, sender))
    }

    /// The set that the task belongs to: the results stop it when they are dropped.
    pub(crate) fn task(&mut self) -> &mut JoinSet<()> {
        &mut self.task
    }

    /// What the rows are.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The columns of all batches.
    pub fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    /// Watches the statement, also from other threads.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Runs a statement of [`Kind::Count`] to its end, and returns the number of rows that it has stored, changed or deleted.
    ///
    /// # Errors
    /// The error of the statement.
    pub async fn count(self) -> Result<u64> {
        let batches: Vec<_> = self.try_collect().await?;
        let counts = batches.iter().flat_map(|batch| batch.columns().first());
        Ok(counts
            .filter_map(|column| column.as_primitive_opt::<UInt64Type>())
            .flat_map(|counts| counts.iter().flatten())
            .sum())
    }

    fn failed(&self, error: DataFusionError) -> Error {
        (self.describe)(with_files_named(error, &self.plan))
    }
}

async fn send(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    sender: mpsc::Sender<Result<RecordBatch, DataFusionError>>,
) {
    let mut stream = match execute_stream(plan, context) {
        Ok(stream) => stream,
        Err(error) => {
            let _ = sender.send(Err(error)).await;
            return;
        }
    };
    while let Some(batch) = stream.next().await {
        // A stream must not be polled after an error, as some panic.
        let is_last = batch.is_err();
        // The reader has stopped before the query.
        if sender.send(batch).await.is_err() || is_last {
            return;
        }
    }
}

impl Stream for Results {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.batches.poll_recv(cx)) {
            Some(batch) => Some(batch.map_err(|error| self.failed(error))),
            // The channel also closes if the task panics or is cancelled, which is not the end of the rows.
            None => match ready!(self.task.poll_join_next(cx)) {
                Some(Err(stopped)) => Some(Err(cancelled_or(stopped, |error| self.failed(error)))),
                Some(Ok(())) | None => None,
            },
        })
    }
}
