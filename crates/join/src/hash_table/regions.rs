//! Which keys touch memory of a table that lies together.

use super::deal::HASH_BITS;
use crate::keys::Word;
use crate::radix::RadixPartitioner;

/// How keys are spread over the memory of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableOrder {
    /// By the lower half of their hashes.
    Hash,
    /// By themselves, in a range of them; others are not there.
    Key {
        /// The first of the range.
        smallest: u64,
        /// How many keys it has.
        range: u64,
    },
}

/// A table cut into consecutive regions of its memory, two to the power of some bits.
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

    /// Adds rows, the first column of which are keys, to the partitions of the regions that they touch. A key that is not in the
    /// table touches one that there is not, or any.
    pub(crate) fn partition<const COLUMNS: usize>(
        self,
        rows: [&[u64]; COLUMNS],
        partitioner: &mut RadixPartitioner<COLUMNS>,
    ) {
        // Told apart here, and not for each key.
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
