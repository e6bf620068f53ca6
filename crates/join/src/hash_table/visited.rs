//! Which build rows have found a match.
//!
//! `tests/loom` compiles this file with a model checker's atomics.

use crate::atomic::{AtomicU64, Ordering};

/// A bitmap over build rows that several probing threads set at once.
///
/// Relaxed order suffices: bits are only read one by one while probing, where a missed bit costs time and not
/// correctness, and as a whole after the last prober has handed over through a lock.
#[derive(Debug, Default)]
pub struct VisitedRows {
    words: Vec<AtomicU64>,
}

impl VisitedRows {
    /// A bitmap of `rows` rows, none visited.
    pub fn new(rows: usize) -> Self {
        Self { words: (0..rows.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The bytes a bitmap of so many rows takes.
    pub fn bytes(rows: usize) -> usize {
        rows.div_ceil(64) * size_of::<u64>()
    }

    /// Marks a row as visited.
    #[inline]
    pub fn set(&self, row: u32) {
        let (word, bit) = (&self.words[row as usize / 64], 1 << (row % 64));
        // A plain load first: most rows of a foreign-key join are set many times, and a locked write is dear.
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
