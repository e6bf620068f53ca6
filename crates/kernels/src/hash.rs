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
        }
    }
}

/// The bits of the hash that choose the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Radix {
    bits: u32,
    shift: u32,
    hash: HashFunction,
}

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
        Ok(Self { bits, shift, hash })
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
        ((self.hash.hash(key) << self.shift) >> (64 - self.bits)) as u32
    }
}
