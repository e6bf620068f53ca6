//! Ranks in nodes of sorted keys.

use overspill_machine::memory::CacheLine;

/// Number of keys in a line.
pub(crate) const LINE: usize = CacheLine::WORDS;

/// Number of keys that are smaller than `key`. Branches would be mispredicted every other time, so all keys are compared.
#[inline(always)]
pub(crate) fn rank(keys: &[u64], key: u64) -> usize {
    keys.iter().map(|other| u64::from(*other < key)).sum::<u64>() as usize
}

/// The keys of a line at `place` of sorted keys, of which the last line may be short.
#[inline(always)]
pub(crate) fn line_at(sorted: &[u64], place: usize) -> &[u64] {
    match sorted.get(place..place + LINE) {
        Some(line) => line,
        None => sorted.get(place..).unwrap_or_default(),
    }
}
