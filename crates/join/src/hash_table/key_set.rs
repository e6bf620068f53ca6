//! The keys of a hash table without their rows.

use arrow::buffer::BooleanBuffer;
use overspill_machine::memory::PageVec;

use super::bloom_filter::{BloomFilter, MAX_KEYS};
use crate::error::Result;
use crate::keys::{KeyData, Keys, Word};

/// Keys up to which a filter has room for [`ROOMY`] times as many, so that fewer others pass: it still fits a core's own cache.
const FEW_KEYS: usize = 64 << 10;
/// See [`FEW_KEYS`].
const ROOMY: usize = 3;

/// Which keys a hash table has, 10 to 100 times smaller than the table: for rows that are dropped before they are brought to
/// it.
#[derive(Debug)]
pub(crate) enum KeySet {
    /// Words from `smallest` on, `length` of them, all with a row.
    Range { smallest: u64, length: u64 },
    /// A bit for each word of a dense range, then a bit that is not set.
    Bits { smallest: u64, length: u64, bits: PageVec<u64> },
    /// About two of a hundred keys without a row are in it as well.
    Hashes(BloomFilter),
}

impl KeySet {
    /// The words from `smallest` on whose slots are `taken`.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn of_slots(smallest: u64, taken: impl ExactSizeIterator<Item = bool>) -> Result<Self> {
        let length = taken.len();
        let mut bits = PageVec::<u64>::zeroed(length / u64::BITS as usize + 1)?;
        let mut missing = false;
        for (slot, is_taken) in taken.enumerate() {
            bits[slot / 64] |= u64::from(is_taken) << (slot % 64);
            missing |= !is_taken;
        }
        let length = length as u64;
        Ok(if missing { Self::Bits { smallest, length, bits } } else { Self::Range { smallest, length } })
    }

    /// Bytes of a set of hashes.
    pub fn bytes_of_hashes(keys: usize) -> usize {
        BloomFilter::bytes(roomy(keys))
    }

    /// The set of these hashes, of at most `keys` keys; `None` if there are too many for a filter.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn of_hashes(keys: usize, hashes: impl Iterator<Item = u32>) -> Result<Option<Self>> {
        (keys <= MAX_KEYS).then(|| BloomFilter::of(roomy(keys), hashes).map(Self::Hashes)).transpose()
    }

    /// The hashes of the words of a dense range; `None` if the set is one of hashes.
    pub fn hashes_of_words(&self) -> Option<Vec<u32>> {
        let hash = |word: u64| word.hash() as u32;
        match self {
            Self::Range { smallest, length } => {
                Some((0..*length).map(|slot| hash(smallest.wrapping_add(slot))).collect())
            }
            Self::Bits { smallest, length, bits } => {
                let slots = (0..*length).filter(|slot| bits[(slot / 64) as usize] >> (slot % 64) & 1 == 1);
                Some(slots.map(|slot| hash(smallest.wrapping_add(slot))).collect())
            }
            Self::Hashes(_) => None,
        }
    }

    /// The rows whose keys are in the set, of the codec of the table's keys. A key that is not in the table may be in the set;
    /// a key that is in the table always is.
    pub fn members(&self, keys: &Keys) -> BooleanBuffer {
        let members = match (self, &keys.data) {
            (Self::Range { smallest, length }, KeyData::Word64(words)) => {
                BooleanBuffer::collect_bool(words.len(), |row| words[row].wrapping_sub(*smallest) < *length)
            }
            (Self::Bits { smallest, length, bits }, KeyData::Word64(words)) => {
                let bits: &[u64] = bits;
                BooleanBuffer::collect_bool(words.len(), |row| {
                    // Words beyond the range have the bit after it.
                    let slot = words[row].wrapping_sub(*smallest).min(*length);
                    bits[(slot / 64) as usize] >> (slot % 64) & 1 == 1
                })
            }
            (Self::Hashes(filter), KeyData::Word64(words)) => {
                BooleanBuffer::collect_bool(words.len(), |row| filter.contains(words[row].hash() as u32))
            }
            (Self::Hashes(filter), KeyData::Word128(words)) => {
                BooleanBuffer::collect_bool(words.len(), |row| filter.contains(words[row].hash() as u32))
            }
            (Self::Hashes(filter), KeyData::Rows(keys)) => {
                // Tables of bytes have the hashes of the keys as words.
                let hashes = keys.hashes();
                BooleanBuffer::collect_bool(hashes.len(), |row| filter.contains(hashes[row].hash() as u32))
            }
            (Self::Range { .. } | Self::Bits { .. }, _) => unreachable!("both sides of a join share one key codec"),
        };
        match &keys.matchable {
            Some(matchable) => &members & matchable.inner(),
            None => members,
        }
    }
}

/// The keys for which a filter of this number of keys has room.
fn roomy(keys: usize) -> usize {
    if keys <= FEW_KEYS { keys * ROOMY } else { keys }
}
