//! A unit of a batch that the GPU joins while the CPU continues.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::device::{DeviceRequest, PairBlock};
use crate::table::{DeviceChunk, DeviceTable};

/// A unit joined by its own thread, because launching and waiting block one. Dropping it early waits for the thread, so that
/// the GPU does no work for a join that no longer exists.
#[derive(Debug)]
pub(super) struct Flight {
    /// The chunk until it is taken to be joined.
    waiting: Arc<Mutex<Option<DeviceChunk>>>,
    thread: Option<JoinHandle<Option<Landed>>>,
}

/// The result of joining a unit.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) chunk: DeviceChunk,
    /// The pairs of the unit.
    pub(super) pairs: PairBlock,
    /// Whether there was a unit left to join.
    pub(super) was_joined: bool,
    /// Number of rows in the unit, and the time the GPU took for them.
    pub(super) rows: u64,
    pub(super) time: Duration,
}

impl Flight {
    /// Starts on the next unit of a chunk.
    pub(super) fn start(table: &Arc<DeviceTable>, request: &DeviceRequest, chunk: DeviceChunk) -> Self {
        let waiting = Arc::new(Mutex::new(Some(chunk)));
        let (theirs, table, request) = (Arc::clone(&waiting), Arc::clone(table), request.clone());
        let thread = Builder::new().name("overspill-gpu".to_owned()).spawn(move || join(&theirs, &table, &request));
        // If no thread could be started, `land` joins the unit.
        Self { waiting, thread: thread.ok() }
    }

    /// Whether the GPU is done with the unit.
    pub(super) fn has_landed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the GPU is done with the unit, and returns the result.
    ///
    /// # Panics
    /// If the thread panicked.
    pub(super) fn land(mut self, table: &DeviceTable, request: &DeviceRequest) -> Landed {
        let landed = match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => join(&self.waiting, table, request),
        };
        landed.unwrap_or_else(|| unreachable!("a unit is joined once"))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Ignore a panic of the thread: its result is no longer needed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Joins the unit of the chunk that waits; `None` if none does.
fn join(waiting: &Mutex<Option<DeviceChunk>>, table: &DeviceTable, request: &DeviceRequest) -> Option<Landed> {
    let mut chunk = waiting.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    let before = chunk.progress();
    let mut pairs = PairBlock::default();
    let was_joined = chunk.next(table, request, &mut pairs);
    let now = chunk.progress();
    Some(Landed { chunk, pairs, was_joined, rows: now.0 - before.0, time: now.1 - before.1 })
}
