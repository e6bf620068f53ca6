//! What a rank receives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use futures::channel::mpsc;
use futures::stream::{self, BoxStream, ReadyChunks, SelectAll};
use futures::{Stream, StreamExt, TryStreamExt};

use super::metrics::ExchangeMetrics;
use super::sizes::{Sizes, check_greeting};
use super::table::{Part, Piece, Table};
use super::{AllToAll, WINDOW_ROUNDS};
use crate::error::{Error, Result};
use crate::transport::{Job, Receiver};

/// The rows that a rank receives. Dropped before their end, it tells the senders to stop.
pub struct Incoming {
    /// What each rank sends, a round at a time. Those that are there are taken together.
    parts: ReadyChunks<SelectAll<BoxStream<'static, Result<Part>>>>,
    table: Table,
    /// Batches that were not handed out.
    ready: VecDeque<RecordBatch>,
    metrics: ExchangeMetrics,
}

impl Incoming {
    pub(super) fn new(
        job: &Job,
        exchange: &AllToAll,
        kept: mpsc::Receiver<Option<RecordBatch>>,
        metrics: ExchangeMetrics,
    ) -> Self {
        let here = job.endpoint().rank();
        let window = exchange.piece_bytes.saturating_mul(WINDOW_ROUNDS);
        let peers = exchange.from.iter().filter(|rank| **rank != here).map(|rank| {
            let receiver = Receiver::open(job, *rank, exchange.number, window);
            let columns = exchange.schema.fields().len();
            let peer = Peer { receiver, description: exchange.description.clone(), columns, has_greeted: false };
            let pieces = stream::try_unfold(peer, async |mut peer| Ok(peer.round().await?.map(|piece| (piece, peer))));
            pieces.map_ok(Part::Received).boxed()
        });
        let own = exchange.from.contains(&here).then(|| own_parts(job.clone(), kept).boxed());
        let parts = stream::select_all(peers.chain(own));
        Self {
            parts: parts.ready_chunks(exchange.from.len().max(1)),
            table: Table::new(&exchange.schema, metrics.clone()),
            ready: VecDeque::new(),
            metrics,
        }
    }

    /// What was exchanged so far.
    pub fn metrics(&self) -> &ExchangeMetrics {
        &self.metrics
    }

    /// Rows of all ranks that have sent some, those of each rank in their order; `None` at the end. It waits for no rank in particular: on
    /// two levels ranks would wait for each other in a circle.
    ///
    /// # Errors
    /// If a rank has failed, or sends what it should not.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            let waiting = Instant::now();
            let parts = self.parts.next().await;
            self.metrics.waited_to_receive(waiting.elapsed());
            let Some(parts) = parts else { return Ok(None) };
            let mut parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
            parts.retain(|part| part.rows() > 0);
            if !parts.is_empty() {
                let received = parts.iter().filter(|part| matches!(part, Part::Received(_))).map(Part::rows);
                self.metrics.received(received.sum());
                self.ready = self.table.batches(&parts)?.into();
            }
        }
    }

    /// The batches as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<RecordBatch>> {
        stream::try_unfold(self, async |mut incoming| Ok(incoming.next().await?.map(|batch| (batch, incoming))))
    }
}

/// What the rank keeps. Its end is said, too: a sender that is just gone has failed.
fn own_parts(job: Job, kept: mpsc::Receiver<Option<RecordBatch>>) -> impl Stream<Item = Result<Part>> {
    stream::try_unfold((job, kept), async |(job, mut kept)| match kept.next().await {
        Some(Some(batch)) => Ok(Some((Part::Kept(batch), (job, kept)))),
        Some(None) => Ok(None),
        None => Err(job.failure().unwrap_or_else(|| Error::Abandoned(job.endpoint().rank()))),
    })
}

struct Peer {
    receiver: Receiver,
    description: Arc<str>,
    columns: usize,
    has_greeted: bool,
}

impl Peer {
    /// What the rank sends in its next round; `None` at its end.
    async fn round(&mut self) -> Result<Option<Piece>> {
        let rank = self.receiver.from();
        if !self.has_greeted {
            let Some(greeting) = self.receiver.next().await.transpose()? else { return Ok(None) };
            check_greeting(&greeting, &self.description, rank)?;
            self.has_greeted = true;
        }
        let Some(sizes) = self.receiver.next().await.transpose()? else { return Ok(None) };
        let sizes = Sizes::read(&sizes, self.columns, rank)?;
        let mut columns = Vec::with_capacity(sizes.columns.len());
        for (_, bytes) in &sizes.columns {
            columns.push(self.column(*bytes).await?);
        }
        Ok(Some(Piece { rank, sizes, columns }))
    }

    async fn column(&mut self, bytes: usize) -> Result<Buffer> {
        let rank = self.receiver.from();
        match self.receiver.next().await.transpose()? {
            Some(column) if column.len() == bytes => Ok(column),
            Some(column) => {
                let what = format!("a column of {} bytes in place of {bytes}", column.len());
                Err(Error::Unexpected { rank, what })
            }
            None => Err(Error::Unexpected { rank, what: "the end of a round before its last column".to_owned() }),
        }
    }
}
