//! Distributes probe rows between GPU and CPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of batches for the GPU: one being joined and one being collected.
const MOST_BATCHES: usize = 2;

/// Rows of the first batch, and of the largest batch.
const FEWEST_ROWS: usize = 1 << 16;
const MOST_ROWS: usize = 1 << 22;

/// The rate in rows per second must grow by this factor when the batch size doubles, or the size stays as it is.
const WORTH_DOUBLING: f64 = 1.1;

/// If the GPU's rate falls below this share of its best rate, the search for a batch size starts again.
const CHANGED: f64 = 0.5;

/// Gives batches of morsels to the GPU and leaves other morsels to the CPU. Shared by all streams of a join.
#[derive(Debug, Default)]
pub(crate) struct Dispatcher {
    reserved: AtomicUsize,
    batch: Mutex<BatchSize>,
}

/// The right to collect a batch for the GPU, until dropped.
#[derive(Debug)]
pub(crate) struct Reservation(Arc<Dispatcher>);

/// The number of rows per batch, tuned while the join runs. It doubles as long as that makes the GPU faster, until launches and
/// latency are small compared with the work (the papers' authors tune this by hand: paper 2, section 6.1).
#[derive(Debug)]
struct BatchSize {
    rows: usize,
    /// Rows per second of the batch before the last doubling, and of the best batch so far.
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
        // Skip small batches: the last batch of a stream may have any size, and other batches were started before the size
        // doubled.
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
    /// Lets the caller collect a batch for the GPU if the GPU has too little work.
    pub(crate) fn try_reserve(self: &Arc<Self>) -> Option<Reservation> {
        let one_more = |reserved| (reserved < MOST_BATCHES).then_some(reserved + 1);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Reservation(Arc::clone(self)))
    }

    pub(crate) fn batch_rows(&self) -> usize {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).rows
    }

    /// Records that the GPU took `time` for `rows` rows.
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

    /// Returns the batch size for a GPU that takes `launch` seconds per launch and `row` seconds per row.
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
        // 2^20 rows take as long as ten launches.
        let slow = settle(&mut BatchSize::default(), 1e-4, 1e-9);
        assert!(((1 << 20)..MOST_ROWS).contains(&slow), "{slow}");
        assert_eq!(settle(&mut BatchSize::default(), 1.0, 1e-9), MOST_ROWS);
    }

    #[test]
    fn a_gpu_that_got_slower_is_measured_again() {
        let mut size = BatchSize::default();
        settle(&mut size, 1e-6, 1e-9);
        assert!(size.is_settled);
        // Batches of the previous size do not count for the new size.
        let mut growing = BatchSize::default();
        for _ in 0..2 {
            growing.note(FEWEST_ROWS, 1.0);
        }
        assert_eq!((growing.rows, growing.is_settled), (2 * FEWEST_ROWS, false));
        // The short last batches of streams do not count either.
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
