//! The rows of an admitted query.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};

use super::exec::Admission;
use crate::scheduler::{Stopped, Ticket};

/// The rows of a partition, until the query is stopped.
pub(super) struct AdmittedStream {
    /// `None` after the end.
    running: Option<Running>,
}

struct Running {
    /// Dropped before the ticket, so that what the query holds is free when the ticket says so.
    rows: SendableRecordBatchStream,
    stopped: BoxFuture<'static, Stopped>,
    ticket: Arc<Ticket>,
    admission: Arc<Admission>,
}

impl AdmittedStream {
    pub fn new(rows: SendableRecordBatchStream, ticket: Arc<Ticket>, admission: Arc<Admission>) -> Self {
        let stopped = Arc::clone(&ticket).stopped().boxed();
        Self { running: Some(Running { rows, stopped, ticket, admission }) }
    }
}

impl Stream for AdmittedStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(running) = &mut self.running else { return Poll::Ready(None) };
        if let Poll::Ready(stopped) = running.stopped.poll_unpin(context) {
            self.running = None;
            return Poll::Ready(Some(Err(stopped.into())));
        }
        let batch = ready!(running.rows.poll_next_unpin(context));
        match &batch {
            Some(Ok(_)) => {}
            Some(Err(_)) => self.running = None,
            None => {
                running.admission.ended(&running.ticket);
                self.running = None;
            }
        }
        Poll::Ready(batch)
    }
}
