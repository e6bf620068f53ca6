//! A unit of a batch that the GPU joins while the CPU goes on.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::device::{DeviceChunk, DeviceRequest, DeviceTable, PairBlock};

/// A unit that a thread of its own joins, as launching and waiting take one. Dropped early, it is waited for: nobody uses the GPU
/// for a join that is gone.
#[derive(Debug)]
pub(crate) struct Flight {
    stage: Arc<Mutex<Stage>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Stage {
    Waiting(DeviceChunk),
    Landed(Landed),
    Empty,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Landed {
    pub(crate) chunk: DeviceChunk,
    /// The pairs of the unit.
    pub(crate) pairs: PairBlock,
    /// Whether there was a unit left.
    pub(crate) was_joined: bool,
    /// Rows of it, and how long the GPU took for them.
    pub(crate) rows: u64,
    pub(crate) time: Duration,
}

impl Flight {
    /// Starts on the next unit of a chunk.
    pub(crate) fn start(table: &Arc<DeviceTable>, request: &DeviceRequest, chunk: DeviceChunk) -> Self {
        let stage = Arc::new(Mutex::new(Stage::Waiting(chunk)));
        let (theirs, table, request) = (Arc::clone(&stage), Arc::clone(table), request.clone());
        let thread = Builder::new().name("overspill-gpu".to_owned()).spawn(move || join(&theirs, &table, &request));
        // Without a thread it is joined when it is waited for.
        Self { stage, thread: thread.ok() }
    }

    /// Whether the GPU is done with it.
    pub(crate) fn has_landed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What came of it, once the GPU is done with it.
    ///
    /// # Panics
    /// If the thread did.
    pub(crate) fn land(mut self, table: &DeviceTable, request: &DeviceRequest) -> Landed {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        join(&self.stage, table, request);
        match std::mem::replace(&mut *self.stage.lock().unwrap_or_else(PoisonError::into_inner), Stage::Empty) {
            Stage::Landed(landed) => landed,
            Stage::Waiting(_) | Stage::Empty => unreachable!("a unit that was waited for has landed"),
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Its panic, if it had one, is nobody's any more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Joins what waits.
fn join(stage: &Mutex<Stage>, table: &DeviceTable, request: &DeviceRequest) {
    let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    *stage = match std::mem::replace(&mut *stage, Stage::Empty) {
        Stage::Waiting(mut chunk) => {
            let before = chunk.progress();
            let mut pairs = PairBlock::default();
            let was_joined = chunk.next(table, request, &mut pairs);
            let now = chunk.progress();
            Stage::Landed(Landed { chunk, pairs, was_joined, rows: now.0 - before.0, time: now.1 - before.1 })
        }
        other => other,
    };
}
