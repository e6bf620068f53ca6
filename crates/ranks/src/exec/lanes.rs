//! Rows that have come to a rank, split among its lanes.
//!
//! DataFusion's `RepartitionExec` would keep the streams of its input until one of its outputs is polled. A join with an empty build side
//! never does that, and ranks that send it rows would wait for ever.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use crate::job::Exchanging;

/// Batches that wait for a lane.
const WAITING: usize = 2;

/// The rows of a lane.
pub struct LaneRows {
    rows: Receiver<Result<RecordBatch>>,
    split: Arc<Split>,
}

/// What all lanes share. With the last of them its tasks end, and with these its inputs.
struct Split {
    runtime: Handle,
    /// Until a lane asks for rows.
    inputs: Mutex<Vec<Input>>,
    tasks: Mutex<JoinSet<()>>,
    /// How many inputs have not been passed on to their end, or to their error.
    unfinished: Arc<AtomicUsize>,
}

struct Input {
    rows: Exchanging,
    partitioner: BatchPartitioner,
    lanes: Vec<Sender<Result<RecordBatch>>>,
    unfinished: Arc<AtomicUsize>,
}

/// Splits the rows of all inputs by a hash of these keys, among as many lanes as there are inputs.
///
/// # Errors
/// If there are no inputs.
pub fn split(inputs: Vec<Exchanging>, keys: &[Arc<dyn PhysicalExpr>]) -> Result<Vec<LaneRows>> {
    let (senders, receivers): (Vec<_>, Vec<_>) = inputs.iter().map(|_| channel(WAITING)).unzip();
    let unfinished = Arc::new(AtomicUsize::new(inputs.len()));
    let inputs = inputs.into_iter().map(|rows| {
        let partitioner = BatchPartitioner::new_hash_partitioner(keys.to_vec(), senders.len(), Time::new())?;
        Ok(Input { rows, partitioner, lanes: senders.clone(), unfinished: Arc::clone(&unfinished) })
    });
    let inputs = Mutex::new(inputs.collect::<Result<_>>()?);
    let split = Split { runtime: Handle::current(), inputs, tasks: Mutex::default(), unfinished };
    let split = Arc::new(split);
    Ok(receivers.into_iter().map(|rows| LaneRows { rows, split: Arc::clone(&split) }).collect())
}

impl Split {
    fn start(&self) {
        let inputs = std::mem::take(&mut *self.inputs.lock());
        for input in inputs {
            self.tasks.lock().spawn_on(input.run(), &self.runtime);
        }
    }
}

impl Input {
    /// Passes all rows on, until no lane wants more.
    async fn run(mut self) {
        if let Err(error) = self.pass().await {
            // A lane without the error would take its rows for complete.
            let error = Arc::new(error);
            for lane in &self.lanes {
                let _ = lane.send(Err(DataFusionError::Shared(Arc::clone(&error)))).await;
            }
        }
        self.unfinished.fetch_sub(1, Ordering::Release);
    }

    async fn pass(&mut self) -> Result<()> {
        while let Some(batch) = self.rows.next().await.transpose()? {
            for part in self.partitioner.partition_iter(batch)? {
                let (lane, rows) = part?;
                // A lane may need no more rows.
                let _ = self.lanes[lane].send(Ok(rows)).await;
            }
            if self.lanes.iter().all(Sender::is_closed) {
                break;
            }
        }
        Ok(())
    }
}

impl Stream for LaneRows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.split.start();
        match self.rows.poll_recv(context) {
            // Who has panicked has sent no error.
            Poll::Ready(None) if self.split.unfinished.load(Ordering::Acquire) > 0 => {
                Poll::Ready(Some(internal_err!("a task that splits rows among lanes has panicked")))
            }
            rows => rows,
        }
    }
}
