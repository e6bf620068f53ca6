//! Who takes which rows of the probe side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Batches that the GPU has at most: one that it joins, and one that is collected meanwhile.
const MOST_BATCHES: usize = 2;

/// Rows of the first batch, and of the largest.
const FEWEST_ROWS: usize = 1 << 16;
const MOST_ROWS: usize = 1 << 22;

/// A batch of twice the size must be so much faster a row, or batches stay as they are.
const WORTH_DOUBLING: f64 = 1.1;

/// If the GPU falls to less than this share of its best rate, the size that was found is looked for again.
const CHANGED: f64 = 0.5;

/// Gives the GPU batches of morsels and leaves the other morsels to the CPU; shared by all streams of a join.
#[derive(Debug, Default)]
pub(crate) struct Dispatcher {
    reserved: AtomicUsize,
    batch: Mutex<BatchSize>,
}

/// The right to collect a batch for the GPU, until dropped.
#[derive(Debug)]
pub(crate) struct Reservation(Arc<Dispatcher>);

/// Rows of a batch, found while the join runs: they double as long as the GPU gets faster by it, which it does until launches and
/// latency are little beside the work (the papers' authors do this by hand: paper 2, section 6.1).
#[derive(Debug)]
struct BatchSize {
    rows: usize,
    /// Rows a second of the best batch of half the size, and of the best so far.
    before: f64,
    best: f64,
    is_settled: bool,
}

impl Default for BatchSize {
    fn default() -> Self {
        Self { rows: FEWEST_ROWS, before: 0.0, best: 0.0, is_settled: false }
    }
}

impl BatchSize {
    fn note(&mut self, rows: usize, seconds: f64) {
        // The last batch of a stream is as small as it happens to be, and others were begun before the size was doubled.
        if rows < self.rows / 4 * 3 || seconds <= 0.0 {
            return;
        }
        let rate = rows as f64 / seconds;
        if self.is_settled {
            if rate < self.best * CHANGED {
                *self = Self { rows: (self.rows / 2).max(FEWEST_ROWS), ..Self::default() };
            }
            self.best = self.best.max(rate);
            return;
        }
        self.best = self.best.max(rate);
        if rate > self.before * WORTH_DOUBLING && self.rows < MOST_ROWS {
            self.before = rate;
            self.rows *= 2;
        } else {
            self.is_settled = true;
        }
    }
}

impl Dispatcher {
    /// Lets the caller collect a batch for the GPU, if it has too little to do.
    pub(crate) fn try_reserve(self: &Arc<Self>) -> Option<Reservation> {
        let one_more = |reserved| (reserved < MOST_BATCHES).then_some(reserved + 1);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Reservation(Arc::clone(self)))
    }

    /// Rows of the next batch.
    pub(crate) fn batch_rows(&self) -> usize {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).rows
    }

    /// Takes note of how long the GPU took for so many rows.
    pub(crate) fn note(&self, rows: u64, time: Duration) {
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).note(rows, time.as_secs_f64());
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.reserved.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of batches of a GPU that takes so long for a launch and so long for a row, in seconds.
    fn settle(size: &mut BatchSize, launch: f64, row: f64) -> usize {
        for _ in 0..20 {
            let rows = size.rows;
            size.note(rows, launch + rows as f64 * row);
        }
        size.rows
    }

    #[test]
    fn batches_grow_until_launches_do_not_show() {
        assert_eq!(settle(&mut BatchSize::default(), 1e-6, 1e-9), 2 * FEWEST_ROWS);
        // Ten launches of work are in 2^20 rows.
        let slow = settle(&mut BatchSize::default(), 1e-4, 1e-9);
        assert!(((1 << 20)..MOST_ROWS).contains(&slow), "{slow}");
        assert_eq!(settle(&mut BatchSize::default(), 1.0, 1e-9), MOST_ROWS);
    }

    #[test]
    fn a_gpu_that_got_slower_is_measured_again() {
        let mut size = BatchSize::default();
        settle(&mut size, 1e-6, 1e-9);
        assert!(size.is_settled);
        // Batches of the size before tell nothing of this one.
        let mut growing = BatchSize::default();
        for _ in 0..2 {
            growing.note(FEWEST_ROWS, 1.0);
        }
        assert_eq!((growing.rows, growing.is_settled), (2 * FEWEST_ROWS, false));
        // Nor do rests of streams.
        size.note(3, 1.0);
        assert!(size.is_settled);
        size.note(size.rows, size.rows as f64 * 1e-8);
        assert!(!size.is_settled);
        assert!(settle(&mut size, 1e-2, 1e-9) > 2 * FEWEST_ROWS);
    }

    #[test]
    fn the_gpu_has_two_batches_at_most() {
        let dispatcher = Arc::new(Dispatcher::default());
        let (first, second) = (dispatcher.try_reserve(), dispatcher.try_reserve());
        assert!(first.is_some() && second.is_some() && dispatcher.try_reserve().is_none());
        drop(first);
        assert!(dispatcher.try_reserve().is_some());
    }
}
