//! Writes an index file.

use std::io::{Read, Write};

use super::description::StoredDescription;
use super::error::{Result, StoredError};
use super::layout::{BLOCK, CHUNK, ENTRY, KEY, MAGIC, Trailer, checksum};

/// Writes sorted keys and row numbers to a file, block by block. Its memory is an entry of 16 bytes for each block.
#[derive(Debug)]
pub struct StoredIndexWriter<W> {
    file: W,
    row_bytes: usize,
    /// The keys and the row numbers of the next block.
    keys: Vec<u8>,
    numbers: Vec<u8>,
    directory: Vec<u8>,
    last: u64,
    rows: u64,
}

impl<W: Write> StoredIndexWriter<W> {
    /// Begins an index of a table with this number of rows.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn new(mut file: W, table_rows: u64) -> Result<Self> {
        file.write_all(&MAGIC)?;
        let row_bytes = if table_rows > u64::from(u32::MAX) { 8 } else { 4 };
        let (keys, numbers) = (Vec::with_capacity(BLOCK * KEY), Vec::with_capacity(BLOCK * row_bytes));
        Ok(Self { file, row_bytes, keys, numbers, directory: Vec::new(), last: 0, rows: 0 })
    }

    /// Adds keys in ascending order, each with the number of its row.
    ///
    /// # Errors
    /// If a key is less than the one before, or the file cannot be written.
    pub fn push(&mut self, keys: &[u64], rows: &[u64]) -> Result<()> {
        for (key, row) in keys.iter().zip(rows) {
            if *key < self.last {
                return Err(StoredError::NotSorted { key: *key, last: self.last });
            }
            self.last = *key;
            self.keys.extend_from_slice(&key.to_le_bytes());
            self.numbers.extend_from_slice(&row.to_le_bytes()[..self.row_bytes]);
            self.rows += 1;
            if self.keys.len() == BLOCK * KEY {
                self.write_block()?;
            }
        }
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        self.directory.extend_from_slice(&self.keys[..KEY]);
        self.keys.append(&mut self.numbers);
        self.directory.extend_from_slice(&checksum(&self.keys).to_le_bytes());
        self.file.write_all(&self.keys)?;
        self.keys.clear();
        Ok(())
    }

    /// Bytes of memory that the directory takes.
    pub fn directory_bytes(table_rows: u64) -> usize {
        usize::try_from(table_rows.div_ceil(BLOCK as u64)).map_or(usize::MAX, |blocks| blocks.saturating_mul(ENTRY))
    }

    /// Completes the file, with the bytes of the included columns.
    ///
    /// # Errors
    /// If it cannot be written, or those bytes cannot be read.
    pub fn finish(mut self, description: &StoredDescription, included: impl Read) -> Result<W> {
        if !self.keys.is_empty() {
            self.write_block()?;
        }
        self.file.write_all(&self.directory)?;
        let (included, sums) = self.write_included(included)?;
        let description = serde_json::to_vec(description)?;
        let trailer = Trailer {
            rows: self.rows,
            row_bytes: self.row_bytes as u64,
            included,
            description: description.len() as u64,
            directory_sum: checksum(&self.directory),
            included_sum: checksum(&sums),
            description_sum: checksum(&description),
        };
        for part in [&sums[..], &description, &trailer.to_bytes()] {
            self.file.write_all(part)?;
        }
        self.file.flush()?;
        Ok(self.file)
    }

    /// Writes the included columns. Returns their bytes, and the checksums.
    fn write_included(&mut self, mut included: impl Read) -> Result<(u64, Vec<u8>)> {
        let (mut bytes, mut sums) = (0, Vec::new());
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            let read = included.by_ref().take(CHUNK as u64).read_to_end(&mut chunk)?;
            if read == 0 {
                return Ok((bytes, sums));
            }
            bytes += read as u64;
            sums.extend_from_slice(&checksum(&chunk).to_le_bytes());
            self.file.write_all(&chunk)?;
        }
    }
}
