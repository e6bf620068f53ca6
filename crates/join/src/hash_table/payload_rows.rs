//! Build rows with payloads for a table.

use arrow::buffer::{NullBuffer, ScalarBuffer};

/// Build rows with a one-word payload each, which a table may store instead of the row number. They come in chunks. Several
/// threads read the chunks, so nothing must first be copied into one array.
pub(crate) trait PayloadRows: Sync {
    /// Number of chunks.
    fn chunks(&self) -> usize;

    /// Number of rows of chunk `number`.
    fn rows(&self, number: usize) -> usize;

    /// The keys of chunk `number`.
    fn keys(&self, number: usize) -> ChunkKeys;

    /// The payloads of chunk `number`, one for each key.
    fn payloads(&self, number: usize) -> ScalarBuffer<u64>;

    /// Whether payloads have at most 32 bits.
    fn is_narrow(&self) -> bool;
}

/// The keys of some rows.
#[derive(Debug, Clone)]
pub(crate) struct ChunkKeys {
    /// One for each row.
    pub keys: ScalarBuffer<u64>,
    /// Which of the rows can match; `None` if all can.
    pub matchable: Option<NullBuffer>,
}

impl ChunkKeys {
    /// The key of a row; `None` if the row cannot match.
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Chunks in memory.
    pub struct Chunks {
        chunks: Vec<(ChunkKeys, ScalarBuffer<u64>)>,
        is_narrow: bool,
    }

    impl Chunks {
        /// Keys with these payloads, in chunks of 10,000 rows.
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

        fn rows(&self, number: usize) -> usize {
            self.chunks[number].1.len()
        }

        fn keys(&self, number: usize) -> ChunkKeys {
            self.chunks[number].0.clone()
        }

        fn payloads(&self, number: usize) -> ScalarBuffer<u64> {
            self.chunks[number].1.clone()
        }

        fn is_narrow(&self) -> bool {
            self.is_narrow
        }
    }
}
