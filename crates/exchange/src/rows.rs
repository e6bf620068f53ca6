//! Rows that go to one rank, or to all, whatever their keys are.

use std::fmt::Display;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use overspill_join::memory::row_bytes;

use crate::all_to_all::{AllToAll, ExchangeMetrics, Outgoing};
use crate::error::Result;
use crate::rank::Rank;
use crate::shuffle::{SEEDS, Shuffle, described, failure};
use crate::transport::{Job, StreamNumber};

/// What is sent, and how. It must be the same on all ranks.
#[derive(Debug, Clone)]
pub struct RowsSpec {
    /// The number of the exchange in its job. Shuffles have none of these.
    pub number: u64,
    /// The type of the rows.
    pub schema: SchemaRef,
    /// Whether columns are compressed between nodes.
    pub is_compressed: bool,
    /// The bytes that a rank sends another in a round, if rows are about as large as the average. A receiver has some two times as many in
    /// memory for each sender.
    pub round_bytes: usize,
}

impl RowsSpec {
    /// Sends rows to another rank. They are sent while the future is polled. If it is dropped or fails, or the input does, the job fails on
    /// all ranks.
    pub fn send<E: Display + Send + 'static>(
        &self,
        job: &Job,
        to: Rank,
        input: impl Stream<Item = Result<RecordBatch, E>> + Send + 'static,
    ) -> (BoxFuture<'static, Result<()>>, ExchangeMetrics) {
        let (outgoing, incoming) = self.exchange(vec![to], vec![]).open(job);
        let metrics = incoming.metrics().clone();
        (send_all(job.clone(), outgoing, input, self.round_bytes).boxed(), metrics)
    }

    /// Receives the rows of another rank, in their order. Dropped early, it makes the sender stop.
    pub fn receive(&self, job: &Job, from: Rank) -> (BoxStream<'static, Result<RecordBatch>>, ExchangeMetrics) {
        let (outgoing, incoming) = self.exchange(vec![], vec![from]).open(job);
        drop(outgoing);
        let metrics = incoming.metrics().clone();
        let job = job.clone();
        (incoming.into_stream().map_err(move |error| failure(&job, error)).boxed(), metrics)
    }

    /// Sends the rows of this rank to all ranks, and receives those of all. `P` ranks send `P(P-1)` messages a column and round, whose bytes
    /// are written once.
    pub fn broadcast<E: Display + Send + 'static>(
        &self,
        job: &Job,
        input: impl Stream<Item = Result<RecordBatch, E>> + Send + 'static,
    ) -> Shuffle {
        self.with(job, everyone(job), |job, outgoing| send_all(job, outgoing, input, self.round_bytes).boxed())
    }

    /// Sends each rank rows of its own, and receives those of all: a shuffle of rows that are partitioned already. The input has a batch for each
    /// rank at a time, which is a round: they should have about [`round_bytes`](Self::round_bytes) each.
    pub fn all_to_all<E: Display + Send + 'static>(
        &self,
        job: &Job,
        input: impl Stream<Item = Result<Vec<RecordBatch>, E>> + Send + 'static,
    ) -> Shuffle {
        self.among(job, everyone(job), input)
    }

    /// Sends each of these ranks rows of its own, and receives those of all of them. Each of them names this one, too, if it is not itself.
    pub(crate) fn among<E: Display + Send + 'static>(
        &self,
        job: &Job,
        ranks: Vec<Rank>,
        input: impl Stream<Item = Result<Vec<RecordBatch>, E>> + Send + 'static,
    ) -> Shuffle {
        self.with(job, ranks, |job, outgoing| send_rounds(job, outgoing, input).boxed())
    }

    fn with(
        &self,
        job: &Job,
        ranks: Vec<Rank>,
        send: impl FnOnce(Job, Outgoing) -> BoxFuture<'static, Result<()>>,
    ) -> Shuffle {
        let (outgoing, incoming) = self.exchange(ranks.clone(), ranks).open(job);
        let metrics = vec![incoming.metrics().clone()];
        let receiving = job.clone();
        let output = incoming.into_stream().map_err(move |error| failure(&receiving, error)).boxed();
        Shuffle { driver: send(job.clone(), outgoing), output, metrics }
    }

    fn exchange(&self, to: Vec<Rank>, from: Vec<Rank>) -> AllToAll {
        AllToAll {
            number: self.number * SEEDS.len() as StreamNumber,
            to,
            from,
            schema: self.schema.clone(),
            description: described(&self.schema).into(),
            piece_bytes: self.round_bytes,
            is_compressed: self.is_compressed,
        }
    }
}

fn everyone(job: &Job) -> Vec<Rank> {
    (0..job.endpoint().topology().ranks()).collect()
}

async fn send_all<E: Display>(
    job: Job,
    mut outgoing: Outgoing,
    input: impl Stream<Item = Result<RecordBatch, E>>,
    round_bytes: usize,
) -> Result<()> {
    let sending = async {
        let mut input = std::pin::pin!(input);
        while let Some(batch) = input.next().await {
            let batch = batch.map_err(|error| job.fail(&error.to_string()))?;
            let most = (round_bytes / row_bytes(&batch).max(1)).max(1);
            for start in (0..batch.num_rows()).step_by(most) {
                outgoing.broadcast(&batch.slice(start, most.min(batch.num_rows() - start))).await?;
                if outgoing.is_unwanted() {
                    return Ok(());
                }
            }
        }
        Ok(())
    };
    if let Err(error) = sending.await {
        return Err(failure(&job, error));
    }
    outgoing.end().await;
    Ok(())
}

async fn send_rounds<E: Display>(
    job: Job,
    mut outgoing: Outgoing,
    input: impl Stream<Item = Result<Vec<RecordBatch>, E>>,
) -> Result<()> {
    let sending = async {
        let mut input = std::pin::pin!(input);
        while let Some(pieces) = input.next().await {
            outgoing.send(pieces.map_err(|error| job.fail(&error.to_string()))?).await?;
            if outgoing.is_unwanted() {
                return Ok(());
            }
        }
        Ok(())
    };
    if let Err(error) = sending.await {
        return Err(failure(&job, error));
    }
    outgoing.end().await;
    Ok(())
}
