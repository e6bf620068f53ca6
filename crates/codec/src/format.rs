//! The bytes of a compressed column around its chunks. All numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 2 | `OC` |
//! | 1 | [`VERSION`] |
//! | 1 | bytes of an integer: 1, 2, 4 or 8 |
//! | 1 | the stack: layers of runs, and 16 times those of deltas |
//! | 3 | zeros |
//! | 8 | the number of integers |
//! | 8 | the checksum of all other words of 8 bytes |
//! | 4 for each chunk | where it ends, in words of 8 bytes after this table; zeros fill the last word |
//! | | the chunks |

use std::ops::Range;

use crate::checksum::{self, checksum, part};
use crate::error::{Error, Result};
use crate::layers::CHUNK;
use crate::stack::Stack;

/// The version of the format.
pub const VERSION: u8 = 1;

/// The most bytes of integers in a column. Ends of chunks are numbers of words in 32 bits.
pub const MOST_BYTES: usize = 16 << 30;

const MAGIC: [u8; 2] = *b"OC";

/// Bytes before the table of chunks.
pub(crate) const HEADER: usize = 24;

const CHECKSUM: Range<usize> = 16..24;

/// The error of a column whose bytes have changed.
pub(crate) const WRONG_CHECKSUM: Error = Error::Damaged("its checksum is another");

/// What the first bytes of a compressed column say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnInfo {
    /// Bytes of an integer.
    pub width: usize,
    /// The layers.
    pub stack: Stack,
    /// The number of integers.
    pub values: usize,
}

impl ColumnInfo {
    /// Reads the first bytes, and not the rest. `O(1)`.
    ///
    /// # Errors
    /// If these are not the first bytes of a compressed column, or of one of another version.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        let header = bytes.first_chunk::<HEADER>().ok_or(Error::Foreign(bytes.len()))?;
        if header[..2] != MAGIC {
            return Err(Error::Foreign(bytes.len()));
        }
        if header[2] != VERSION {
            return Err(Error::Version { found: header[2] });
        }
        let width = usize::from(header[3]);
        let stack = Stack::from_byte(header[4]).ok_or(Error::Damaged("it names no stack of layers"))?;
        if ![1, 2, 4, 8].contains(&width) || header[5..8] != [0; 3] {
            return Err(Error::Damaged("its first bytes mean nothing"));
        }
        let values = header[8..16].try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
        let is_possible = values.checked_mul(width as u64).is_some_and(|bytes| bytes <= MOST_BYTES as u64);
        if !is_possible {
            return Err(Error::Damaged("it names more integers than a column can have"));
        }
        Ok(Self { width, stack, values: values as usize })
    }

    pub(crate) fn chunks(&self) -> usize {
        self.values.div_ceil(CHUNK)
    }

    /// Bytes before the chunks: the header and the table of chunks.
    pub fn head_bytes(&self) -> usize {
        HEADER + (4 * self.chunks()).next_multiple_of(8)
    }

    /// The first word of 8 bytes.
    pub(crate) fn first_word(&self) -> u64 {
        let [magic, more] = MAGIC;
        u64::from_le_bytes([magic, more, VERSION, self.width as u8, self.stack.byte(), 0, 0, 0])
    }

    /// Writes the header and an empty table. Returns where the column begins.
    pub(crate) fn begin(&self, out: &mut Vec<u8>) -> usize {
        let begin = out.len();
        out.extend_from_slice(&self.first_word().to_le_bytes());
        out.extend_from_slice(&(self.values as u64).to_le_bytes());
        out.resize(begin + self.head_bytes(), 0);
        begin
    }

    /// Notes that the chunk ends where `column`, which began with [`Self::begin`], ends.
    pub(crate) fn note_end(&self, chunk: usize, column: &mut [u8]) {
        let end = ((column.len() - self.head_bytes()) / 8) as u32;
        column[HEADER + 4 * chunk..][..4].copy_from_slice(&end.to_le_bytes());
    }

    /// Where each chunk ends, in words after the table. They are in order.
    ///
    /// # Errors
    /// If the table is not all there, or out of order.
    pub(crate) fn ends(&self, column: &[u8]) -> Result<Vec<u32>> {
        let table = column.get(HEADER..HEADER + 4 * self.chunks()).ok_or(Error::Damaged("its end is missing"))?;
        let ends: Vec<_> = table.as_chunks::<4>().0.iter().map(|end| u32::from_le_bytes(*end)).collect();
        if !ends.is_sorted() {
            return Err(Error::Damaged("its chunks are out of order"));
        }
        Ok(ends)
    }

    /// The part that the chunks must have in the checksum of a column, by its first bytes.
    ///
    /// # Errors
    /// If the head is not all there.
    pub(crate) fn checksum_of_chunks(&self, column: &[u8]) -> Result<u64> {
        let head = column.get(..self.head_bytes()).ok_or(Error::Damaged("its end is missing"))?;
        let stored = head[CHECKSUM].try_into().map_or(0, u64::from_le_bytes);
        Ok(stored.wrapping_sub(checksum(head, &CHECKSUM)))
    }

    /// The bytes of each chunk, after the checksum was compared.
    ///
    /// # Errors
    /// If the checksum is wrong, or the table of chunks.
    pub(crate) fn checked_chunks<'a>(&self, column: &'a [u8]) -> Result<impl Iterator<Item = &'a [u8]>> {
        let expected = self.checksum_of_chunks(column)?;
        let body = &column[self.head_bytes()..];
        if !body.len().is_multiple_of(8) {
            return Err(Error::Damaged("its end is missing"));
        }
        if part((self.head_bytes() / 8) as u64, body) != expected {
            return Err(WRONG_CHECKSUM);
        }
        let ends = self.ends(column)?;
        if ends.last().copied().unwrap_or(0) as usize * 8 != body.len() {
            return Err(Error::Damaged("its chunks end elsewhere"));
        }
        let mut begin = 0;
        Ok(ends.into_iter().map(move |end| {
            let begin = std::mem::replace(&mut begin, end as usize * 8);
            &body[begin..end as usize * 8]
        }))
    }
}

/// Writes the checksum of a column.
///
/// # Panics
/// If the column is too short to have one.
pub(crate) fn seal(column: &mut [u8]) {
    checksum::seal(column, &CHECKSUM);
}
