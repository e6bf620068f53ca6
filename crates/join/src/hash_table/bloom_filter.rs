//! A Bloom filter over the keys of a hash table, for lookups that mostly find nothing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use overspill_machine::memory::PageVec;

use super::LOOKED_UP_TOGETHER;
use crate::error::Result;

/// Filter bits per key: about two of a hundred keys that are not in the table pass.
const BITS_PER_KEY: usize = 12;

/// Maximum keys of a filter. With more, too many absent keys share the 32-bit hash of a key in the table.
pub(super) const MAX_KEYS: usize = 1 << 27;

/// Spreads the bits of a hash over the upper bits of the product. The upper bits of the hash already select the word.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bits of the hash that select a bit of the word.
const BIT_BITS: u32 = u64::BITS.ilog2();
/// Bits that a key sets.
const SET_BITS: u32 = 3;

/// A Bloom filter that stores all bits of a key in one word (Putze, Sanders and Singler, 2007), so that a lookup costs one
/// read. It is 15 to 20 times smaller than its hash table, and often fits a core's own cache when the table does not.
#[derive(Debug)]
pub(crate) struct BloomFilter {
    words: PageVec<u64>,
}

impl BloomFilter {
    /// Bytes of a filter for `keys` keys.
    pub fn bytes(keys: usize) -> usize {
        Self::words(keys) * size_of::<u64>()
    }

    fn words(keys: usize) -> usize {
        (keys * BITS_PER_KEY).div_ceil(u64::BITS as usize).max(1)
    }

    /// Builds a filter from the hashes of its keys, of at most `keys` keys.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn of(keys: usize, hashes: impl Iterator<Item = u32>) -> Result<Self> {
        let mut words = PageVec::<u64>::zeroed(Self::words(keys))?;
        let count = words.len();
        for hash in hashes {
            words[word_of(hash, count)] |= bits_of(hash);
        }
        Ok(Self { words })
    }

    /// Which of at most [`LOOKED_UP_TOGETHER`] keys pass: all keys in the table, and few others.
    #[inline(always)]
    pub fn passing(&self, hashes: impl Iterator<Item = u32>) -> Passing {
        Passing::those(hashes.map(|hash| self.contains(hash)))
    }

    /// Whether a key with this hash passes.
    #[inline(always)]
    pub fn contains(&self, hash: u32) -> bool {
        let words: &[u64] = &self.words;
        let bits = bits_of(hash);
        words[word_of(hash, words.len())] & bits == bits
    }
}

/// The numbers of the keys that pass.
#[derive(Debug)]
pub(crate) struct Passing {
    numbers: [u16; LOOKED_UP_TOGETHER],
    count: usize,
}

impl Passing {
    /// The keys that pass among the first [`LOOKED_UP_TOGETHER`]; `pass` has a flag for each key.
    #[inline(always)]
    pub fn those(pass: impl Iterator<Item = bool>) -> Self {
        let mut numbers = [0; LOOKED_UP_TOGETHER];
        let mut count = 0;
        for (number, passes) in pass.take(LOOKED_UP_TOGETHER).enumerate() {
            numbers[count] = number as u16;
            count += usize::from(passes);
        }
        Self { numbers, count }
    }

    /// The first `keys` keys, all passing.
    pub fn all(keys: usize) -> Self {
        let mut numbers = [0; LOOKED_UP_TOGETHER];
        numbers.iter_mut().zip(0..).for_each(|(number, next)| *number = next);
        Self { numbers, count: keys.min(LOOKED_UP_TOGETHER) }
    }

    /// The numbers of the keys, ascending.
    #[inline(always)]
    pub fn numbers(&self) -> impl Iterator<Item = usize> + Clone {
        self.numbers[..self.count].iter().map(|number| usize::from(*number))
    }
}

/// The word of a hash among `words` words: the hash as a share of the hash range.
#[inline(always)]
fn word_of(hash: u32, words: usize) -> usize {
    ((u64::from(hash) * words as u64) >> 32) as usize
}

#[inline(always)]
fn bits_of(hash: u32) -> u64 {
    let spread = u64::from(hash).wrapping_mul(MULTIPLIER) >> (u64::BITS - SET_BITS * BIT_BITS);
    (0..SET_BITS).fold(0, |bits, bit| bits | 1 << (spread >> (bit * BIT_BITS) & (u64::from(u64::BITS) - 1)))
}

/// A filter that one of the looking-up threads builds once it pays; the other threads do without until it is ready.
#[derive(Debug, Default)]
pub(super) struct LazyFilter {
    filter: OnceLock<BloomFilter>,
    is_claimed: AtomicBool,
    /// Keys looked up by all threads.
    looked_up: AtomicUsize,
}

impl LazyFilter {
    /// The filter, if it has been built.
    pub fn get(&self) -> Option<&BloomFilter> {
        self.filter.get()
    }

