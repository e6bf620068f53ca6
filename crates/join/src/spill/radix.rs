//! Selects the bits of a hash that number a partition.

/// A range of consecutive bits of a 64-bit hash, counted from the top.
///
/// Partitioning a partition again uses the bits below those of the previous level; hash tables use the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Radix {
    shift: u32,
    bits: u32,
}

/// The lowest bits of a hash are reserved for hash tables, so that the rows of a partition still spread over a table.
const MAX_BITS: u32 = 40;

impl Radix {
    /// The radix for `fanout` partitions (a power of two) below the first `shift` bits, if enough bits are left.
    pub fn new(shift: u32, fanout: usize) -> Option<Self> {
        let bits = fanout.trailing_zeros();
        debug_assert!(fanout.is_power_of_two() && bits > 0);
        (shift + bits <= MAX_BITS).then_some(Self { shift, bits })
    }

    /// Whether enough bits are left below the first `shift` bits for any fanout up to `max_fanout`.
    pub fn has_bits(shift: u32, max_fanout: usize) -> bool {
        Self::new(shift, max_fanout).is_some()
    }

    /// The number of partitions.
    pub fn fanout(self) -> usize {
        1 << self.bits
    }

    /// Number of hash bits that are used up when a partition is partitioned again.
    pub fn used_bits(self) -> u32 {
        self.shift + self.bits
    }

    /// The partition of a hash.
    #[inline(always)]
    pub fn partition(self, hash: u64) -> usize {
        ((hash << self.shift) >> (64 - self.bits)) as usize
    }
}
