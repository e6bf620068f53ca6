//! Fixed-width words that hold a packed key.

/// A packed join key of fixed width.
pub trait Word: Copy + Eq + Default + Send + Sync + 'static {
    /// A 64-bit hash, all of whose bits depend on all bits of the key.
    ///
    /// The seed differs from those of DataFusion's repartitioning, so that rows which share a partition there spread
    /// over all partitions here.
    fn hash(self) -> u64;
}

const MULTIPLIER: u64 = 0x9E6C_63D0_676A_9A99;
const SEED: u64 = 0xD1B5_4A32_D192_ED03;

/// Multiplies to 128 bits and folds the halves together: one multiplication mixes all bits of both factors.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Word for u64 {
    #[inline(always)]
    fn hash(self) -> u64 {
        let once = fold(self ^ SEED, MULTIPLIER);
        // The fold alone leaves regularities in the top bits for keys that differ in few bits.
        once ^ (once >> 32).wrapping_mul(MULTIPLIER)
    }
}

/// Two words; not `u128`, whose alignment would pad the entries of a hash table.
impl Word for [u64; 2] {
    #[inline(always)]
    fn hash(self) -> u64 {
        (fold(self[0] ^ SEED, MULTIPLIER) ^ self[1]).hash()
    }
}