    /// Records lookups of a thread with this rate.
    pub fn note(&self, rate: &mut MatchRate, looked_up: usize, found: usize) {
        rate.note(looked_up, found);
        self.looked_up.fetch_add(looked_up, Ordering::Relaxed);
    }

    /// Whether a filter of `keys` keys pays. Building it costs about as much as `keys` lookups, so it pays only after that
    /// many.
    pub fn pays(&self, keys: usize) -> bool {
        self.filter.get().is_some() || self.looked_up.load(Ordering::Relaxed) >= keys
    }

    /// The filter. Builds it with `make`, at most once, if there is none. `None` if `make` fails, or if another thread is
    /// building it.
    pub fn get_or_make(&self, make: impl FnOnce() -> Option<BloomFilter>) -> Option<&BloomFilter> {
        if let Some(filter) = self.filter.get() {
            return Some(filter);
        }
        if self.is_claimed.swap(true, Ordering::Relaxed) {
            return None;
        }
        let filter = make()?;
        Some(self.filter.get_or_init(|| filter))
    }
}

/// The share of a thread's recent lookups that matched.
#[derive(Debug, Default)]
pub(super) struct MatchRate {
    /// Lookups since the rate was last updated.
    looked_up: usize,
    found: usize,
    is_low: bool,
}

/// Lookups after which the rate is updated.
const JUDGED_TOGETHER: usize = 32 << 10;
/// The rate is low if at most one in `LOW_RATE` keys matches: a filter costs about a fifth of the lookup that it saves.
const LOW_RATE: usize = 3;

impl MatchRate {
    fn note(&mut self, looked_up: usize, found: usize) {
        self.looked_up += looked_up;
        self.found += found;
        if self.looked_up >= JUDGED_TOGETHER {
            self.is_low = self.found * LOW_RATE <= self.looked_up;
            (self.looked_up, self.found) = (0, 0);
        }
    }

    /// Whether at most one in `LOW_RATE` of the recently looked up keys matched.
    pub fn is_low(&self) -> bool {
        self.is_low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Word;

    #[test]
    fn keys_that_are_there_pass_and_few_others_do() {
        let hash = |key: usize| (key as u64).hash() as u32;
        for count in [0, 1, 7, 1_000, 300_000] {
            let filter = BloomFilter::of(count, (0..count).map(hash)).unwrap();
            assert_eq!(filter.words.bytes(), BloomFilter::bytes(count));
            let passing = |keys: std::ops::Range<usize>| -> usize {
                let all: Vec<_> = keys.collect();
                all.chunks(LOOKED_UP_TOGETHER)
                    .map(|keys| {
                        let passing = filter.passing(keys.iter().copied().map(hash));
                        assert!(passing.numbers().is_sorted() && passing.numbers().all(|number| number < keys.len()));
                        passing.numbers().count()
                    })
                    .sum()
            };
            assert_eq!(passing(0..count), count);
            let others = passing(1_000_000..1_100_000);
            assert!(others < 3_500, "{others} of 100000 keys that are not among {count} pass");
        }
        assert_eq!(Passing::all(3).numbers().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn one_thread_makes_the_filter_and_all_have_it() {
        let filter = LazyFilter::default();
        let inner = |_: &BloomFilter| panic!("another thread is at it");
        let made = filter.get_or_make(|| {
            assert!(filter.get_or_make(|| unreachable!("it is made once")).map(inner).is_none());
            BloomFilter::of(1, [7].into_iter()).ok()
        });
        assert!(made.is_some());
        assert!(filter.get_or_make(|| unreachable!("it is there")).is_some());
        let failed = LazyFilter::default();
        assert!(failed.get_or_make(|| None).is_none());
        assert!(failed.get_or_make(|| unreachable!("it is not tried again")).is_none());
    }

    #[test]
    fn the_rate_is_judged_by_what_was_looked_up_last() {
        let (filter, mut rate) = (LazyFilter::default(), MatchRate::default());
        filter.note(&mut rate, JUDGED_TOGETHER - 1, 0);
        assert!(!rate.is_low(), "too few to judge");
        filter.note(&mut rate, 1, 1);
        assert!(rate.is_low() && filter.pays(JUDGED_TOGETHER) && !filter.pays(JUDGED_TOGETHER + 1));
        // Lookups by other threads count as well, but not their matches.
        let mut other = MatchRate::default();
        filter.note(&mut other, JUDGED_TOGETHER, JUDGED_TOGETHER);
        assert!(rate.is_low() && !other.is_low() && filter.pays(2 * JUDGED_TOGETHER));
        filter.note(&mut rate, JUDGED_TOGETHER, JUDGED_TOGETHER / 2);
        assert!(!rate.is_low());
        filter.note(&mut rate, JUDGED_TOGETHER, JUDGED_TOGETHER / 3);
        assert!(rate.is_low());
        // A filter that exists costs nothing to build.
        assert!(filter.get_or_make(|| BloomFilter::of(1, [7].into_iter()).ok()).is_some() && filter.pays(usize::MAX));
    }
}
