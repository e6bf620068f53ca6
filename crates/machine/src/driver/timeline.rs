//! Records when the device started and finished the work of a stream, for timelines.
//!
//! Recording does not wait for work: events are recorded before and after a kernel or copy, and read once the user of the
//! stream has waited for it. A stream is waited for only to compare clocks, when it is first used and every ten seconds.

use std::collections::VecDeque;
use std::fmt::Display;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use parking_lot::Mutex;
use tracing::{Level, Span, enabled, trace};

use crate::timeline::{GPU_STREAMS, Number, Numbers, nanoseconds};

/// Number of unread slices at which finished ones are read without a wait, so that a stream that is never waited for keeps few
/// events.
const MOST_UNREAD: usize = 512;

/// Nanoseconds after which the clock of the device is compared with that of the CPU again: the driver counts milliseconds
/// between two events in 24 bits.
const COMPARED_FOR: u64 = 10_000_000_000;

/// The work queued on a stream that is not known to be finished.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    recording: Mutex<Option<Recording>>,
}

#[derive(Debug)]
struct Recording {
    number: Number,
    start: Start,
    unread: VecDeque<Slice>,
}

/// A point in the stream with a known time.
#[derive(Debug)]
struct Start {
    event: CudaEvent,
    nanoseconds: u64,
}

#[derive(Debug)]
struct Slice {
    name: String,
    bytes: Option<u64>,
    asked_in: Option<&'static str>,
    begin: CudaEvent,
    end: CudaEvent,
}

/// Work that is about to be queued.
pub(super) struct Begun {
    name: String,
    bytes: Option<u64>,
    asked_in: Option<&'static str>,
    event: CudaEvent,
}

impl Timeline {
    /// Records the start of work that is about to be queued. `None` if no subscriber listens or the driver refuses; a refusing
    /// driver also fails the work itself, with the reason.
    pub(super) fn begin(&self, stream: &CudaStream, name: &str, bytes: Option<u64>) -> Option<Begun> {
        if !enabled!(target: GPU_STREAMS, Level::TRACE) {
            return None;
        }
        let mut recording = self.recording.lock();
        // The clocks drift while a stream is idle.
        let is_old = |recording: &Recording| {
            recording.unread.is_empty() && nanoseconds().saturating_sub(recording.start.nanoseconds) > COMPARED_FOR
        };
        if let Some(known) = recording.as_mut().filter(|recording| is_old(recording))
            && let Some(start) = Start::now(stream)
        {
            known.start = start;
        }
        if recording.is_none() {
            static STREAMS: Numbers = Numbers::new();
            *recording =
                Some(Recording { number: STREAMS.take(), start: Start::now(stream)?, unread: VecDeque::new() });
        }
        // Keep only the span's name: holding the span would keep it open.
        let asked_in = Span::current().metadata().map(tracing::Metadata::name);
        Some(Begun { name: name.to_owned(), bytes, asked_in, event: record(stream)? })
    }

    /// Records the end of work that has been queued.
    pub(super) fn end(&self, stream: &CudaStream, group: impl Display, begun: Begun) {
        let Some(end) = record(stream) else { return };
        if let Some(recording) = &mut *self.recording.lock() {
            let Begun { name, bytes, asked_in, event: begin } = begun;
            recording.unread.push_back(Slice { name, bytes, asked_in, begin, end });
            if recording.unread.len() >= MOST_UNREAD {
                recording.tell(&group, |slice| slice.end.is_complete());
            }
        }
    }

    /// Emits events for all work of the stream. All of it must be finished.
    pub(super) fn tell(&self, stream: &CudaStream, group: impl Display) {
        let mut recording = self.recording.lock();
        let Some(known) = recording.as_mut().filter(|recording| !recording.unread.is_empty()) else { return };
        known.tell(&group, |_| true);
        if nanoseconds().saturating_sub(known.start.nanoseconds) > COMPARED_FOR
            && let Some(start) = Start::now(stream)
        {
            known.start = start;
        }
    }

    /// Emits events for the oldest work, as far as it is finished.
    pub(super) fn tell_finished(&self, group: impl Display) {
        if let Some(recording) = &mut *self.recording.lock() {
            recording.tell(&group, |slice| slice.end.is_complete());
        }
    }

    /// Drops the records of work that the stream will never finish.
    pub(super) fn forget(&self) {
        if let Some(recording) = &mut *self.recording.lock() {
            recording.unread.clear();
        }
    }
}

impl Recording {
    /// Emits events for the oldest work, as long as it is finished.
    fn tell(&mut self, group: &impl Display, is_done: impl Fn(&Slice) -> bool) {
        while let Some(slice) = self.unread.pop_front_if(|slice| is_done(slice)) {
            // Measure the duration between the work's own events: it is exact for short work, however long ago the clocks were
            // compared.
            let (Some(begin_ns), Some(duration)) = (self.start.until(&slice.begin), between(&slice.begin, &slice.end))
            else {
                continue;
            };
            let (lane, title) = (format_args!("stream {}", self.number.get()), slice.name.as_str());
            let Slice { bytes, asked_in, .. } = slice;
            let end_ns = begin_ns + duration;
            trace!(target: GPU_STREAMS, %group, %lane, title, begin_ns, end_ns, bytes, asked_in);
        }
    }
}

impl Start {
    /// Waits for the stream. The time is halfway between recording the event and the end of the wait.
    fn now(stream: &CudaStream) -> Option<Self> {
        let before = nanoseconds();
        let event = record(stream)?;
        event.synchronize().ok()?;
        Some(Self { event, nanoseconds: before + (nanoseconds() - before) / 2 })
    }

    fn until(&self, event: &CudaEvent) -> Option<u64> {
        Some(self.nanoseconds + between(&self.event, event)?)
    }
}

/// Nanoseconds from one event to another.
fn between(begin: &CudaEvent, end: &CudaEvent) -> Option<u64> {
    let milliseconds = begin.elapsed_ms(end).ok()?;
    Some((f64::from(milliseconds) * 1e6) as u64)
}

fn record(stream: &CudaStream) -> Option<CudaEvent> {
    stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).ok()
}
