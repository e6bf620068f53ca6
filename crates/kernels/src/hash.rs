//! The hash functions of `cuda/hash.cuh`, for the CPU's side of a join.

use overspill_machine::{Error, Result};

/// The largest fanout of one pass.
pub(crate) const MAX_BITS: u32 = 12;

/// How a key is hashed to 64 bits. Partitioning uses the top bits first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum HashFunction {
    /// One multiplication. The top bits of the product are the hash (paper 1, section 6.1).
    #[default]
    MultiplyShift = 0,
    /// The finalizer of MurmurHash3, for keys whose low bits carry little information.
    Murmur3 = 1,
    /// The key itself, for partitions in the order of keys.
    Identity = 2,
}

impl HashFunction {
    /// The hash of a key.
    pub fn hash(self, key: u64) -> u64 {
        match self {
            Self::MultiplyShift => key.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            Self::Murmur3 => {
                let key = (key ^ key >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
                let key = (key ^ key >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
                key ^ key >> 33
            }
            Self::Identity => key,
        }
    }
}

/// MurmurHash3 of 32 bits over the bytes of a word, lowest first: the hash of paper 4. Another seed gives an independent hash.
pub fn murmur3_word(word: u64, seed: u32) -> u32 {
    let mix = |hash: u32, word: u32| {
        let scrambled = word.wrapping_mul(0xCC9E_2D51).rotate_left(15).wrapping_mul(0x1B87_3593);
        (hash ^ scrambled).rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64)
    };
    let hash = mix(mix(seed, word as u32), (word >> 32) as u32) ^ 8;
    let hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    let hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}

/// The bits of the hash that choose the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Radix {
    bits: u32,
    shift: u32,
    hash: HashFunction,
    /// Keys are hashed by their distance from this one.
    smallest: u64,
}

/// Lowest bits of a key that no partition in key order is chosen by: keys that differ in them alone are seldom in different
/// pages (paper 3, section 4.3).
const IGNORED_BITS: u32 = 4;

impl Radix {
    /// Uses `bits` bits below the top `shift` bits, which earlier passes have used.
    ///
    /// # Errors
    /// If the fanout, 2 to the power of `bits`, is not between 2 and 4096, or the hash has fewer than `shift + bits` bits.
    pub fn new(bits: u32, shift: u32, hash: HashFunction) -> Result<Self> {
        if !(1..=MAX_BITS).contains(&bits) || shift + bits > 64 {
            return Err(Error::Invalid(format!(
                "a pass of {bits} radix bits below {shift} others: one pass takes 1 to {MAX_BITS} bits (a fanout of 2 to {}), all together 64",
                1 << MAX_BITS
            )));
        }
        Ok(Self { bits, shift, hash, smallest: 0 })
    }

    /// Up to 2 to the power of `most_bits` partitions in the order of keys, for keys from `smallest` to `largest`: by the bits of a
    /// key's distance from the smallest, from the highest that differs downwards. These decide the way through an index, so
    /// that keys of a partition are near each other there (paper 3, section 4.2). Keys beyond the range fall into any partition.
    ///
    /// # Errors
    /// If the fanout is not between 2 and 4096.
    pub fn in_key_order(most_bits: u32, smallest: u64, largest: u64) -> Result<Self> {
        let differing = u64::BITS - largest.saturating_sub(smallest).leading_zeros();
        let bits = most_bits.min(differing.saturating_sub(IGNORED_BITS).max(1));
        let shift = u64::BITS - differing.max(bits + IGNORED_BITS);
        Ok(Self { smallest, ..Self::new(bits, shift, HashFunction::Identity)? })
    }

    pub(crate) fn smallest(self) -> u64 {
        self.smallest
    }

    /// The number of bits that choose the partition.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// The number of higher bits, which earlier passes have used.
    pub fn shift(self) -> u32 {
        self.shift
    }

    pub(crate) fn hash_function(self) -> HashFunction {
        self.hash
    }

    /// The number of partitions.
    pub fn fanout(self) -> u32 {
        1 << self.bits
    }

    /// The partition of a key; keys of 4 bytes are widened with zeros.
    pub fn partition(self, key: u64) -> u32 {
        ((self.hash.hash(key.wrapping_sub(self.smallest)) << self.shift) >> (64 - self.bits)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_in_key_order_follow_the_keys() {
        for (smallest, largest) in [(0, 5), (7, 7), (100, 300), (1 << 63, u64::MAX), (0, u64::MAX), (3, 1 << 20)] {
            let radix = Radix::in_key_order(11, smallest, largest).unwrap();
            let width = largest - smallest;
            let keys: Vec<u64> = (0..1000).map(|part| smallest + (u128::from(width) * part / 999) as u64).collect();
            let partitions: Vec<u32> = keys.iter().map(|key| radix.partition(*key)).collect();
            assert!(partitions.is_sorted() && partitions[0] == 0, "{smallest} to {largest}");
            // At least half of the partitions are used where keys differ in enough bits.
            let used = partitions.last().unwrap() + 1;
            assert!(width < 16 || used > radix.fanout() / 2, "{smallest} to {largest}: {used} of {}", radix.fanout());
            // Keys that differ in the lowest bits alone are together.
            assert_eq!(radix.partition(smallest), radix.partition(smallest + 15.min(width)));
        }
        let error = Radix::in_key_order(13, 0, u64::MAX).unwrap_err().to_string();
        assert!(error.contains("13 radix bits"), "{error}");
    }
}
