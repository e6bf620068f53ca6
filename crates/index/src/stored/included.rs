//! Reads the included columns of an index file.

use std::fs::File;
use std::ops::Range;

use super::error::{Result, StoredError};
use super::layout::{CHUNK, SUM, Trailer, checksum};
use super::reader::{read, read_at, read_trailer, words};

/// The bytes of the included columns of an index file. They have a row for each key, in the order of keys.
#[derive(Debug)]
pub struct IncludedColumns {
    file: File,
    trailer: Trailer,
    /// Of each chunk.
    sums: Vec<u64>,
}

impl IncludedColumns {
    /// Opens the included columns of an index file. `O(n)` in their number of bytes: a word for each 32 KiB is read.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn open(file: File) -> Result<Self> {
        let trailer = read_trailer(&file)?;
        let (place, count) = trailer.included_sums();
        let bytes = read(&file, place, count * SUM as u64)?;
        if checksum(&bytes) != trailer.included_sum {
            return Err(StoredError::damaged("the checksums of its included columns"));
        }
        Ok(Self { file, trailer, sums: words(&bytes).collect() })
    }

    /// How many bytes they are.
    pub fn bytes(&self) -> u64 {
        self.trailer.included
    }

    /// Bytes of memory that they take while they are open.
    pub fn memory_bytes(&self) -> usize {
        self.sums.len() * SUM
    }

    /// Reads some of the bytes, and compares the checksums of all chunks that have any of them.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged, or there are no such bytes.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let chunk = CHUNK as u64;
        let size = self.bytes();
        if range.start > range.end || range.end > size {
            return Err(StoredError::damaged("its included columns"));
        }
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let first = range.start / chunk;
        let (start, end) = (first * chunk, range.end.next_multiple_of(chunk).min(size));
        let mut bytes = vec![0; (end - start) as usize];
        read_at(&self.file, &mut bytes, self.trailer.included() + start)?;
        for (number, bytes) in (first..).zip(bytes.chunks(CHUNK)) {
            if self.sums.get(number as usize) != Some(&checksum(bytes)) {
                return Err(StoredError::damaged(format!("part {number} of its included columns")));
            }
        }
        bytes.truncate((range.end - start) as usize);
        bytes.drain(..(range.start - start) as usize);
        Ok(bytes)
    }
}
