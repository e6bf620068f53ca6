//! What is looked up.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::execution::memory_pool::MemoryReservation;
use overspill_join::memory::Grant;

use super::IndexMetrics;
use crate::indexes::IndexedRows;

/// Number of keys that a stream takes at once.
const TAKEN: usize = 1024;

/// Number of places that a stream takes at once.
const PIECE: usize = 8192;

/// Places of a run of the index.
pub(crate) type RunPlaces = (usize, Range<usize>);

/// Distinct keys in ascending order, which streams take and look up.
#[derive(Debug)]
pub(crate) struct LookupKeys {
    pub words: Arc<Vec<u64>>,
    /// The first key that no stream has taken.
    next: AtomicUsize,
    _memory: Grant,
}

impl LookupKeys {
    /// Keys for which `memory` pays.
    pub fn new(words: Vec<u64>, memory: Grant) -> Self {
        Self { words: Arc::new(words), next: AtomicUsize::new(0), _memory: memory }
    }
}

/// Numbers of rows, which streams take.
#[derive(Debug)]
pub(crate) struct RowNumbers {
    numbers: Vec<u32>,
    /// The first number that no stream has taken.
    next: AtomicUsize,
    _memory: MemoryReservation,
}

impl RowNumbers {
    /// Numbers for which `memory` pays.
    pub fn new(numbers: Vec<u32>, memory: MemoryReservation) -> Self {
        Self { numbers, next: AtomicUsize::new(0), _memory: memory }
    }
}

/// The rows that streams fetch.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// Those with certain keys. Each stream takes the next ones.
    Keys(Arc<LookupKeys>),
    /// Those at places of the index, in pieces. Of `n` streams each takes every `n`th piece.
    Places(Arc<[RunPlaces]>),
    /// Those with these numbers. Each stream takes the next ones.
    Rows(Arc<RowNumbers>),
}

impl Wanted {
    /// The rows at these places of each run.
    pub fn places(found: &[RunPlaces]) -> Self {
        let pieces = found.iter().flat_map(|(run, places)| {
            let (run, end) = (*run, places.end);
            places.clone().step_by(PIECE).map(move |start| (run, start..(start + PIECE).min(end)))
        });
        Self::Places(pieces.collect())
    }

    /// The row numbers that places of a run refer to, and the words of these rows, if they are at hand.
    pub fn rows<'a>(&'a self, rows: &'a IndexedRows, run: usize) -> (&'a [u32], &'a [u64]) {
        match self {
            Self::Keys(_) | Self::Places(_) => {
                let run = &rows.runs()[run];
                (run.rows(), run.index().keys())
            }
            Self::Rows(found) => (&found.numbers, &[]),
        }
    }
}

/// What one of several streams takes.
pub(super) struct Share {
    pub wanted: Wanted,
    /// The number of the next piece, and the number of streams.
    pub next: usize,
    pub streams: usize,
    pub found: Vec<Range<usize>>,
}

impl Share {
    /// Adds the places of the next rows to `places`, the last first. Returns false if none are left.
    pub fn take(&mut self, rows: &IndexedRows, places: &mut Vec<RunPlaces>, metrics: &IndexMetrics) -> bool {
        match &self.wanted {
            Wanted::Keys(keys) => {
                let first = keys.next.fetch_add(TAKEN, Ordering::Relaxed).min(keys.words.len());
                let taken = &keys.words[first..(first + TAKEN).min(keys.words.len())];
                for (run, index) in rows.runs().iter().enumerate() {
                    index.index().look_up(taken, &mut self.found);
                    places.extend(self.found.drain(..).filter(|place| !place.is_empty()).map(|place| (run, place)));
                }
                places.reverse();
                metrics.lookups.add(taken.len());
                !taken.is_empty()
            }
            Wanted::Places(pieces) => {
                let piece = pieces.get(self.next);
                self.next += self.streams;
                places.extend(piece.cloned());
                piece.is_some()
            }
            Wanted::Rows(found) => {
                let first = found.next.fetch_add(PIECE, Ordering::Relaxed).min(found.numbers.len());
                let piece = first..(first + PIECE).min(found.numbers.len());
                let is_left = !piece.is_empty();
                places.extend(is_left.then_some((0, piece)));
                is_left
            }
        }
    }
}
