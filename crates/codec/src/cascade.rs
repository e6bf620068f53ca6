//! Compresses and decompresses columns.

use crate::chunk::Scratch;
use crate::error::{Error, Result};
use crate::format::{ColumnInfo, MOST_BYTES, seal};
use crate::integer::{Bits, Integer};
use crate::layers::CHUNK;
use crate::stack::Stack;

/// Compresses and decompresses columns of integers, in some 100 KiB of memory beside them.
///
/// A compressed column is larger than its integers by at most 64 bytes and 16 a chunk.
#[derive(Debug)]
pub struct Cascade<I: Integer> {
    scratch: Scratch<I::Bits>,
}

impl<I: Integer> Default for Cascade<I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Integer> Cascade<I> {
    /// With memory of its own.
    pub fn new() -> Self {
        Self { scratch: Scratch::new() }
    }

    /// Adds a compressed column. `O(n)`.
    ///
    /// # Errors
    /// If there are more than [`MOST_BYTES`] of integers. Then nothing is added.
    pub fn compress(&mut self, values: &[I], stack: Stack, out: &mut Vec<u8>) -> Result<()> {
        if size_of_val(values) > MOST_BYTES {
            return Err(Error::TooLarge(size_of_val(values)));
        }
        let info = ColumnInfo { width: I::Bits::BYTES, stack, values: values.len() };
        let begin = info.begin(out);
        for (number, chunk) in values.chunks(CHUNK).enumerate() {
            self.scratch.compress(chunk, I::bits, stack, I::IS_SIGNED, out);
            info.note_end(number, &mut out[begin..]);
        }
        seal(&mut out[begin..]);
        Ok(())
    }

    /// Adds the integers of a compressed column. `O(n)`.
    ///
    /// # Errors
    /// If the bytes are not those of a column of such integers. Then nothing is added.
    pub fn decompress(&mut self, column: &[u8], out: &mut Vec<I>) -> Result<()> {
        let begin = out.len();
        self.decompress_chunks(column, out).inspect_err(|_| out.truncate(begin))
    }

    fn decompress_chunks(&mut self, column: &[u8], out: &mut Vec<I>) -> Result<()> {
        let info = ColumnInfo::of(column)?;
        if info.width != I::Bits::BYTES {
            return Err(Error::Width { expected: I::Bits::BYTES, found: info.width });
        }
        let chunks = info.checked_chunks(column)?;
        // The table has an entry for each chunk, so that this is not more than 1,024 times what was read.
        out.reserve(info.values);
        let mut left = info.values;
        for chunk in chunks {
            let count = left.min(CHUNK);
            let values = self.scratch.decompress(chunk, count, info.stack)?;
            out.extend(values.iter().map(|bits| I::from_bits(*bits)));
            left -= count;
        }
        Ok(())
    }

    /// The bytes of the chunks that some integers make, without the head of a column. `O(n)`.
    pub(crate) fn size(&mut self, values: &[I], stack: Stack) -> usize {
        values.chunks(CHUNK).map(|chunk| self.scratch.size(chunk, I::bits, stack, I::IS_SIGNED) + 4).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of numbers, so that this needs no crate.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// Each column has a right checksum, so that its damage reaches the parser. `OVERSPILL_TEST_CASES` sets the number of columns.
    #[test]
    fn forged_columns_give_an_error_or_as_many_integers_as_they_say() {
        let cases = std::env::var("OVERSPILL_TEST_CASES").ok().and_then(|cases| cases.parse().ok());
        let (mut refused, mut read, random) = (0, 0, &mut 1);
        let mut cascade = Cascade::<u32>::new();
        let mut columns = vec![];
        for stack in Stack::ALL {
            for length in [1, 90, 1500, CHUNK + 30] {
                let values: Vec<u32> =
                    (0..length as u32).map(|value| value / 5 * 3 + u32::from(value % 71 == 0)).collect();
                let mut column = vec![];
                cascade.compress(&values, stack, &mut column).unwrap();
                columns.push(column);
            }
        }
        for _ in 0..cases.unwrap_or(20_000_u64) {
            let mut column = columns[next(random) as usize % columns.len()].clone();
            for _ in 0..=next(random) % 3 {
                // Most of them where lengths and widths are.
                let most = if next(random).is_multiple_of(4) { column.len() } else { column.len().min(64) };
                let place = next(random) as usize % most;
                column[place] = match next(random) % 3 {
                    0 => next(random) as u8,
                    1 => column[place] ^ 1 << (next(random) % 8),
                    _ => [0, 1, 0xFF, 0x7F][next(random) as usize % 4],
                };
            }
            if next(random).is_multiple_of(8) {
                column.truncate(next(random) as usize % column.len());
            }
            if column.len() >= crate::format::HEADER {
                seal(&mut column);
            }
            let mut values = vec![];
            match cascade.decompress(&column, &mut values) {
                Ok(()) => {
                    assert_eq!(values.len(), ColumnInfo::of(&column).unwrap().values);
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > read / 10 && read > refused / 10, "{refused} refused, {read} read");
    }
}
