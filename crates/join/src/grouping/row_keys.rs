//! Keys of any length as bytes.

use foldhash::quality::FixedState;
use std::hash::BuildHasher;

/// The seed of the hash of keys. It differs from those of other partitions and tables.
const SEED: u64 = 0xBB67_AE85_84CA_A73B;

/// Keys that lie one after the other. Two keys are equal if and only if their bytes are equal.
#[derive(Debug, Default)]
pub(super) struct RowKeys {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
}

impl RowKeys {
    /// Keys of these lengths, whose bytes are zero.
    pub fn zeroed(lengths: &[usize]) -> Self {
        let mut end = 0;
        let ends: Vec<usize> = lengths
            .iter()
            .map(|length| {
                end += length;
                end
            })
            .collect();
        Self { bytes: vec![0; end], ends }
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Where a key begins.
    #[inline(always)]
    fn start(&self, key: usize) -> usize {
        key.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Where each key begins.
    pub fn starts(&self) -> Vec<usize> {
        (0..self.len()).map(|key| self.start(key)).collect()
    }

    #[inline(always)]
    pub fn get(&self, key: usize) -> &[u8] {
        &self.bytes[self.start(key)..self.ends[key]]
    }

    /// The bytes of all keys.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    #[inline(always)]
    pub fn hash(&self, key: usize) -> u64 {
        FixedState::with_seed(SEED).hash_one(self.get(key))
    }
}
