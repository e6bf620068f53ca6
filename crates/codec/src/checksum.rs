//! A checksum that any number of threads can compute part by part.

use std::ops::Range;

/// Odd, so that multiplying by it loses no bit.
const FACTOR: u64 = 0x9FB2_1C65_1E98_DF25;

/// What the place of a word adds to it.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The part of some words in the checksum, where `first` is the place of the first. The checksum is the wrapping sum of all parts. Any
/// change of one word changes it; other changes go unnoticed with a probability of about 2^-64.
pub(crate) fn part(first: u64, words: &[u8]) -> u64 {
    let mut place = first.wrapping_mul(STEP);
    let mut sum = 0_u64;
    for word in words.chunks_exact(8) {
        let mixed = u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        let mixed = mixed.wrapping_add(place);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(FACTOR);
        sum = sum.wrapping_add(mixed ^ mixed >> 29);
        place = place.wrapping_add(STEP);
    }
    sum
}

/// The checksum of all words but those at `place`, where it is stored.
pub(crate) fn checksum(bytes: &[u8], place: &Range<usize>) -> u64 {
    part(0, &bytes[..place.start]).wrapping_add(part((place.end / 8) as u64, &bytes[place.end..]))
}

/// Stores the checksum at `place`.
///
/// # Panics
/// If the bytes end before that.
pub(crate) fn seal(bytes: &mut [u8], place: &Range<usize>) {
    let sum = checksum(bytes, place);
    bytes[place.clone()].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_places_count() {
        let bytes: Vec<u8> = (0..=255).collect();
        let whole = part(3, &bytes);
        assert_eq!(whole, part(3, &bytes[..64]).wrapping_add(part(11, &bytes[64..])));
        let mut swapped = bytes.clone();
        swapped[..16].rotate_left(8);
        assert_ne!(whole, part(3, &swapped));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(whole, part(3, &flipped), "bit {bit}");
        }
    }
}
