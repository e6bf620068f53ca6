//! Which build rows have matched.
//!
//! `tests/loom` compiles this file with a model checker's atomics.

use crate::atomic::{AtomicU64, Ordering};

/// A bitmap over build rows that several probing threads set concurrently.
///
/// Relaxed ordering suffices. While probing, bits are only read one by one, and a missed bit costs time but not correctness.
/// The whole bitmap is read after the last prober has handed over through a lock.
#[derive(Debug, Default)]
pub struct VisitedRows {
    words: Vec<AtomicU64>,
}

impl VisitedRows {
    /// A bitmap of `rows` rows, none visited.
    pub fn new(rows: usize) -> Self {
        Self { words: (0..rows.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Bytes of a bitmap of `rows` rows.
    pub fn bytes(rows: usize) -> usize {
        rows.div_ceil(64) * size_of::<u64>()
    }

    /// Marks a row as visited.
    #[inline]
    pub fn set(&self, row: u32) {
        let (word, bit) = (&self.words[row as usize / 64], 1 << (row % 64));
        // Loads first: in a foreign-key join most bits are set many times, and an atomic read-modify-write is expensive.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Marks all rows of a range as visited.
    pub fn set_range(&self, rows: std::ops::Range<u32>) {
        let (mut row, end) = (rows.start as usize, rows.end as usize);
        while row < end {
            let word = &self.words[row / 64];
            let first = row % 64;
            let bits = (end - row).min(64 - first);
            let mask = (u64::MAX >> (64 - bits)) << first;
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
            row += bits;
        }
    }

    /// Whether a row has been visited.
    #[inline]
    pub fn get(&self, row: u32) -> bool {
        self.words[row as usize / 64].load(Ordering::Relaxed) & (1 << (row % 64)) != 0
    }
}
