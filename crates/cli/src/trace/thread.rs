//! The lanes of threads.

use std::cell::RefCell;

use overspill_machine::timeline::{Number, Numbers};

use super::file::{Place, TraceFile};

/// Lane numbers of threads. A new thread reuses the number, and the lane, of a thread that has ended.
static THREADS: Numbers = Numbers::new();

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

struct Thread {
    place: Place,
    /// The spans that the thread is in, and the times of entry.
    entered: Vec<(u64, u64)>,
    _number: Number,
}

/// Records that this thread enters a span.
pub fn enter(file: &TraceFile, span: u64, time: u64) {
    // Threads that are ending no longer have a lane.
    let _ = THREAD.try_with(|thread| {
        let mut thread = thread.borrow_mut();
        let thread = thread.get_or_insert_with(|| {
            let number = THREADS.take();
            let name = std::thread::current().name().unwrap_or("helper").to_owned();
            let place = file.thread(&format!("{name} {}", number.get()));
            Thread { place, entered: Vec::new(), _number: number }
        });
        thread.entered.push((span, time));
    });
}

/// Records that this thread leaves a span, and returns the lane and the time of entry.
pub fn leave(span: u64) -> Option<(Place, u64)> {
    THREAD
        .try_with(|thread| {
            let mut thread = thread.borrow_mut();
            let thread = thread.as_mut()?;
            let depth = thread.entered.iter().rposition(|(entered, _)| *entered == span)?;
            let (_, time) = thread.entered.remove(depth);
            Some((thread.place, time))
        })
        .ok()
        .flatten()
}
