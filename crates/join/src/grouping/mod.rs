//! Numbers the groups of an aggregate.
//!
//! The key columns of a row are packed into words of 64 bits. A hash table has the number of each key that it has seen, and the keys lie
//! in the order of their numbers, which is that of their first rows:
//!
//! ```text
//! rows        20  10  20  30             numbers   0  1  0  2
//! keys      | 20 | 10 | 30 |
//! slots     |  -   10 1   -   30 2   20 0   -  |
//! ```

mod codec;
mod split;
mod table;

#[cfg(test)]
mod tests;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

use crate::error::Result;
use codec::GroupCodec;
pub use split::{HashSplit, PartitionedRows};
use table::GroupTable;

/// The groups of rows, by key columns of fixed width.
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
}

macro_rules! with_table {
    ($groups:expr, $table:ident => $work:expr) => {
        match $groups {
            Table::Word64($table) => $work,
            Table::Word128($table) => $work,
            Table::Word192($table) => $work,
        }
    };
}

impl Groups {
    /// No groups yet, of key columns of these types, each of which may have nulls or not.
    ///
    /// Returns `None` without columns, and if a type is not an integer, a truth value, a decimal of up to 128 bits, a date, a time, a timestamp or
    /// a duration, or if their values and a bit for each column with nulls take more than 192 bits.
    pub fn try_new(columns: &[(DataType, bool)]) -> Option<Self> {
        let codec = GroupCodec::try_new(columns)?;
        let table = match codec.bits() {
            0..=64 => Table::Word64(GroupTable::new()),
            65..=128 => Table::Word128(GroupTable::new()),
            129..=192 => Table::Word192(GroupTable::new()),
            _ => return None,
        };
        Some(Self { codec, table })
    }

    /// Appends the number of each row's group to `numbers`. `columns` have the types that the groups were created for, and one length.
    ///
    /// # Errors
    /// If there are more than 2^32 - 2 groups.
    pub fn number(&mut self, columns: &[ArrayRef], numbers: &mut Vec<usize>) -> Result<()> {
        let nulls = self.codec.nulls(columns);
        match &mut self.table {
            Table::Word64(table) => table.number(&self.codec.words(columns), nulls.as_ref(), numbers),
            Table::Word128(table) => table.number(&self.codec.pack(columns), nulls.as_ref(), numbers),
            Table::Word192(table) => table.number(&self.codec.pack(columns), nulls.as_ref(), numbers),
        }
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        with_table!(&self.table, table => table.len())
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        with_table!(&self.table, table => table.bytes())
    }

    /// Returns the key columns of all groups, in the order of their numbers, and forgets the groups. The memory is kept for others.
    ///
    /// # Errors
    /// Arrow's, if a column cannot be made.
    pub fn take(&mut self) -> Result<Vec<ArrayRef>> {
        let columns = with_table!(&self.table, table => self.codec.unpack(table.keys(), table.null()))?;
        debug_assert!(columns.iter().all(|column| column.len() == self.len()));
        with_table!(&mut self.table, table => table.clear());
        Ok(columns)
    }
}
