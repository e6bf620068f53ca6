//! The kinds of hash tables, and how large they are.

use overspill_machine::{Error, Result};

use crate::KeyWidth;

/// The kind of a hash table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// For at most `slots` unique keys starting at `smallest_key`.
    Perfect {
        /// The key of the first slot.
        smallest_key: u64,
        /// The number of keys in the range.
        slots: u64,
    },
    /// Open addressing, at most half full.
    LinearProbing,
    /// Stores each key once, with its values contiguous.
    MultiValue,
}

impl TableKind {
    /// Bytes of the arrays of a table for `capacity` tuples: slots, and for a multi-value table claims, keys, starts, counts
    /// of the values filled in, and values. All are multiples of 8.
    pub(super) fn arrays(self, key: KeyWidth, capacity: u64) -> Result<[u64; 6]> {
        let slot_count = slot_count(capacity)?;
        // A key range may be as wide as the key type. An overflowing product would give a large table a small buffer.
        let bytes_of = |count: u64, width: u64| {
            let bytes = count.checked_mul(width);
            bytes.ok_or_else(|| Error::Invalid(format!("a hash table of {count} slots of {width} bytes")))
        };
        let only = |bytes| [bytes, 0, 0, 0, 0, 0];
        Ok(match (self, key) {
            (Self::Perfect { slots, .. }, _) => only(bytes_of(slots, 8)?),
            (Self::LinearProbing, KeyWidth::Four) => only(bytes_of(slot_count, 8)?),
            (Self::LinearProbing, KeyWidth::Eight) => only(bytes_of(slot_count, 16)?),
            (Self::MultiValue, _) => [
                0,
                bytes_of(slot_count, 8)?,
                bytes_of(slot_count, key.bytes())?,
                bytes_of(slot_count + 1, 8)?,
                bytes_of(slot_count, 4)?,
                bytes_of(capacity, 8)?,
            ],
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Perfect { .. } => "perfect",
            Self::LinearProbing => "linear_probing",
            Self::MultiValue => "multi_value",
        }
    }
}

/// Slots of a table for `capacity` tuples, for kinds that size their slots by the capacity.
pub(super) fn slot_count(capacity: u64) -> Result<u64> {
    let count = capacity.max(1).checked_mul(2).and_then(u64::checked_next_power_of_two);
    count.ok_or_else(|| Error::Invalid(format!("a hash table of {capacity} tuples")))
}
