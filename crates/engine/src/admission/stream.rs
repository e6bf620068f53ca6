//! The rows of an admitted query.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use parking_lot::Mutex;

use super::query::Admission;
use crate::scheduler::{Stoppable, Stopped, Ticket};

/// The rows of a partition, until the query is stopped.
pub(super) struct AdmittedStream {
    rows: Arc<Rows>,
    stopped: BoxFuture<'static, Stopped>,
    has_ended: bool,
}

/// The input of a stream. The scheduler takes it when it stops the query.
struct Rows(Mutex<Option<Running>>);

struct Running {
    /// Dropped before the ticket, so that what the query holds is free when the ticket says so.
    rows: SendableRecordBatchStream,
    ticket: Arc<Ticket>,
    admission: Arc<Admission>,
}

impl AdmittedStream {
    pub fn new(rows: SendableRecordBatchStream, ticket: Arc<Ticket>, admission: Arc<Admission>) -> Self {
        let stopped = ticket.stopped().boxed();
        let rows = Arc::new(Rows(Mutex::new(Some(Running { rows, ticket: Arc::clone(&ticket), admission }))));
        ticket.stop_too(Arc::downgrade(&rows) as _);
        Self { rows, stopped, has_ended: false }
    }

    /// Ends the stream. The caller drops the input without a lock, as its ticket takes that of the scheduler.
    fn end(&mut self) -> Option<Running> {
        self.has_ended = true;
        self.rows.0.lock().take()
    }
}

impl Stoppable for Rows {
    fn stop(&self) {
        // If a poll holds the lock, that poll looks for the signal when it is done.
        let taken = self.0.try_lock().and_then(|mut running| running.take());
        drop(taken);
    }
}

impl Stream for AdmittedStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(stopped) = self.stopped.poll_unpin(context) {
            drop(self.end());
            return Poll::Ready(Some(Err(stopped.into())));
        }
        let polled = match self.rows.0.lock().as_mut() {
            Some(running) => running.rows.poll_next_unpin(context),
            None => Poll::Pending,
        };
        // The scheduler may have stopped the query during the poll. Then it could not take the input.
        if let Poll::Ready(stopped) = self.stopped.poll_unpin(context) {
            drop(self.end());
            return Poll::Ready(Some(Err(stopped.into())));
        }
        let Poll::Ready(batch) = polled else { return Poll::Pending };
        if !matches!(batch, Some(Ok(_)))
            && let Some(Running { rows, ticket, admission }) = self.end()
        {
            drop(rows);
            if batch.is_none() {
                admission.ended(&ticket);
            }
        }
        Poll::Ready(batch)
    }
}
