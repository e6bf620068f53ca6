//! Run-length and delta encoding of one chunk.

use crate::integer::Bits;

/// Integers of a chunk. Its last may be a part of one.
pub const CHUNK: usize = 4096;

/// Integers by which a decoder may write beyond the end of a chunk.
pub(crate) const SLACK: usize = 8;

/// An array of a chunk, with what a decoder may write beyond it.
pub(crate) type Array<T> = [T; CHUNK + SLACK];

/// Writes the value and the length of each run. Returns the number of runs. `O(n)`, without a branch for each value.
///
/// # Panics
/// If there are more values than a chunk has.
pub(crate) fn find_runs<T: Bits>(values: &[T], run_values: &mut Array<T>, lengths: &mut [u16; CHUNK]) -> usize {
    let Some((last, _)) = values.split_last() else { return 0 };
    let mut number = 0;
    // The ends of runs first: each is overwritten until it is right.
    for (place, pair) in values.windows(2).enumerate() {
        run_values[number] = pair[0];
        lengths[number] = place as u16 + 1;
        number += usize::from(pair[0] != pair[1]);
    }
    run_values[number] = *last;
    lengths[number] = values.len() as u16;
    number += 1;
    let mut begin = 0;
    for length in &mut lengths[..number] {
        (*length, begin) = (*length - begin, *length);
    }
    number
}

/// Writes each value as often as its length says. Returns whether these are `count` values. `O(count)`.
///
/// # Panics
/// If `count` is more than a chunk has, or there are not as many lengths as values.
pub(crate) fn repeat<T: Bits>(run_values: &[T], lengths: &[u16], count: usize, values: &mut Array<T>) -> bool {
    let mut place = 0;
    for (value, length) in run_values.iter().zip(lengths) {
        let length = usize::from(*length);
        if length > count - place {
            return false;
        }
        if length <= SLACK {
            values[place..place + SLACK].fill(*value);
        } else {
            values[place..place + length].fill(*value);
        }
        place += length;
    }
    place == count
}

/// Writes the difference of each value and the one before it, wrapping. The first value has none: it is returned, or 0 if there is no
/// value. `O(n)`.
pub(crate) fn differences<T: Bits>(values: &[T], differences: &mut Array<T>) -> T {
    for (pair, difference) in values.windows(2).zip(differences.iter_mut()) {
        *difference = pair[1].minus(pair[0]);
    }
    values.first().copied().unwrap_or_default()
}

/// Undoes [`differences`]: writes `first`, then the sum of each difference and the value before it. `O(n)`.
///
/// # Panics
/// If there are more differences than a chunk has values.
pub(crate) fn sums<T: Bits>(first: T, differences: &[T], values: &mut Array<T>) {
    values[0] = first;
    let mut sum = first;
    for (value, difference) in values[1..=differences.len()].iter_mut().zip(differences) {
        sum = sum.plus(*difference);
        *value = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layers_are_undone() {
        let values: Vec<u32> = vec![7, 7, 7, 2, 2, u32::MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
        let (mut run_values, mut lengths, mut again) = ([0; CHUNK + SLACK], [0; CHUNK], [0; CHUNK + SLACK]);
        let runs = find_runs(&values, &mut run_values, &mut lengths);
        assert_eq!((&run_values[..runs], &lengths[..runs]), (&[7, 2, u32::MAX, 0, 5][..], &[3, 2, 1, 12, 1][..]));
        assert!(repeat(&run_values[..runs], &lengths[..runs], values.len(), &mut again));
        assert_eq!(again[..values.len()], values);
        for wrong in [values.len() - 1, values.len() + 1] {
            assert!(!repeat(&run_values[..runs], &lengths[..runs], wrong, &mut again));
        }
        let mut steps = [0; CHUNK + SLACK];
        let first = differences(&values, &mut steps);
        sums(first, &steps[..values.len() - 1], &mut again);
        assert_eq!(again[..values.len()], values);
        assert_eq!((find_runs::<u8>(&[], &mut [0; CHUNK + SLACK], &mut lengths), differences(&[], &mut steps)), (0, 0));
    }

    #[test]
    fn a_whole_chunk_fits() {
        let values: Vec<u64> = (0..CHUNK as u64).map(|value| value.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        let (mut run_values, mut lengths, mut again) = ([0; CHUNK + SLACK], [0; CHUNK], [0; CHUNK + SLACK]);
        assert_eq!(find_runs(&values, &mut run_values, &mut lengths), CHUNK);
        assert!(repeat(&run_values[..CHUNK], &lengths, CHUNK, &mut again));
        assert_eq!(again[..CHUNK], values);
        let equal = vec![9_u64; CHUNK];
        assert_eq!(find_runs(&equal, &mut run_values, &mut lengths), 1);
        assert!(repeat(&run_values[..1], &lengths[..1], CHUNK, &mut again));
        assert_eq!(again[..CHUNK], equal);
    }
}
