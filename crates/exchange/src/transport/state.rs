//! What a rank knows of its jobs and their streams. Nothing here waits or sends.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use overspill_machine::memory::DevicePlace;

use super::frame::{Frame, FrameKind, JobId, StreamNumber};
use super::message::Arrived;
use crate::error::Error;
use crate::rank::Rank;

/// A stream from here, or to here: the other rank and the number.
pub type Key = (Rank, StreamNumber);

/// What a message takes of a window besides its bytes, so that empty ones are bounded too.
const MESSAGE: i64 = 64;

/// What a message of this many bytes takes of a window.
pub fn cost(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).saturating_add(MESSAGE)
}

/// What is left to do after a change, outside the lock: to wake who waits, and to drop memory, as that of a GPU may take long to free and
/// wakes who has lent it.
#[derive(Debug, Default)]
#[must_use = "who waits is woken by `settle`"]
pub struct Aftermath {
    wakers: Vec<Waker>,
    messages: VecDeque<Arrived>,
    places: VecDeque<DevicePlace>,
}

impl Aftermath {
    fn wake(waker: Option<Waker>) -> Self {
        Self { wakers: waker.into_iter().collect(), ..Self::default() }
    }

    fn and(mut self, other: Self) -> Self {
        self.wakers.extend(other.wakers);
        self.messages.extend(other.messages);
        self.places.extend(other.places);
        self
    }

    pub fn settle(self) {
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

#[derive(Debug, Default)]
pub struct State {
    jobs: HashMap<JobId, JobState>,
    finished: Finished,
    /// Why no job can go on: a rank is lost.
    lost: Option<Error>,
}

/// The jobs that have ended here. Frames of theirs may still arrive.
#[derive(Debug, Default)]
struct Finished {
    /// All jobs with smaller numbers have.
    below: u64,
    /// And these.
    others: BTreeSet<u64>,
}

#[derive(Debug, Default)]
pub struct JobState {
    pub failure: Option<Error>,
    /// Who waits for a failure.
    pub watchers: Vec<Waker>,
    /// Streams stay until the job ends, so that a frame that arrives late finds that they are closed.
    pub outgoing: HashMap<Key, Outgoing>,
    pub incoming: HashMap<Key, Incoming>,
}

/// A stream from here. It may be there before its sender is, if its receiver was faster.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// What is left of the window. The last message may be larger.
    pub credit: i64,
    pub is_closed: bool,
    pub waker: Option<Waker>,
}

/// A stream to here. It may be there before its receiver is, if it has no messages.
#[derive(Debug, Default)]
pub struct Incoming {
    pub messages: VecDeque<Arrived>,
    /// The places for the next messages that a wire may write.
    pub places: VecDeque<DevicePlace>,
    pub is_open: bool,
    pub has_ended: bool,
    pub is_abandoned: bool,
    pub waker: Option<Waker>,
}

impl State {
    /// The job, which may have to be begun; `None` if it has ended.
    pub fn job(&mut self, id: JobId) -> Option<&mut JobState> {
        if self.finished.contains(id) {
            return None;
        }
        let lost = &self.lost;
        Some(self.jobs.entry(id).or_insert_with(|| JobState { failure: lost.clone(), ..JobState::default() }))
    }

    /// The job has ended here. Returns what there was of it, which is dropped outside the lock.
    pub fn finish(&mut self, id: JobId) -> Option<JobState> {
        self.finished.add(id);
        self.jobs.remove(&id)
    }

    /// Why no job can go on.
    pub fn lost(&self) -> Option<Error> {
        self.lost.clone()
    }

    /// How many jobs there are that have not ended.
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// The place that a receiver has for the next message of a stream, if it fits the message.
    pub fn place(
        &mut self,
        from: Rank,
        job: JobId,
        number: StreamNumber,
        is_fit: impl FnOnce(&mut DevicePlace) -> bool,
    ) -> Option<DevicePlace> {
        self.job(job)?.incoming.get_mut(&(from, number))?.places.pop_front_if(is_fit)
    }

    /// A message has arrived. It is dropped if nothing receives it.
    pub fn arrive(&mut self, from: Rank, job: JobId, number: StreamNumber, message: Arrived) -> Aftermath {
        let stream = self.job(job).and_then(|job| job.incoming.get_mut(&(from, number)));
        match stream {
            Some(stream) if stream.is_open => {
                stream.messages.push_back(message);
                Aftermath::wake(stream.waker.take())
            }
            // Messages come only after a receiver has granted a window. It is gone.
            _ => Aftermath { messages: [message].into(), ..Aftermath::default() },
        }
    }

    /// Notes what a frame says.
    pub fn deliver(&mut self, from: Rank, frame: Frame) -> Aftermath {
        if let FrameKind::Data(number, message) = frame.kind {
            return self.arrive(from, frame.job, number, Arrived::Message(message));
        }
        let Some(job) = self.job(frame.job) else { return Aftermath::default() };
        let waker = match frame.kind {
            FrameKind::Data(..) => None,
            FrameKind::End(number) => {
                let stream = job.incoming.entry((from, number)).or_default();
                stream.has_ended = true;
                stream.waker.take()
            }
            FrameKind::Abandoned(number) => {
                let stream = job.incoming.entry((from, number)).or_default();
                stream.is_abandoned = true;
                stream.waker.take()
            }
            FrameKind::Credit(number, bytes) => {
                let stream = job.outgoing.entry((from, number)).or_default();
                stream.credit = stream.credit.saturating_add_unsigned(bytes);
                stream.waker.take()
            }
            FrameKind::Closed(number) => {
                let stream = job.outgoing.entry((from, number)).or_default();
                stream.is_closed = true;
                stream.waker.take()
            }
            FrameKind::Failed(rank, cause) => return job.fail(rank, cause),
        };
        Aftermath::wake(waker)
    }

    /// No job can go on, now or later.
    pub fn lose(&mut self, rank: Rank, cause: &Arc<str>) -> Aftermath {
        self.lost.get_or_insert(Error::Failed { rank, cause: Arc::clone(cause) });
        let failed = self.jobs.values_mut().map(|job| job.fail(rank, Arc::clone(cause)));
        failed.fold(Aftermath::default(), Aftermath::and)
    }
}

impl JobState {
    /// Records that `rank` has failed. Later failures of the job are ignored: its streams report the first.
    pub fn fail(&mut self, rank: Rank, cause: Arc<str>) -> Aftermath {
        self.failure.get_or_insert(Error::Failed { rank, cause });
        let mut wakers: Vec<Waker> = self.outgoing.values_mut().filter_map(|stream| stream.waker.take()).collect();
        wakers.append(&mut self.watchers);
        let incoming = self.incoming.values_mut().map(|stream| {
            let waker = stream.waker.take();
            stream.clear().and(Aftermath::wake(waker))
        });
        incoming.fold(Aftermath { wakers, ..Aftermath::default() }, Aftermath::and)
    }
}

impl Incoming {
    /// Takes out what waits for the receiver.
    pub fn clear(&mut self) -> Aftermath {
        let (messages, places) = (std::mem::take(&mut self.messages), std::mem::take(&mut self.places));
        Aftermath { wakers: vec![], messages, places }
    }
}

impl Finished {
    fn contains(&self, id: JobId) -> bool {
        id.0 < self.below || self.others.contains(&id.0)
    }

    fn add(&mut self, id: JobId) {
        self.others.insert(id.0);
        while self.others.remove(&self.below) {
            self.below += 1;
        }
    }
}
