//! What a rank receives.

use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
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
    metrics: ExchangeMetrics,
}

impl Incoming {
    pub(super) fn new(
        job: &Job,
        exchange: &AllToAll,
        kept: mpsc::Receiver<RecordBatch>,
        metrics: ExchangeMetrics,
    ) -> Self {
        let here = job.endpoint().rank();
        let window = exchange.piece_bytes.saturating_mul(WINDOW_ROUNDS);
        let peers = exchange.from.iter().filter(|rank| **rank != here).map(|rank| {
            let receiver = Receiver::open(job, *rank, exchange.number, window);
            let peer = Peer { receiver, schema: exchange.schema.clone(), has_greeted: false };
            let pieces = stream::try_unfold(peer, async |mut peer| Ok(peer.round().await?.map(|piece| (piece, peer))));
            pieces.map_ok(Part::Received).boxed()
        });
        let own = exchange.from.contains(&here).then(|| kept.map(|kept| Ok(Part::Kept(kept))).boxed());
        let parts = stream::select_all(peers.chain(own));
        Self { parts: parts.ready_chunks(exchange.from.len().max(1)), table: Table::new(&exchange.schema), metrics }
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
            let waiting = Instant::now();
            let parts = self.parts.next().await;
            self.metrics.waited_to_receive(waiting.elapsed());
            let Some(parts) = parts else { return Ok(None) };
            let mut parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
            parts.retain(|part| part.rows() > 0);
            if !parts.is_empty() {
                let received = parts.iter().filter(|part| matches!(part, Part::Received(_))).map(Part::rows);
                self.metrics.received(received.sum());
                return self.table.put_together(parts).map(Some);
            }
        }
    }

    /// The batches as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<RecordBatch>> {
        stream::try_unfold(self, async |mut incoming| Ok(incoming.next().await?.map(|batch| (batch, incoming))))
    }
}

struct Peer {
    receiver: Receiver,
    schema: SchemaRef,
    has_greeted: bool,
}

impl Peer {
    /// What the rank sends in its next round; `None` at its end.
    async fn round(&mut self) -> Result<Option<Piece>> {
        let rank = self.receiver.from();
        if !self.has_greeted {
            let Some(greeting) = self.receiver.next().await.transpose()? else { return Ok(None) };
            check_greeting(&greeting, &self.schema, rank)?;
            self.has_greeted = true;
        }
        let Some(sizes) = self.receiver.next().await.transpose()? else { return Ok(None) };
        let sizes = Sizes::read(&sizes, self.schema.fields().len(), rank)?;
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
