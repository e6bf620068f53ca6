//! A rank's part in all jobs.

use std::sync::{Arc, Mutex, MutexGuard};

use overspill_machine::driver::Device;
use overspill_machine::memory::DevicePlace;

use super::frame::{Frame, FrameKind, JobId, StreamNumber};
use super::message::Arrived;
use super::state::State;
use crate::error::Error;
use crate::rank::Rank;
use crate::topology::Topology;

/// Carries frames from one rank to the others.
pub trait Wire: Send + Sync + std::fmt::Debug {
    /// Takes a frame to carry. It may wait for room in queues, but never for the receiver. Frames for the same rank arrive in the order in
    /// which they were taken. If one cannot be carried, [`Endpoint::lose`] says so.
    fn send(&self, to: Rank, frame: Frame);

    /// Whether it carries messages in the memory of this GPU. If not, they must be copied to CPU memory before they are sent.
    fn takes_memory_of(&self, device: &Device) -> bool;
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
        let after = self.state().deliver(from, frame);
        after.settle();
    }

    /// A wire asks where to write a message of this many bytes whose head has come: the place in GPU memory that its receiver has for it.
    /// `None` if there is none, or the wire does not take that GPU's memory. The wire drops the place once it is written, and then calls [`Endpoint::deliver_placed`].
    pub fn place(&self, from: Rank, job: JobId, number: StreamNumber, bytes: u64) -> Option<DevicePlace> {
        let is_fit = |place: &mut DevicePlace| place.bytes() == bytes && self.takes_memory_of(place.device());
        self.state().place(from, job, number, is_fit)
    }

    /// A wire has written a message of this many bytes to its place.
    pub fn deliver_placed(&self, from: Rank, job: JobId, number: StreamNumber, bytes: u64) {
        let after = self.state().arrive(from, job, number, Arrived::Placed(bytes));
        after.settle();
    }

    /// Whether messages may be in the memory of this GPU.
    pub fn takes_memory_of(&self, device: &Device) -> bool {
        self.wire.takes_memory_of(device)
    }

    /// A wire says that a rank is gone. All jobs fail here, now and later.
    pub fn lose(&self, rank: Rank, cause: &str) {
        let after = self.state().lose(rank, &cause.into());
        after.settle();
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
