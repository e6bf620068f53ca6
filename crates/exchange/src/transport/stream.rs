//! The two ends of a stream of messages.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use arrow::buffer::Buffer;
use futures::Stream;
use overspill_machine::memory::DevicePlace;

use super::frame::{FrameKind, StreamNumber};
use super::job::Job;
use super::message::{Arrived, Message};
use super::state::{Incoming, Outgoing, cost};
use crate::error::{Error, Result};
use crate::rank::Rank;

/// Sends messages to a rank. Dropped before [`end`](Sender::end), it makes the receiver fail.
#[derive(Debug)]
pub struct Sender {
    job: Job,
    to: Rank,
    number: StreamNumber,
    has_ended: bool,
}

impl Sender {
    /// Begins to send to a rank, which opens a receiver with the same number. A stream is opened once.
    pub fn open(job: &Job, to: Rank, number: StreamNumber) -> Self {
        Self { job: job.clone(), to, number, has_ended: false }
    }

    /// Sends a message as soon as the receiver's window is open. Returns whether the receiver wants more; if not, this message and all
    /// that follow are dropped.
    ///
    /// # Errors
    /// If a rank has failed.
    pub async fn send(&mut self, message: impl Into<Message>) -> Result<bool> {
        let message = message.into();
        let is_wanted = poll_fn(|context| self.poll_window(context, cost(message.bytes()))).await?;
        if is_wanted {
            self.job.send(self.to, FrameKind::Data(self.number, message));
        }
        Ok(is_wanted)
    }

    /// Takes the cost of a message from the window; `false` if the receiver wants none.
    fn poll_window(&self, context: &Context<'_>, cost: i64) -> Poll<Result<bool>> {
        self.with(|failure, stream| {
            if let Some(failure) = failure {
                return Poll::Ready(Err(failure.clone()));
            }
            if stream.is_closed {
                return Poll::Ready(Ok(false));
            }
            if stream.credit > 0 {
                stream.credit -= cost;
                return Poll::Ready(Ok(true));
            }
            stream.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }

    /// Says that there are no further messages.
    pub fn end(mut self) {
        self.has_ended = true;
        self.job.send(self.to, FrameKind::End(self.number));
    }

    fn with<T>(&self, act: impl FnOnce(Option<&Error>, &mut Outgoing) -> T) -> T {
        let mut state = self.job.endpoint().state();
        let Some(job) = state.job(self.job.id()) else { unreachable!("a job does not end before its streams") };
        act(job.failure.as_ref(), job.outgoing.entry((self.to, self.number)).or_default())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.has_ended && self.with(|failure, stream| failure.is_none() && !stream.is_closed) {
            self.job.send(self.to, FrameKind::Abandoned(self.number));
        }
    }
}

/// The messages from a rank, in their order. Dropped before their end, it cancels the stream.
#[derive(Debug)]
pub struct Receiver {
    job: Job,
    from: Rank,
    number: StreamNumber,
    window: usize,
    /// What was received of the window and is not granted again.
    taken: i64,
    has_ended: bool,
}

impl Receiver {
    /// Begins to receive from a rank. `window` bounds the bytes of messages that wait here; the last message may go beyond.
    pub fn open(job: &Job, from: Rank, number: StreamNumber, window: usize) -> Self {
        Self::open_with(job, from, number, window, VecDeque::new())
    }

    /// As [`Receiver::open`], with places that the wire may write messages to.
    pub(super) fn open_with(
        job: &Job,
        from: Rank,
        number: StreamNumber,
        window: usize,
        places: VecDeque<DevicePlace>,
    ) -> Self {
        let job = job.clone();
        let receiver = Self { job, from, number, window: window.max(1), taken: 0, has_ended: false };
        receiver.with(|_, stream| {
            stream.is_open = true;
            stream.places = places;
        });
        receiver.grant(receiver.window as u64);
        receiver
    }

    /// The rank that sends.
    pub fn from(&self) -> Rank {
        self.from
    }

    /// The next message as it has arrived.
    pub(super) fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Arrived>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let from = self.from;
        let polled = self.with(|failure, stream| {
            if let Some(failure) = failure {
                return Poll::Ready(Some(Err(failure.clone())));
            }
            if let Some(message) = stream.messages.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            if stream.has_ended {
                return Poll::Ready(None);
            }
            if stream.is_abandoned {
                return Poll::Ready(Some(Err(Error::Abandoned(from))));
            }
            stream.waker = Some(context.waker().clone());
            Poll::Pending
        });
        match &polled {
            Poll::Ready(Some(Ok(message))) => {
                self.taken += cost(message.bytes());
                // Half a window at a time, so that there are not as many grants as messages.
                if self.taken >= (self.window as i64).div_euclid(2) {
                    self.grant(self.taken.unsigned_abs());
                    self.taken = 0;
                }
            }
            Poll::Ready(_) => self.has_ended = true,
            Poll::Pending => (),
        }
        polled
    }

    fn grant(&self, bytes: u64) {
        self.job.send(self.from, FrameKind::Credit(self.number, bytes));
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(Option<&Error>, &mut Incoming) -> T) -> T {
        let mut state = self.job.endpoint().state();
        let Some(job) = state.job(self.job.id()) else { unreachable!("a job does not end before its streams") };
        act(job.failure.as_ref(), job.incoming.entry((self.from, self.number)).or_default())
    }
}

impl Stream for Receiver {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_arrived(context)
            .map_ok(|arrived| match arrived {
                Arrived::Message(Message::Host(bytes)) => Ok(bytes),
                Arrived::Message(Message::Device(_)) | Arrived::Placed(_) => {
                    Err(Error::Unexpected { rank: self.from, what: "GPU memory in place of bytes".to_owned() })
                }
            })
            .map(|message| message.map(Result::flatten))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let (is_open, after) = self.with(|failure, stream| {
            stream.is_open = false;
            (failure.is_none() && !stream.has_ended && !stream.is_abandoned, stream.clear())
        });
        after.settle();
        if is_open {
            self.job.send(self.from, FrameKind::Closed(self.number));
        }
    }
}
