//! The receiving end of a stream whose messages have places in GPU memory.

use std::collections::VecDeque;
use std::future::poll_fn;

use overspill_machine::memory::DevicePlace;

use super::frame::StreamNumber;
use super::job::Job;
use super::message::{Arrival, Arrived};
use super::stream::Receiver;
use crate::error::{Error, Result};
use crate::rank::Rank;

/// Bounds the messages that wait: the next is sent when one is taken, which may be larger than this.
const WINDOW: usize = 1;

/// Receives messages that each have a place in GPU memory. Where the wire can, it writes them there itself. Dropped before the end of the stream,
/// it cancels it; a message that the wire is writing keeps its place allocated until it is there.
#[derive(Debug)]
pub struct PlacedReceiver {
    receiver: Receiver,
    /// Those that the wire must not write.
    places: VecDeque<DevicePlace>,
}

impl PlacedReceiver {
    /// Begins to receive one message for each place, in their order. Unless `may_place`, all arrive in CPU memory, or in that of a GPU of this
    /// process.
    pub fn open(job: &Job, from: Rank, number: StreamNumber, places: Vec<DevicePlace>, may_place: bool) -> Self {
        let places = VecDeque::from(places);
        let (offered, kept) = if may_place { (places, VecDeque::new()) } else { (VecDeque::new(), places) };
        Self { receiver: Receiver::open_with(job, from, number, WINDOW, offered), places: kept }
    }

    /// The rank that sends.
    pub fn from(&self) -> Rank {
        self.receiver.from()
    }

    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// If a rank has failed, or there is no place for the message.
    pub async fn next(&mut self) -> Result<Option<Arrival>> {
        match poll_fn(|context| self.receiver.poll_arrived(context)).await.transpose()? {
            None => Ok(None),
            Some(Arrived::Placed(bytes)) => Ok(Some(Arrival::Placed(bytes))),
            Some(Arrived::Message(message)) => {
                let place =
                    self.places.pop_front().or_else(|| self.receiver.with(|_, stream| stream.places.pop_front()));
                let place = place.ok_or_else(|| {
                    let what = "a message for which there is no place".to_owned();
                    Error::Unexpected { rank: self.from(), what }
                })?;
                Ok(Some(Arrival::Message(message, place)))
            }
        }
    }
}
