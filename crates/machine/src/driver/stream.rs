//! Streams and events.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// Points of other streams that work of this one waits for.
    awaited: Mutex<Vec<Ticket>>,
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

    fn set_done(&self) {
        self.progress.done.fetch_max(self.number, Ordering::AcqRel);
    }
}

impl Stream {
    /// Creates a stream that waits for no other stream.
    ///
    /// # Errors
    /// If the device is lost or out of memory.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let stream = device.context().new_stream().map_err(device.failed("making a stream"))?;
        Ok(Self {
            device: Arc::clone(device),
            stream,
            timeline: Timeline::default(),
            progress: Arc::default(),
            awaited: Mutex::default(),
        })
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
        let queued = self.ticket();
        let awaited = std::mem::take(&mut *self.awaited());
        self.stream.synchronize().map_err(|error| {
            self.device.keep_freed_memory(0);
            self.timeline.forget();
            self.device.failed_twice(self.device.failed("waiting for a stream")(error))
        })?;
        queued.set_done();
        awaited.iter().for_each(Ticket::set_done);
        self.timeline.tell(&self.stream, self.group());
        Ok(())
    }

    fn awaited(&self) -> std::sync::MutexGuard<'_, Vec<Ticket>> {
        // A list of points is whole at any time, also after a panic.
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells timelines of the work that is finished, without waiting. A stream that is waited for does so by itself.
    pub fn tell_finished(&self) {
        self.timeline.tell_finished(self.group());
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
        // Taken first: what is counted by now has been queued before the event.
        let ticket = self.ticket();
        let event = self
            .stream
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .map_err(self.device.failed("recording an event"))?;
        Ok(Event { event, ticket, device: self.device.ordinal() })
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
        if event.ticket.is_done() {
            return Ok(());
        }
        self.stream.wait(&event.event).map_err(self.device.failed("waiting for an event"))?;
        self.awaited().push(event.ticket.clone());
        Ok(())
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    event: CudaEvent,
    /// The work that precedes it.
    ticket: Ticket,
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

/// The result of work that has been queued on a stream, and the memory that this work uses. The memory is kept until the work is
/// known to be done, so that the work may go on after the call that has queued it.
///
/// Dropping it waits for the work, if no wait for the stream, or for another one that waits for it, has done so.
#[derive(Debug)]
pub struct Queued<T> {
    result: T,
    event: Event,
    used: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<T> Queued<T> {
    /// Takes the result of work that `stream` has been given, and the memory that the work uses besides the result.
    ///
    /// # Errors
    /// If the device is lost or out of memory. This then waits for the work before it drops the memory.
    pub fn new(stream: &Stream, result: T, used: impl Any + Send) -> Result<Self> {
        match stream.record() {
            Ok(event) => Ok(Self { result, event, used: Mutex::new(Some(Box::new(used))) }),
            Err(error) => stream.synchronize().and(Err(error)),
        }
    }

    /// The result, for work that follows it: on the same stream, or on one for which [`Queued::precede`] was called.
    pub fn result(&self) -> &T {
        &self.result
    }

    /// Makes work that is queued on `stream` from now on wait for this work.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn precede(&self, stream: &Stream) -> Result<()> {
        stream.wait(&self.event)
    }

    /// Waits for the work, unless it is known to be done, and drops the memory that it has used besides its result.
    pub fn settle(&self) {
        // The wait fails on a lost device, which runs no work any more.
        if !self.event.ticket.is_done() && self.event.synchronize().is_ok() {
            self.event.ticket.set_done();
        }
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(used);
    }
}

impl<T> Drop for Queued<T> {
    fn drop(&mut self) {
        self.settle();
    }
}
