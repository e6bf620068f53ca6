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

/// What the scheduler takes from a stream that nobody reads.
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
}

impl Stoppable for Rows {
    fn stop(&self) {
        // Who polls it now sees that it is stopped.
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
        let rows = Arc::clone(&self.rows);
        let mut place = rows.0.lock();
        if let Poll::Ready(stopped) = self.stopped.poll_unpin(context) {
            self.has_ended = true;
            let taken = place.take();
            // Its end may be that of the query, of which the scheduler must not wait for this lock.
            drop(place);
            drop(taken);
            return Poll::Ready(Some(Err(stopped.into())));
        }
        let Some(running) = place.as_mut() else {
            // It was taken, and the signal comes.
            return Poll::Pending;
        };
        let Poll::Ready(batch) = running.rows.poll_next_unpin(context) else { return Poll::Pending };
        if !matches!(batch, Some(Ok(_))) {
            self.has_ended = true;
            let ended = place.take();
            drop(place);
            if let Some(Running { rows, ticket, admission }) = ended {
                drop(rows);
                if batch.is_none() {
                    admission.ended(&ticket);
                }
            }
        }
        Poll::Ready(batch)
    }
}
