//! What a thread does.

use std::cell::RefCell;

use overspill_machine::timeline::{Number, Numbers};

use super::file::{Place, TraceFile};

/// Threads come and go; those that have the number of one that has gone have its lane.
static THREADS: Numbers = Numbers::new();

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

struct Thread {
    place: Place,
    /// The spans that it is in, and since when.
    entered: Vec<(u64, u64)>,
    _number: Number,
}

/// Notes that this thread enters a span.
pub fn enter(file: &TraceFile, span: u64, time: u64) {
    // Threads that are ending have no lane any more.
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

/// Notes that it leaves it, and gives the lane and the time when it was entered.
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
