//! Streams and events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUevent_flags, CUstream};
use cudarc::driver::{CudaEvent, CudaStream};
use tracing::debug_span;

use crate::driver::Device;
use crate::driver::timeline::Timeline;
use crate::{Error, Result};

/// A queue of work that a device executes in order. Streams are independent of each other except through events.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    stream: Arc<CudaStream>,
    timeline: Timeline,
    progress: Arc<Progress>,
}

/// The number of operations of a stream that were queued, and of those that are known to be done.
#[derive(Debug, Default)]
struct Progress {
    queued: AtomicU64,
    done: AtomicU64,
}

/// A point in a stream that can be compared with its progress, also after the stream is gone.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    progress: Arc<Progress>,
    number: u64,
}

impl Ticket {
    /// Whether a wait has shown that the stream has reached the point.
    pub fn is_done(&self) -> bool {
        self.progress.done.load(Ordering::Acquire) >= self.number
    }
}

impl Stream {
    /// Creates a stream that waits for no other stream.
    ///
    /// # Errors
    /// If the device is lost or out of memory.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let stream = device.context().new_stream().map_err(device.failed("making a stream"))?;
        Ok(Self { device: Arc::clone(device), stream, timeline: Timeline::default(), progress: Arc::default() })
    }

    /// The device that executes the work.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Waits until the stream has finished all its work.
    ///
    /// # Errors
    /// If any of the work failed.
    pub fn synchronize(&self) -> Result<()> {
        let _waiting = debug_span!("wait for the GPU").entered();
        let queued = self.progress.queued.load(Ordering::Acquire);
        self.stream.synchronize().map_err(|error| {
            self.device.keep_freed_memory(0);
            self.timeline.forget();
            self.device.failed_twice(self.device.failed("waiting for a stream")(error))
        })?;
        self.progress.done.fetch_max(queued, Ordering::AcqRel);
        self.timeline.tell(&self.stream, self.group());
        Ok(())
    }

    /// The point after all work queued so far.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { progress: Arc::clone(&self.progress), number: self.progress.queued.load(Ordering::Acquire) }
    }

    /// Ends work that has been queued with the given outcome by `read`, which waits for the stream: a second wait would cost as much
    /// as the first. If queueing has failed, waits for what was queued before that.
    ///
    /// # Errors
    /// If queueing, the work, or `read` fails.
    pub fn finish<T>(&self, queued: Result<()>, read: impl FnOnce() -> Result<T>) -> Result<T> {
        match queued {
            Ok(()) => read(),
            Err(error) => self.synchronize().and(Err(error)),
        }
    }

    /// Queues work on the stream and records its start and end for timelines.
    pub(crate) fn ask<T>(&self, name: &str, bytes: Option<u64>, ask: impl FnOnce(CUstream) -> Result<T>) -> Result<T> {
        let begun = self.timeline.begin(&self.stream, name, bytes);
        let asked = ask(self.stream.cu_stream())?;
        // Counted once it is queued: a wait that begins before that does not cover it.
        self.progress.queued.fetch_add(1, Ordering::AcqRel);
        if let Some(begun) = begun {
            self.timeline.end(&self.stream, self.group(), begun);
        }
        Ok(asked)
    }

    fn group(&self) -> impl std::fmt::Display + use<> {
        let device = self.device.ordinal();
        std::fmt::from_fn(move |f| write!(f, "GPU {device}"))
    }

    /// Records an event after all work queued so far.
    ///
    /// # Errors
    /// If the device is lost or out of memory.
    pub fn record(&self) -> Result<Event> {
        let event = self
            .stream
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .map_err(self.device.failed("recording an event"))?;
        Ok(Event { event, device: self.device.ordinal() })
    }

    /// Runs `work`, which queues work on this stream, and waits for the stream, also if `work` fails. Returns the result
    /// of `work` and the seconds that the device took.
    ///
    /// # Errors
    /// If `work` fails, or the device is lost or out of memory.
    pub fn timed<T, E: From<Error>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<(T, f64), E> {
        let before = self.record()?;
        let done = work();
        let after = self.record();
        self.synchronize()?;
        Ok((done?, before.seconds_until(&after?)?))
    }

    /// Makes all work queued on this stream from now on wait for the event.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.stream.wait(&event.event).map_err(self.device.failed("waiting for an event"))
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    event: CudaEvent,
    device: usize,
}

impl Event {
    /// Waits until the stream has reached this point.
    ///
    /// # Errors
    /// If any work before this point failed.
    pub fn synchronize(&self) -> Result<()> {
        self.event.synchronize().map_err(|error| Error::driver("waiting for an event", self.device, error))
    }

    /// Seconds on the device from this point to a later one. Both must have been reached.
    ///
    /// # Errors
    /// If one of them has not been reached.
    pub fn seconds_until(&self, later: &Event) -> Result<f64> {
        let milliseconds =
            self.event.elapsed_ms(&later.event).map_err(|error| Error::driver("timing", self.device, error))?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}
