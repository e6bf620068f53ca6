//! What a rank knows of its jobs and their streams. Nothing here waits or sends.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use arrow::buffer::Buffer;

use super::frame::{Frame, FrameKind, JobId, StreamNumber};
use crate::error::Error;
use crate::rank::Rank;

/// A stream from here, or to here: the other rank and the number.
pub type Key = (Rank, StreamNumber);

/// What a message takes of a window besides its bytes, so that empty ones are bounded too.
const MESSAGE: i64 = 64;

/// What a message takes of a window.
pub fn cost(message: &Buffer) -> i64 {
    message.len() as i64 + MESSAGE
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
    pub messages: VecDeque<Buffer>,
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

    /// The job has ended here.
    pub fn finish(&mut self, id: JobId) {
        self.jobs.remove(&id);
        self.finished.add(id);
    }

    /// Why no job can go on.
    pub fn lost(&self) -> Option<Error> {
        self.lost.clone()
    }

    /// How many jobs there are that have not ended.
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Notes what a frame says. Returns who waits for it.
    pub fn deliver(&mut self, from: Rank, frame: Frame) -> Vec<Waker> {
        let Some(job) = self.job(frame.job) else { return vec![] };
        let waker = match frame.kind {
            FrameKind::Data(number, message) => match job.incoming.get_mut(&(from, number)) {
                Some(stream) if stream.is_open => {
                    stream.messages.push_back(message);
                    stream.waker.take()
                }
                // Messages come only after a receiver has granted a window. It is gone.
                _ => None,
            },
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
        waker.into_iter().collect()
    }

    /// No job can go on, now or later. Returns who waits.
    pub fn lose(&mut self, rank: Rank, cause: &Arc<str>) -> Vec<Waker> {
        self.lost.get_or_insert(Error::Failed { rank, cause: Arc::clone(cause) });
        self.jobs.values_mut().flat_map(|job| job.fail(rank, Arc::clone(cause))).collect()
    }
}

impl JobState {
    /// A rank has failed. The first failure is the one that is told. Returns who waits.
    pub fn fail(&mut self, rank: Rank, cause: Arc<str>) -> Vec<Waker> {
        self.failure.get_or_insert(Error::Failed { rank, cause });
        let outgoing = self.outgoing.values_mut().filter_map(|stream| stream.waker.take());
        let incoming = self.incoming.values_mut().filter_map(|stream| {
            stream.messages.clear();
            stream.waker.take()
        });
        outgoing.chain(incoming).chain(self.watchers.drain(..)).collect()
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
