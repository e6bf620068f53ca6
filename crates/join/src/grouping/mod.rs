//! Numbers the groups of an aggregate.
//!
//! The key columns of a row are packed into up to three words of 64 bits, or, if they are long texts, into a row of bytes. A hash table has the number of each
//! key that it has seen, and the keys lie in the order of their numbers, which is that of their first rows:
//!
//! ```text
//! rows        20  10  20  30             numbers   0  1  0  2
//! keys      | 20 | 10 | 30 |
//! slots     |  -   10 1   -   30 2   20 0   -  |
//! ```

mod codec;
mod few;
mod numbers;
mod row_keys;
mod row_table;
mod scatter;
mod split;
mod table;
mod texts;

#[cfg(test)]
mod tests;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

use crate::error::Result;
use codec::GroupCodec;
pub use few::{FewSum, FewSums, MOST_FEW};
use row_table::RowTable;
pub use split::{HashSplit, PartitionedRows};
use table::GroupTable;

/// The groups of rows.
///
/// Nulls are equal to each other. `O(1)` per row.
#[derive(Debug)]
pub struct Groups {
    codec: GroupCodec,
    table: Table,
}

#[derive(Debug)]
enum Table {
    Word64(GroupTable<u64>),
    Word128(GroupTable<[u64; 2]>),
    Word192(GroupTable<[u64; 3]>),
    Rows(RowTable),
}

impl Groups {
    /// No groups yet, of key columns of these types, each of which may have nulls or not.
    ///
    /// Returns `None` without columns, and if a type is not an integer, a truth value, a decimal of up to 128 bits, a date, a time, a timestamp, a duration, text
    /// or bytes.
    pub fn try_new(columns: &[(DataType, bool)]) -> Option<Self> {
        Some(Self { codec: GroupCodec::try_new(columns)?, table: Table::Word64(GroupTable::new()) })
    }

    /// Appends the number of each row's group to `numbers`. `columns` have the types that the groups were created for, and one length.
    ///
    /// # Errors
    /// If there are more than 2^31 - 2 groups, or a column of texts gets too long for its type.
    pub fn number(&mut self, columns: &[ArrayRef], numbers: &mut Vec<usize>) -> Result<()> {
        if let Some(codec) = self.codec.widened(columns) {
            self.pack_by(codec)?;
        }
        let nulls = self.codec.nulls(columns);
        match &mut self.table {
            Table::Word64(table) => table.number(&self.codec.words(columns), nulls.as_ref(), numbers),
            Table::Word128(table) => table.number(&self.codec.pack(columns), nulls.as_ref(), numbers),
            Table::Word192(table) => table.number(&self.codec.pack(columns), nulls.as_ref(), numbers),
            Table::Rows(table) => table.number(&self.codec.rows(columns), numbers),
        }
    }

    /// Packs the keys of all groups anew.
    fn pack_by(&mut self, codec: GroupCodec) -> Result<()> {
        let (columns, null) = (self.columns()?, self.null());
        self.table = match codec.bits() {
            Some(0..=64) => Table::Word64(GroupTable::of(codec.pack(&columns), null)?),
            Some(65..=128) => Table::Word128(GroupTable::of(codec.pack(&columns), null)?),
            Some(_) => Table::Word192(GroupTable::of(codec.pack(&columns), null)?),
            None => Table::Rows(RowTable::of(codec.rows(&columns))?),
        };
        self.codec = codec;
        Ok(())
    }

    /// The key columns of all groups, in the order of their numbers.
    fn columns(&self) -> Result<Vec<ArrayRef>> {
        match &self.table {
            Table::Word64(table) => self.codec.unpack(table.keys(), table.null()),
            Table::Word128(table) => self.codec.unpack(table.keys(), table.null()),
            Table::Word192(table) => self.codec.unpack(table.keys(), table.null()),
            Table::Rows(table) => self.codec.columns_of(table.keys()),
        }
    }

    fn null(&self) -> Option<usize> {
        match &self.table {
            Table::Word64(table) => table.null(),
            Table::Word128(table) => table.null(),
            Table::Word192(table) => table.null(),
            Table::Rows(_) => None,
        }
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        match &self.table {
            Table::Word64(table) => table.len(),
            Table::Word128(table) => table.len(),
            Table::Word192(table) => table.len(),
            Table::Rows(table) => table.keys().len(),
        }
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        match &self.table {
            Table::Word64(table) => table.bytes(),
            Table::Word128(table) => table.bytes(),
            Table::Word192(table) => table.bytes(),
            Table::Rows(table) => table.bytes(),
        }
    }

    /// Bytes of the keys that do not fit words.
    pub fn row_bytes(&self) -> usize {
        match &self.table {
            Table::Rows(table) => table.keys().bytes().len(),
            Table::Word64(_) | Table::Word128(_) | Table::Word192(_) => 0,
        }
    }

    /// Returns the key columns of all groups, in the order of their numbers, and forgets the groups. The memory is kept for others.
    ///
    /// # Errors
    /// If a column of texts gets too long for its type.
    pub fn take(&mut self) -> Result<Vec<ArrayRef>> {
        let columns = self.columns()?;
        debug_assert!(columns.iter().all(|column| column.len() == self.len()));
        match &mut self.table {
            Table::Word64(table) => table.clear(),
            Table::Word128(table) => table.clear(),
            Table::Word192(table) => table.clear(),
            Table::Rows(table) => table.clear(),
        }
        Ok(columns)
    }
}
