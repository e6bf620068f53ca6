//! Blocks: compressed record batches.

mod layout;
mod read;
mod sections;
mod write;

#[cfg(test)]
mod tests;

use std::ops::Range;

use arrow::array::{RecordBatch, RecordBatchOptions, make_array};
use arrow::datatypes::SchemaRef;

use crate::checksum::{checksum, seal};
use crate::error::{Error, Result};
use crate::format::VERSION;
use sections::{Reader, Scratches, Writer};

const MAGIC: [u8; 2] = *b"OB";

/// The number of words of flags.
const FLAGS: Range<usize> = 4..8;

const ROWS: Range<usize> = 8..16;

/// The bytes of the block.
const LENGTH: Range<usize> = 16..24;

const CHECKSUM: Range<usize> = 24..32;

/// Bytes before the arrays.
const HEADER: usize = CHECKSUM.end;

/// Compresses record batches of one schema, each to a block of its own.
///
/// Integers, dates, times, decimals, codes of dictionaries, lengths of texts and bitmaps are cascaded; bytes and floating-point numbers are
/// compressed by lz4. A block has what its batch shows: of slices, views and dictionaries no more than that, and under nulls nothing.
#[derive(Debug, Default)]
pub struct BlockWriter {
    sections: Writer,
}

impl BlockWriter {
    /// One that compresses nothing, for where bytes are cheap. [`BlockReader`] reads its blocks like all others.
    pub fn plain() -> Self {
        Self { sections: Writer::plain() }
    }

    /// Compresses a batch. `O(n)`. The block is overwritten by the next.
    ///
    /// # Errors
    /// If an array is larger than the format can describe.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<&[u8]> {
        self.sections.begin();
        let [magic, more] = MAGIC;
        self.sections.word(u64::from_le_bytes([magic, more, VERSION, 0, 0, 0, 0, 0]));
        self.sections.word(batch.num_rows() as u64);
        self.sections.word(0);
        self.sections.word(0);
        for column in batch.columns() {
            self.sections.array(column.as_ref())?;
        }
        let flags = self.sections.finish();
        self.sections.out[FLAGS].copy_from_slice(&flags.to_le_bytes());
        let length = self.sections.out.len() as u64;
        self.sections.out[LENGTH].copy_from_slice(&length.to_le_bytes());
        seal(&mut self.sections.out, &CHECKSUM);
        Ok(&self.sections.out)
    }
}

/// Decompresses the blocks of batches of one schema.
#[derive(Debug)]
pub struct BlockReader {
    schema: SchemaRef,
    scratches: Scratches,
}

impl BlockReader {
    /// A reader of blocks of batches with this schema.
    pub fn new(schema: SchemaRef) -> Self {
        Self { schema, scratches: Scratches::default() }
    }

    /// The bytes of the block that begins with `bytes`; `None` if they are too few to say. `O(1)`.
    ///
    /// # Errors
    /// If no block begins so, or one of another version.
    pub fn length(bytes: &[u8]) -> Result<Option<usize>> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        if header[..2] != MAGIC {
            return Err(Error::Foreign(bytes.len()));
        }
        if header[2] != VERSION {
            return Err(Error::Version { found: header[2] });
        }
        let length = header[LENGTH].try_into().map_or(0, u64::from_le_bytes);
        let length = usize::try_from(length).ok().filter(|length| *length >= HEADER && length.is_multiple_of(8));
        length.map(Some).ok_or(Error::Damaged("a block has an impossible length"))
    }

    /// Decompresses a block. `O(n)`.
    ///
    /// # Errors
    /// If the bytes are no block, or one of another schema or version, or have changed. Whatever they are, the arrays are valid.
    pub fn read(&mut self, block: &[u8]) -> Result<RecordBatch> {
        if Self::length(block)?.ok_or(Error::Foreign(block.len()))? != block.len() {
            return Err(Error::Damaged("a block has another length"));
        }
        let (header, rest) = block.split_at(HEADER);
        if checksum(block, &CHECKSUM).to_le_bytes() != block[CHECKSUM] {
            return Err(crate::format::WRONG_CHECKSUM);
        }
        let rows = header[ROWS].try_into().map_or(u64::MAX, u64::from_le_bytes);
        let rows = usize::try_from(rows).map_err(|_| Error::Damaged("it names more rows than memory can have"))?;
        let flags = header[FLAGS].try_into().map_or(u32::MAX, u32::from_le_bytes);
        let mut sections = Reader::new(&mut self.scratches, rest, flags)?;
        let fields = self.schema.fields().iter();
        let columns = fields.map(|field| Ok(make_array(sections.array(field.data_type(), rows)?)));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        if !sections.is_at_end() {
            return Err(Error::Damaged("it goes on after its last array"));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}
