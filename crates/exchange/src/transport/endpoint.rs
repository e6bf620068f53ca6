//! A rank's part in all jobs.

use std::sync::{Arc, Mutex, MutexGuard};

use super::frame::{Frame, FrameKind, JobId};
use super::state::State;
use crate::error::Error;
use crate::rank::Rank;
use crate::topology::Topology;

/// Carries frames from one rank to the others.
pub trait Wire: Send + Sync + std::fmt::Debug {
    /// Takes a frame to carry. It may wait for room in queues, but never for the receiver. Frames for the same rank arrive in the order in
    /// which they were taken. If one cannot be carried, [`Endpoint::lose`] says so.
    fn send(&self, to: Rank, frame: Frame);
}

/// A rank's part in all jobs. See [`transport`](crate::transport).
#[derive(Debug)]
pub struct Endpoint {
    rank: Rank,
    topology: Arc<Topology>,
    wire: Box<dyn Wire>,
    state: Mutex<State>,
}

impl Endpoint {
    /// The endpoint of a rank, whose frames this wire carries.
    pub fn new(rank: Rank, topology: Arc<Topology>, wire: Box<dyn Wire>) -> Self {
        Self { rank, topology, wire, state: Mutex::default() }
    }

    /// The rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// All ranks.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// How many jobs have not ended here.
    pub fn jobs(&self) -> usize {
        self.state().jobs()
    }

    /// A wire brings a frame from another rank, or from this one.
    pub fn deliver(&self, from: Rank, frame: Frame) {
        let wakers = self.state().deliver(from, frame);
        wakers.into_iter().for_each(|waker| waker.wake());
    }

    /// A wire says that a rank is gone. All jobs fail here, now and later.
    pub fn lose(&self, rank: Rank, cause: &str) {
        let wakers = self.state().lose(rank, &cause.into());
        wakers.into_iter().for_each(|waker| waker.wake());
    }

    /// Why no job can go on; `None` if jobs can.
    pub fn lost(&self) -> Option<Error> {
        self.state().lost()
    }

    pub(super) fn send(&self, to: Rank, job: JobId, kind: FrameKind) {
        self.wire.send(to, Frame { job, kind });
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way through a change.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
