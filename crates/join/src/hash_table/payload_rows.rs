//! Build rows whose payloads go into a table.

use arrow::buffer::{NullBuffer, ScalarBuffer};

use crate::error::Result;
use crate::parallel::in_parallel;

/// Build rows of which a table may keep a word each, their payload, in place of the number of the row. They come in chunks,
/// which are asked for by several threads, and more than once: nothing need be copied into one array first.
pub trait PayloadRows: Sync {
    /// How many chunks there are.
    fn chunks(&self) -> usize;

    /// The keys of the chunk of this number.
    ///
    /// # Errors
    /// If its keys cannot be told.
    fn keys(&self, number: usize) -> Result<ChunkKeys>;

    /// The payloads of the chunk of this number, one for each key.
    fn payloads(&self, number: usize) -> ScalarBuffer<u64>;

    /// Whether payloads have no more than 32 bits.
    fn is_narrow(&self) -> bool;
}

/// The keys of some rows.
#[derive(Debug, Clone)]
pub struct ChunkKeys {
    /// One for each row.
    pub keys: ScalarBuffer<u64>,
    /// Which of the rows can match; `None` if all can.
    pub matchable: Option<NullBuffer>,
}

impl ChunkKeys {
    /// The key of a row that can match.
    #[inline(always)]
    pub(super) fn key(&self, row: usize) -> Option<u64> {
        let is_matchable = self.matchable.as_ref().is_none_or(|matchable| matchable.is_valid(row));
        is_matchable.then(|| self.keys[row])
    }

    /// The rows that can match, with their keys.
    #[inline(always)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, u64)> {
        (0..self.keys.len()).filter_map(|row| Some((row, self.key(row)?)))
    }
}

/// Does something with each chunk, on several threads: `work` is given its number and its keys.
pub(super) fn with_chunks<R: Send>(
    rows: &impl PayloadRows,
    threads: usize,
    work: impl Fn(usize, ChunkKeys) -> R + Sync,
) -> Result<Vec<R>> {
    let numbers = (0..rows.chunks()).collect();
    in_parallel(threads, numbers, |number| Ok(work(number, rows.keys(number)?))).into_iter().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Chunks that are there.
    pub struct Chunks {
        chunks: Vec<(ChunkKeys, ScalarBuffer<u64>)>,
        is_narrow: bool,
    }

    impl Chunks {
        /// Keys with these payloads, in chunks of some rows.
        pub fn of(keys: &[u64], payloads: &[u64], is_narrow: bool, is_matchable: impl Fn(usize) -> bool) -> Self {
            let chunk = |start: usize| {
                let end = (start + 10_000).min(keys.len());
                let matchable = (start..end).map(&is_matchable).collect::<NullBuffer>();
                let matchable = Some(matchable).filter(|rows| rows.null_count() > 0);
                let keys = ChunkKeys { keys: keys[start..end].to_vec().into(), matchable };
                (keys, payloads[start..end].to_vec().into())
            };
            Self { chunks: (0..keys.len()).step_by(10_000).map(chunk).collect(), is_narrow }
        }
    }

    impl PayloadRows for Chunks {
        fn chunks(&self) -> usize {
            self.chunks.len()
        }

        fn keys(&self, number: usize) -> Result<ChunkKeys> {
            Ok(self.chunks[number].0.clone())
        }

        fn payloads(&self, number: usize) -> ScalarBuffer<u64> {
            self.chunks[number].1.clone()
        }

        fn is_narrow(&self) -> bool {
            self.is_narrow
        }
    }
}
