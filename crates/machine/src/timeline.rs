//! Building blocks of timelines: a clock, and numbers for lanes.
//!
//! Every layer reports its work as spans of the crate `tracing`, which costs one load while no subscriber listens. A span is
//! work that a thread does from entering it to leaving it. Some fields add information:
//!
//! | field | |
//! |---|---|
//! | `group`, `lane` | The span is also drawn in this lane of this group, from beginning to end, and when it was entered. |
//! | `title` | The span's title, if it is not the same for all spans of its kind. |
//! | `begin_ns`, `end_ns` | Only for events: the event describes work that began and ended at these times, by [`nanoseconds`]. |
//!
//! All other fields are values that describe the span.
//!
//! Spans have the level DEBUG. Work of GPU streams is reported as events of the target [`GPU_STREAMS`] at the level TRACE.
//! Timing it costs two driver events for each kernel and copy, and an occasional wait, which subscribers that only want the
//! spans should not pay. A subscriber to DEBUG of all targets therefore does not enable it; one that wants it must enable that
//! target.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Instant;

use parking_lot::Mutex;

/// The target of events that report when GPU streams did their work. Streams are timed only while a subscriber listens to it at
/// the level TRACE. Besides the fields of all timelines, an event has `bytes` if it was a copy, and `asked_in`, the name of the
/// enabled span in which the work was queued.
pub const GPU_STREAMS: &str = "overspill::gpu_streams";

/// Nanoseconds since the first call in this process.
pub fn nanoseconds() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Reusable numbers for short-lived objects, so that a few lanes serve many streams, joins and threads.
#[derive(Debug, Default)]
pub struct Numbers {
    taken: Mutex<BTreeSet<u64>>,
}

/// A number that is reserved until this is dropped.
#[derive(Debug)]
pub struct Number {
    number: u64,
    of: &'static Numbers,
}

impl Numbers {
    /// Creates the set with all numbers free.
    pub const fn new() -> Self {
        Self { taken: Mutex::new(BTreeSet::new()) }
    }

    /// Takes the smallest free number, from 1 on.
    pub fn take(&'static self) -> Number {
        let mut taken = self.taken.lock();
        let mut number = 1;
        while !taken.insert(number) {
            number += 1;
        }
        Number { number, of: self }
    }
}

impl Number {
    /// The number.
    pub fn get(&self) -> u64 {
        self.number
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.of.taken.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_back_is_taken_again() {
        static NUMBERS: Numbers = Numbers::new();
        let (first, second) = (NUMBERS.take(), NUMBERS.take());
        assert_eq!((first.get(), second.get()), (1, 2));
        drop(first);
        let third = NUMBERS.take();
        assert_eq!((third.get(), NUMBERS.take().get()), (1, 3));
    }

    #[test]
    fn the_clock_goes_forward() {
        let before = nanoseconds();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(nanoseconds() >= before + 2_000_000);
    }
}
