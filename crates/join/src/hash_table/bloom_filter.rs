//! A Bloom filter over the keys of a hash table, for lookups most of which find nothing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::matches::LOOKED_UP_TOGETHER;
use crate::error::Result;
use crate::memory::PageVec;

/// Bits of a key's share of the filter: about two keys of a hundred that are not there pass.
const BITS_PER_KEY: usize = 12;

/// Of more keys, too many that are not there have the hash of one that is, of which 32 bits are looked at.
pub(super) const MAX_KEYS: usize = 1 << 27;

/// Spreads the bits of a hash, the upper ones of which have told the word, over the upper bits of the product.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// A bit of a word is told by so many bits of the hash.
const BIT_BITS: u32 = u64::BITS.ilog2();
/// Bits that a key sets.
const SET_BITS: u32 = 3;

/// A Bloom filter all of whose bits for a key lie in one word (Putze, Sanders and Singler, 2007), so that a lookup costs one
/// read. It is about a fifteenth to a twentieth of the size of the hash table that it stands before, and often fits a core's
/// own cache where that does not.
#[derive(Debug)]
pub(crate) struct BloomFilter {
    words: PageVec<u64>,
}

impl BloomFilter {
    /// The bytes of a filter for so many keys.
    pub fn bytes(keys: usize) -> usize {
        Self::words(keys) * size_of::<u64>()
    }

    fn words(keys: usize) -> usize {
        (keys * BITS_PER_KEY).div_ceil(u64::BITS as usize).max(1)
    }

    /// A filter that lets keys of these hashes pass, of which there are at most so many.
    ///
    /// # Errors
    /// If the system does not give the memory.
    pub fn of(keys: usize, hashes: impl Iterator<Item = u32>) -> Result<Self> {
        let mut words = PageVec::<u64>::zeroed(Self::words(keys))?;
        let count = words.len();
        for hash in hashes {
            words[word_of(hash, count)] |= bits_of(hash);
        }
        Ok(Self { words })
    }

    /// Which of at most [`LOOKED_UP_TOGETHER`] keys pass: all that are there, and few others.
    #[inline(always)]
    pub fn passing(&self, hashes: impl Iterator<Item = u32>) -> Passing {
        let words: &[u64] = &self.words;
        Passing::those(hashes.map(|hash| {
            let bits = bits_of(hash);
            words[word_of(hash, words.len())] & bits == bits
        }))
    }
}

/// The keys that pass, by their numbers.
#[derive(Debug)]
pub(crate) struct Passing {
    numbers: [u16; LOOKED_UP_TOGETHER],
    count: usize,
}

impl Passing {
    /// Those of the first [`LOOKED_UP_TOGETHER`] keys that pass, of all of which it is told whether they do.
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

    /// The first so many keys, all of them.
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

/// The word of a hash among so many: its hash tells the place, as a share of all.
#[inline(always)]
fn word_of(hash: u32, words: usize) -> usize {
    ((u64::from(hash) * words as u64) >> 32) as usize
}

#[inline(always)]
fn bits_of(hash: u32) -> u64 {
    let spread = u64::from(hash).wrapping_mul(MULTIPLIER) >> (u64::BITS - SET_BITS * BIT_BITS);
    (0..SET_BITS).fold(0, |bits, bit| bits | 1 << (spread >> (bit * BIT_BITS) & (u64::from(u64::BITS) - 1)))
}

/// A filter that is made when it is first worth it, by one of the threads that look up; the others do without until it is
/// there.
#[derive(Debug, Default)]
pub(super) struct LazyFilter {
    filter: OnceLock<BloomFilter>,
    is_claimed: AtomicBool,
    /// Keys that all threads have looked up.
    looked_up: AtomicUsize,
}

impl LazyFilter {
    /// The filter, if it has been made.
    pub fn get(&self) -> Option<&BloomFilter> {
        self.filter.get()
    }

    /// Takes note of keys that were looked up by a thread with this rate.
    pub fn note(&self, rate: &mut MatchRate, looked_up: usize, found: usize) {
        rate.note(looked_up, found);
        self.looked_up.fetch_add(looked_up, Ordering::Relaxed);
    }

    /// Whether a filter of so many keys pays. Making it takes about as long as so many lookups: until as many have been done,
    /// nobody knows whether more will come.
    pub fn pays(&self, keys: usize) -> bool {
        self.filter.get().is_some() || self.looked_up.load(Ordering::Relaxed) >= keys
    }

    /// The filter, or what `make` makes, which is called once at most. `None` if it fails, or if another thread is at it.
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

/// How many of the keys that a thread looks up are there.
#[derive(Debug, Default)]
pub(super) struct MatchRate {
    /// Since it was last judged.
    looked_up: usize,
    found: usize,
    is_low: bool,
}

/// Keys after which the rate is judged anew.
const JUDGED_TOGETHER: usize = 32 << 10;
/// It is low if of so many keys no more than one is there: a filter costs about a fifth of the lookup that it saves.
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

    /// Whether few of the keys looked up last were there.
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
        // What other threads have looked up counts as well, but not what they have found.
        let mut other = MatchRate::default();
        filter.note(&mut other, JUDGED_TOGETHER, JUDGED_TOGETHER);
        assert!(rate.is_low() && !other.is_low() && filter.pays(2 * JUDGED_TOGETHER));
        filter.note(&mut rate, JUDGED_TOGETHER, JUDGED_TOGETHER / 2);
        assert!(!rate.is_low());
        filter.note(&mut rate, JUDGED_TOGETHER, JUDGED_TOGETHER / 3);
        assert!(rate.is_low());
        // One that is there costs nothing to be made.
        assert!(filter.get_or_make(|| BloomFilter::of(1, [7].into_iter()).ok()).is_some() && filter.pays(usize::MAX));
    }
}
