//! Indexes in files.
//!
//! An index of rows that lie in files is a file itself. Its keys, with the number of each one's row, are in blocks of
//! [`BLOCK`] rows. A lookup reads a block for a key; the first keys of all blocks, which are looked up in memory by an
//! [`Index`](crate::Index) of any kind, tell which. Every byte is below a checksum that is compared when it is read, so that a
//! damaged file is refused and never answers.
//!
//! ```text
//!   magic │ block 0 │ block 1 │ … │ first key and checksum of each block │ included columns │ their checksums │ description │ trailer
//!            │                                                              │                                   │
//!            │                                                              └ a Parquet file, with rows as keys └ JSON
//!            └ 512 keys, 8 bytes each, then 512 row numbers, 4 bytes each (8 in a table of 2^32 rows or more)
//! ```
//!
//! An index may include columns. Their rows are in the order of keys, so that those of near keys lie together, and the place of a
//! key is the number of its row there. To this crate they are bytes, with a checksum for each 32 KiB.
//!
//! All numbers are little-endian. The trailer says where the parts are, and has their checksums, and one of itself.

mod description;
mod error;
mod included;
mod layout;
mod reader;
mod writer;

pub use description::{IncludedColumn, IndexedFile, StoredDescription};
pub use error::StoredError;
pub use included::IncludedColumns;
pub use layout::BLOCK;
pub use reader::{FoundPlaces, FoundRows, StoredIndex, read_description};
pub use writer::StoredIndexWriter;

#[cfg(test)]
mod tests;
