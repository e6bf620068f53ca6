//! What a rank sends.

use std::time::Instant;

use arrow::array::RecordBatch;
use futures::SinkExt;
use futures::channel::mpsc;
use futures::future::try_join_all;

use super::AllToAll;
use super::column::{Column, ColumnWriters};
use super::metrics::ExchangeMetrics;
use super::sizes::{Sizes, greeting};
use crate::error::{Error, Result};
use crate::transport::{Job, Sender};

/// The rows that a rank sends. Dropped before [`end`](Self::end), it makes all receivers fail.
#[derive(Debug)]
pub struct Outgoing {
    exchange: AllToAll,
    /// For each rank; none for the rank itself.
    peers: Vec<Option<Peer>>,
    own: mpsc::Sender<Option<RecordBatch>>,
    columns: ColumnWriters,
    has_greeted: bool,
    metrics: ExchangeMetrics,
}

#[derive(Debug)]
struct Peer {
    sender: Sender,
    is_neighbour: bool,
    /// Whether it wants more.
    is_open: bool,
}

impl Outgoing {
    pub(super) fn new(
        job: &Job,
        exchange: AllToAll,
        own: mpsc::Sender<Option<RecordBatch>>,
        metrics: ExchangeMetrics,
    ) -> Self {
        let (here, topology) = (job.endpoint().rank(), job.endpoint().topology());
        let peer = |rank: &usize| {
            (*rank != here).then(|| Peer {
                sender: Sender::open(job, *rank, exchange.number),
                is_neighbour: topology.node_of(*rank) == topology.node_of(here),
                is_open: true,
            })
        };
        let peers = exchange.to.iter().map(peer).collect();
        let columns = ColumnWriters::new(&exchange.schema);
        Self { exchange, peers, own, columns, has_greeted: false, metrics }
    }

    /// Whether no rank wants more rows.
    pub fn is_unwanted(&self) -> bool {
        let peers = self.peers.iter().flatten().all(|peer| !peer.is_open);
        peers && (self.own.is_closed() || self.peers.iter().all(Option::is_some))
    }

    /// Sends a round: rows for each rank. Waits until all ranks have room for them.
    ///
    /// # Errors
    /// If a rank has failed, or a column cannot be written.
    pub async fn send(&mut self, pieces: Vec<RecordBatch>) -> Result<()> {
        debug_assert_eq!(pieces.len(), self.peers.len());
        let writing = Instant::now();
        let columns = pieces.iter().zip(&self.peers).map(|(piece, peer)| match peer {
            Some(peer) if peer.is_open => self.columns.write(piece, self.exchange.is_compressed && !peer.is_neighbour),
            _ => Ok(vec![]),
        });
        let columns = columns.collect::<Result<_>>()?;
        self.metrics.compressed(writing.elapsed());
        self.deliver(pieces, columns).await
    }

    /// Sends a round: the same rows for all ranks. Columns are written once, and not once a rank.
    ///
    /// # Errors
    /// As [`send`](Self::send) has.
    pub async fn broadcast(&mut self, rows: &RecordBatch) -> Result<()> {
        let writing = Instant::now();
        let mut written: [Option<Vec<Column>>; 2] = [None, None];
        let columns = self.peers.iter().map(|peer| match peer {
            Some(peer) if peer.is_open => {
                let is_compressed = self.exchange.is_compressed && !peer.is_neighbour;
                let columns = &mut written[usize::from(is_compressed)];
                if columns.is_none() {
                    *columns = Some(self.columns.write(rows, is_compressed)?);
                }
                Ok(columns.clone().unwrap_or_default())
            }
            _ => Ok(vec![]),
        });
        let columns = columns.collect::<Result<_>>()?;
        self.metrics.compressed(writing.elapsed());
        self.deliver(vec![rows.clone(); self.peers.len()], columns).await
    }

    /// Sends rows to each rank, whose columns are written.
    async fn deliver(&mut self, pieces: Vec<RecordBatch>, columns: Vec<Vec<Column>>) -> Result<()> {
        self.metrics.round();
        self.greet().await?;
        for ((piece, peer), columns) in pieces.iter().zip(&self.peers).zip(&columns) {
            let Some(peer) = peer.as_ref().filter(|_| !columns.is_empty()) else { continue };
            for (array, (_, message)) in piece.columns().iter().zip(columns) {
                self.metrics.column(peer.is_neighbour, array.get_buffer_memory_size(), message.len());
            }
            self.metrics.sent(piece.num_rows());
        }
        let waiting = Instant::now();
        let sending = self.peers.iter_mut().zip(&pieces).zip(columns).map(async |((peer, piece), columns)| {
            let Some(peer) = peer.as_mut().filter(|peer| peer.is_open) else { return Ok(()) };
            let described = columns.iter().map(|(form, message)| (*form, message.len())).collect();
            let sizes = Sizes { rows: piece.num_rows(), columns: described };
            for message in std::iter::once(sizes.message()).chain(columns.into_iter().map(|(_, message)| message)) {
                peer.is_open = peer.sender.send(message).await?;
                if !peer.is_open {
                    break;
                }
            }
            Ok::<_, Error>(())
        });
        try_join_all(sending).await?;
        for (piece, peer) in pieces.into_iter().zip(&self.peers) {
            if peer.is_none() {
                self.metrics.kept(piece.num_rows());
                // The channel is closed once the reader on this rank is gone. The other ranks still get their rows.
                let _ = self.own.send(Some(piece)).await;
            }
        }
        self.metrics.waited_to_send(waiting.elapsed());
        Ok(())
    }

    /// Tells each rank what rows are, once.
    async fn greet(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_greeted, true) {
            return Ok(());
        }
        let greeting = greeting(&self.exchange.description);
        try_join_all(self.peers.iter_mut().flatten().map(async |peer| {
            peer.is_open = peer.sender.send(greeting.clone()).await?;
            Ok::<_, Error>(())
        }))
        .await?;
        Ok(())
    }

    /// Says that there are no further rows.
    pub async fn end(mut self) {
        self.peers.into_iter().flatten().for_each(|peer| peer.sender.end());
        // The channel is closed if the reader on this rank is gone. Then nobody waits for the end.
        let _ = self.own.send(None).await;
    }
}
