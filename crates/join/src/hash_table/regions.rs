//! Which keys touch memory of a table that lies together.

use super::deal::HASH_BITS;
use crate::keys::Word;

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

    /// The region of a key; `None` for one that is not in the table.
    #[inline(always)]
    pub(crate) fn of(self, key: u64) -> Option<usize> {
        match self.order {
            TableOrder::Hash => Some((u64::from(key.hash() as u32) >> self.shift) as usize),
            TableOrder::Key { smallest, range } => {
                let slot = key.wrapping_sub(smallest);
                (slot < range).then_some((slot >> self.shift) as usize)
            }
        }
    }
}
