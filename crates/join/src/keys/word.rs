//! Fixed-width words that hold a packed key.

use std::fmt;

use overspill_machine::memory::Plain;

/// A packed join key of fixed width.
pub(crate) trait Word: Copy + Ord + Default + Send + Sync + 'static {
    /// A 64-bit hash; each of its bits depends on all bits of the key.
    ///
    /// The seed differs from those of DataFusion's repartitioning, so that rows of one partition there spread over all
    /// partitions here.
    fn hash(self) -> u64;

    /// The key next to its row number, as hash tables store them: one cache miss reads both.
    type Entry: Copy + Default + Plain + Send + Sync + fmt::Debug;

    /// Creates an entry; `hash` is the lower half of the key's hash.
    fn entry(self, row: u32, hash: u32) -> Self::Entry;

    /// The key of an entry.
    fn of(entry: &Self::Entry) -> Self;

    /// The row of an entry.
    fn row_of(entry: &Self::Entry) -> u32;

    /// The hash of an entry.
    fn hash_of(entry: &Self::Entry) -> u32;
}

const MULTIPLIER: u64 = 0x9E6C_63D0_676A_9A99;
const SEED: u64 = 0xD1B5_4A32_D192_ED03;

/// Multiplies to 128 bits and XORs the halves: one multiplication mixes all bits of both factors.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Packs the row into the lower half and the hash into the upper half.
#[inline(always)]
fn place(row: u32, hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(row)
}

impl Word for u64 {
    #[inline(always)]
    fn hash(self) -> u64 {
        let once = fold(self ^ SEED, MULTIPLIER);
        // The fold alone leaves patterns in the top bits for keys that differ in few bits.
        once ^ (once >> 32).wrapping_mul(MULTIPLIER)
    }

    type Entry = [u64; 2];

    #[inline(always)]
    fn entry(self, row: u32, hash: u32) -> Self::Entry {
        [self, place(row, hash)]
    }

    #[inline(always)]
    fn of(entry: &Self::Entry) -> Self {
        entry[0]
    }

    #[inline(always)]
    fn row_of(entry: &Self::Entry) -> u32 {
        entry[1] as u32
    }

    #[inline(always)]
    fn hash_of(entry: &Self::Entry) -> u32 {
        (entry[1] >> 32) as u32
    }
}

/// Two words instead of `u128`, because its alignment would pad the entries of a hash table.
impl Word for [u64; 2] {
    #[inline(always)]
    fn hash(self) -> u64 {
        (fold(self[0] ^ SEED, MULTIPLIER) ^ self[1]).hash()
    }

    type Entry = [u64; 3];

    #[inline(always)]
    fn entry(self, row: u32, hash: u32) -> Self::Entry {
        [self[0], self[1], place(row, hash)]
    }

    #[inline(always)]
    fn of(entry: &Self::Entry) -> Self {
        [entry[0], entry[1]]
    }

    #[inline(always)]
    fn row_of(entry: &Self::Entry) -> u32 {
        entry[2] as u32
    }

    #[inline(always)]
    fn hash_of(entry: &Self::Entry) -> u32 {
        (entry[2] >> 32) as u32
    }
}

/// Three words, for the keys of groups.
impl Word for [u64; 3] {
    #[inline(always)]
    fn hash(self) -> u64 {
        [fold(self[0] ^ SEED, MULTIPLIER) ^ self[1], self[2]].hash()
    }

    type Entry = [u64; 4];

    #[inline(always)]
    fn entry(self, row: u32, hash: u32) -> Self::Entry {
        [self[0], self[1], self[2], place(row, hash)]
    }

    #[inline(always)]
    fn of(entry: &Self::Entry) -> Self {
        [entry[0], entry[1], entry[2]]
    }

    #[inline(always)]
    fn row_of(entry: &Self::Entry) -> u32 {
        entry[3] as u32
    }

    #[inline(always)]
    fn hash_of(entry: &Self::Entry) -> u32 {
        (entry[3] >> 32) as u32
    }
}
