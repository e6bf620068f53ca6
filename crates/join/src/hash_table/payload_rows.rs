//! Build rows whose payloads go into a table.

use arrow::buffer::{NullBuffer, ScalarBuffer};

use crate::error::Result;
use crate::parallel::in_parallel;

/// Build rows of which a table may keep a word each, their payload, in place of the number of the row. They come in chunks,
/// which are asked for by several threads, and more than once: nothing need be copied into one array first.
pub trait PayloadRows: Sync {
    /// How many chunks there are.
    fn chunks(&self) -> usize;

    /// The chunk of this number.
    ///
    /// # Errors
    /// If its keys cannot be told.
    fn chunk(&self, number: usize) -> Result<PayloadChunk>;

    /// Whether payloads have no more than 32 bits.
    fn is_narrow(&self) -> bool;
}

/// Some rows.
#[derive(Debug, Clone)]
pub struct PayloadChunk {
    /// Their keys.
    pub keys: ScalarBuffer<u64>,
    /// Their payloads, as many.
    pub payloads: ScalarBuffer<u64>,
    /// Which of them can match; `None` if all can.
    pub matchable: Option<NullBuffer>,
}

impl PayloadChunk {
    /// The keys and payloads of the rows that can match.
    #[inline(always)]
    pub(super) fn entries(&self) -> impl Iterator<Item = [u64; 2]> {
        let is_matchable = |row: &usize| self.matchable.as_ref().is_none_or(|matchable| matchable.is_valid(*row));
        (0..self.keys.len()).filter(is_matchable).map(|row| [self.keys[row], self.payloads[row]])
    }
}

/// Does something with each chunk, on several threads.
pub(super) fn with_chunks<R: Send>(
    rows: &impl PayloadRows,
    threads: usize,
    work: impl Fn(PayloadChunk) -> R + Sync,
) -> Result<Vec<R>> {
    let numbers = (0..rows.chunks()).collect();
    in_parallel(threads, numbers, |number| rows.chunk(number).map(&work)).into_iter().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Chunks that are there.
    pub struct Chunks {
        pub chunks: Vec<PayloadChunk>,
        pub is_narrow: bool,
    }

    impl Chunks {
        /// Keys with these payloads, in chunks of some rows.
        pub fn of(keys: &[u64], payloads: &[u64], is_narrow: bool, is_matchable: impl Fn(usize) -> bool) -> Self {
            let chunk = |start: usize| {
                let end = (start + 10_000).min(keys.len());
                PayloadChunk {
                    keys: keys[start..end].to_vec().into(),
                    payloads: payloads[start..end].to_vec().into(),
                    matchable: Some((start..end).map(&is_matchable).collect::<NullBuffer>())
                        .filter(|rows| rows.null_count() > 0),
                }
            };
            Self { chunks: (0..keys.len()).step_by(10_000).map(chunk).collect(), is_narrow }
        }
    }

    impl PayloadRows for Chunks {
        fn chunks(&self) -> usize {
            self.chunks.len()
        }

        fn chunk(&self, number: usize) -> Result<PayloadChunk> {
            Ok(self.chunks[number].clone())
        }

        fn is_narrow(&self) -> bool {
            self.is_narrow
        }
    }
}
