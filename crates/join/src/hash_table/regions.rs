//! Divides a table into contiguous memory regions, and maps keys to them.

use super::deal::HASH_BITS;
use crate::keys::Word;
use crate::radix::RadixPartitioner;

/// How keys are ordered in the memory of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableOrder {
    /// By the lower half of their hashes.
    Hash,
    /// By key, in a range of keys. Keys outside the range are not in the table.
    Key {
        /// The first key of the range.
        smallest: u64,
        /// Number of keys in the range.
        range: u64,
    },
}

/// A table divided into consecutive memory regions; their number is a power of two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Regions {
    order: TableOrder,
    shift: u32,
}

impl Regions {
    pub(super) fn new(order: TableOrder, bits: u32) -> Self {
        let all = match order {
            TableOrder::Hash => HASH_BITS,
            TableOrder::Key { range, .. } => u64::BITS - range.saturating_sub(1).leading_zeros(),
        };
        Self { order, shift: all.saturating_sub(bits) }
    }

    /// Adds rows to the partitions of the regions that they probe; the first column is the keys. A key that is not in the table
    /// maps to any region, or to one that does not exist.
    pub(crate) fn partition<const COLUMNS: usize>(
        self,
        rows: [&[u64]; COLUMNS],
        partitioner: &mut RadixPartitioner<COLUMNS>,
    ) {
        // Branches here, and not for each key.
        match self.order {
            TableOrder::Hash => partitioner.push(rows, move |key| self.by_hash(key)),
            TableOrder::Key { smallest, .. } => partitioner.push(rows, move |key| self.by_key(key, smallest)),
        }
    }

    #[inline(always)]
    fn by_hash(self, key: u64) -> usize {
        (u64::from(key.hash() as u32) >> self.shift) as usize
    }

    #[inline(always)]
    fn by_key(self, key: u64, smallest: u64) -> usize {
        (key.wrapping_sub(smallest) >> self.shift) as usize
    }
}
