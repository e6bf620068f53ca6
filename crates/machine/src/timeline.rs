//! What timelines are made of: a clock, and numbers for lanes.
//!
//! Every floor says by spans of the crate `tracing` what it does, which costs one load while nobody listens. Each is
//! something that threads do from entering it to leaving it. Fields say more of some of them:
//!
//! | field | |
//! |---|---|
//! | `group`, `lane` | The span is also drawn there, from its beginning to its end, and when it was entered. |
//! | `title` | Its name, if that is not the same for all of its kind. |
//! | `begin_ns`, `end_ns` | Of an event: it tells of something that is over, by [`nanoseconds`]. |
//!
//! All other fields are figures of the span.
//!
//! Spans have the level DEBUG. What streams of GPUs did is told by events of the target [`GPU_STREAMS`] at the level TRACE: timing it
//! costs two events of the driver for each kernel and copy, and now and then a wait, which nobody should pay who only wants the
//! spans. So a subscriber that takes DEBUG of everything does not ask for it; one that wants it enables that target.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Instant;

use parking_lot::Mutex;

/// The target of the events that tell when streams of GPUs did what they were asked for. Streams are timed only while somebody
/// listens to it, at the level TRACE. Beside the fields of all timelines an event has `bytes`, if it was a copy, and `asked_in`, the
/// name of the span, of those that are listened to, in which the stream was asked.
pub const GPU_STREAMS: &str = "overspill::gpu_streams";

/// Nanoseconds since this process first asked.
pub fn nanoseconds() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Numbers for what comes and goes, so that few lanes do for many streams, joins and threads.
#[derive(Debug, Default)]
pub struct Numbers {
    taken: Mutex<BTreeSet<u64>>,
}

/// A number that nobody else has until it is dropped.
#[derive(Debug)]
pub struct Number {
    number: u64,
    of: &'static Numbers,
}

impl Numbers {
    /// None is taken.
    pub const fn new() -> Self {
        Self { taken: Mutex::new(BTreeSet::new()) }
    }

    /// The smallest number from 1 on that nobody has.
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
