//! When the device began and ended what a stream was asked for, for whoever draws timelines.
//!
//! No work waits for it: events are recorded before and after a kernel or copy, and read when its user has waited for the
//! stream. Only to compare clocks is a stream waited for, when it is first used and every ten seconds.

use std::collections::VecDeque;
use std::fmt::Display;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use parking_lot::Mutex;
use tracing::{Level, Span, enabled, trace};

use crate::timeline::{GPU_STREAMS, Number, Numbers, nanoseconds};

/// So many are read before anybody has waited, so that a stream that is never waited for keeps few events.
const MOST_UNREAD: usize = 512;

/// After so many nanoseconds the clock of the device is compared with that of the CPU again: the driver counts
/// milliseconds from one event to another in 24 bits.
const COMPARED_FOR: u64 = 10_000_000_000;

/// What a stream has been asked for and is not known to have done.
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

/// A point in the stream of which the time is known.
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

/// What is about to be asked for.
pub(super) struct Begun {
    name: String,
    bytes: Option<u64>,
    asked_in: Option<&'static str>,
    event: CudaEvent,
}

impl Timeline {
    /// Notes that something is about to be asked for; `None` if nobody wants to know, or the driver refuses: what it is
    /// asked for next will say why.
    pub(super) fn begin(&self, stream: &CudaStream, name: &str, bytes: Option<u64>) -> Option<Begun> {
        if !enabled!(target: GPU_STREAMS, Level::TRACE) {
            return None;
        }
        let mut recording = self.recording.lock();
        // The clocks drift while a stream has nothing to do.
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
        // Its name alone: a span that is kept would not end.
        let asked_in = Span::current().metadata().map(tracing::Metadata::name);
        Some(Begun { name: name.to_owned(), bytes, asked_in, event: record(stream)? })
    }

    /// Notes that it has been asked for.
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

    /// Tells what the stream did, all of which is done.
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

    /// Forgets what the stream has not done and never will.
    pub(super) fn forget(&self) {
        if let Some(recording) = &mut *self.recording.lock() {
            recording.unread.clear();
        }
    }
}

impl Recording {
    /// Tells of what was asked for first, as long as it is done.
    fn tell(&mut self, group: &impl Display, is_done: impl Fn(&Slice) -> bool) {
        while let Some(slice) = self.unread.pop_front_if(|slice| is_done(slice)) {
            // What is short is told exactly, however long ago the clocks were compared.
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
    /// Waits for the stream, and takes the time: halfway between asking for the event and hearing of it.
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
