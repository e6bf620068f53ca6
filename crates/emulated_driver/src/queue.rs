//! The queues of streams, and the events that mark places in them.

use std::collections::VecDeque;
use std::time::Instant;

use cudarc::driver::sys::{CUresult, CUstream};

use crate::context;
use crate::launch::QueuedLaunch;

/// An operation in a stream's queue.
pub enum Operation {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// A copy from pageable memory, which the driver has read when the call returns.
    CopyStaged {
        to: usize,
        data: Vec<u8>,
    },
    Fill {
        to: usize,
        bytes: usize,
        value: u8,
    },
    Launch(QueuedLaunch),
    /// The recording of an event with this number.
    Record {
        event: u64,
        recording: u64,
    },
    Wait {
        event: u64,
        recording: u64,
    },
}

pub struct Stream {
    /// The device that does the stream's work.
    pub device: usize,
    pub queue: VecDeque<Operation>,
}

impl Stream {
    pub fn of(device: usize) -> Self {
        Self { device, queue: VecDeque::new() }
    }
}

/// The internal handle of a stream. The default stream of a context has its device's number.
pub fn name(stream: CUstream) -> Result<u64, CUresult> {
    match stream as usize {
        // Null, the legacy default stream, and the per-thread default stream.
        0..=2 => Ok(context::current()? as u64),
        handle => Ok(handle as u64),
    }
}

#[derive(Default)]
pub struct Event {
    /// The device of the event's context.
    pub device: usize,
    /// The number of recordings, and the stream of the last.
    pub recordings: u64,
    pub stream: u64,
    /// The last recording that its stream has reached, and its time.
    pub reached: u64,
    pub at: Option<Instant>,
}

impl Event {
    pub fn reached(&mut self, recording: u64) {
        self.reached = self.reached.max(recording);
        self.at = Some(Instant::now());
    }

    pub fn is_reached(&self) -> bool {
        self.reached >= self.recordings
    }
}
