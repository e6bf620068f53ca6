//! Frame of reference and bit packing.
//!
//! An array of `n` integers is stored as `width` bits of each, less the least of them. Each 1,024 lie in the order of FastLanes, which
//! vectors and warps unpack without shuffling; the rest lie one after the other, as a whole block would mostly be empty.

use crate::integer::Bits;

/// Integers of a block.
const BLOCK: usize = 1024;

/// The least of some integers, and how many bits the others need beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame<T> {
    pub least: T,
    pub width: u8,
}

impl<T: Bits> Frame<T> {
    /// The frame of some integers. The least is that of signed integers, or of unsigned ones. `O(n)`.
    pub fn of(values: &[T], is_signed: bool) -> Self {
        let flip = if is_signed { T::SIGN } else { T::default() };
        let ordered = values.iter().map(|value| *value ^ flip);
        let (least, most) =
            ordered.fold((!T::default(), T::default()), |(least, most), value| (least.min(value), most.max(value)));
        if values.is_empty() {
            return Self { least: T::default(), width: 0 };
        }
        let range = most.minus(least).word();
        Self { least: least ^ flip, width: (u64::BITS - range.leading_zeros()) as u8 }
    }
}

/// Bytes of `count` packed integers, a multiple of 8.
pub(crate) fn packed_bytes(count: usize, width: u8) -> usize {
    // A block is 1,024 times as many bits.
    (count * usize::from(width)).div_ceil(8).next_multiple_of(8)
}

/// Packs integers into words of 8 bytes. `O(n)`.
pub(crate) fn pack<T: Bits>(values: &[T], frame: Frame<T>, out: &mut Vec<u8>) {
    let (width, begin) = (usize::from(frame.width), out.len());
    out.resize(begin + packed_bytes(values.len(), frame.width), 0);
    if width == 0 {
        return;
    }
    let mut rest = &mut out[begin..];
    let (mut offsets, mut packed) = ([T::default(); BLOCK], [T::default(); BLOCK]);
    let (blocks, tail) = values.as_chunks::<BLOCK>();
    for block in blocks {
        for (offset, value) in offsets.iter_mut().zip(block) {
            *offset = value.minus(frame.least);
        }
        let packed = &mut packed[..BLOCK * width / (T::BYTES * 8)];
        assert!(width <= T::BYTES * 8);
        // SAFETY: `offsets` has 1,024 integers, and `packed` as many as `width` bits of each are.
        unsafe { T::unchecked_pack(width, &offsets, packed) };
        let (bytes, others) = rest.split_at_mut(BLOCK / 8 * width);
        for (bytes, word) in bytes.chunks_exact_mut(T::BYTES).zip(packed) {
            bytes.copy_from_slice(&word.word().to_le_bytes()[..T::BYTES]);
        }
        rest = others;
    }
    // Bits that are not yet written, from the lowest on.
    let (mut held, mut bits, mut place) = (0_u128, 0, 0);
    for value in tail {
        held |= u128::from(value.minus(frame.least).word()) << bits;
        bits += width;
        if bits >= 64 {
            rest[place..place + 8].copy_from_slice(&(held as u64).to_le_bytes());
            (held, bits, place) = (held >> 64, bits - 64, place + 8);
        }
    }
    if bits > 0 {
        rest[place..place + 8].copy_from_slice(&(held as u64).to_le_bytes());
    }
}

/// Unpacks `values.len()` integers. `O(n)`.
///
/// # Panics
/// If there are not [`packed_bytes`] of them, or the width is more than that of the integers.
pub(crate) fn unpack<T: Bits>(bytes: &[u8], frame: Frame<T>, values: &mut [T]) {
    let width = usize::from(frame.width);
    assert!(bytes.len() == packed_bytes(values.len(), frame.width) && width <= T::BYTES * 8);
    if width == 0 {
        return values.fill(frame.least);
    }
    let mut rest = bytes;
    let mut packed = [T::default(); BLOCK];
    let (blocks, tail) = values.as_chunks_mut::<BLOCK>();
    for block in blocks {
        let (bytes, others) = rest.split_at(BLOCK / 8 * width);
        let packed = &mut packed[..BLOCK * width / (T::BYTES * 8)];
        for (bytes, word) in bytes.chunks_exact(T::BYTES).zip(packed.iter_mut()) {
            let mut whole = [0; 8];
            whole[..T::BYTES].copy_from_slice(bytes);
            *word = T::of_word(u64::from_le_bytes(whole));
        }
        // SAFETY: `packed` has as many integers as `width` bits of 1,024 are, and `block` has 1,024.
        unsafe { T::unchecked_unpack(width, packed, block) };
        if frame.least != T::default() {
            block.iter_mut().for_each(|value| *value = value.plus(frame.least));
        }
        rest = others;
    }
    let mask = u64::MAX >> (64 - width);
    let mut words = rest.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let (mut held, mut bits) = (0_u128, 0);
    for value in tail {
        if bits < width {
            held |= u128::from(words.next().unwrap_or(0)) << bits;
            bits += 64;
        }
        *value = T::of_word(held as u64 & mask).plus(frame.least);
        (held, bits) = (held >> width, bits - width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Bits>(values: &[T], is_signed: bool) -> Frame<T> {
        let frame = Frame::of(values, is_signed);
        let (mut bytes, mut again) = (vec![], vec![T::default(); values.len()]);
        pack(values, frame, &mut bytes);
        assert_eq!(bytes.len(), packed_bytes(values.len(), frame.width));
        unpack(&bytes, frame, &mut again);
        assert!(again == values, "{} integers of {} bits", values.len(), frame.width);
        frame
    }

    #[test]
    fn every_width_and_length_round_trips() {
        for width in 0..=64_u32 {
            for count in [1, 2, 63, 64, 65, 1023, 1024, 1025, 2048, 4096] {
                let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
                let value = |place: u64| place.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) & mask;
                let mut values: Vec<u64> = (0..count).map(value).collect();
                (values[0], values[count as usize - 1]) = (0, mask);
                let expected = if count == 1 { 0 } else { width as u8 };
                assert_eq!(round_trip(&values, false).width, expected, "{count} values");
                round_trip(&values.iter().map(|value| *value as u8).collect::<Vec<_>>(), false);
                round_trip(&values.iter().map(|value| *value as u16).collect::<Vec<_>>(), true);
                round_trip(&values.iter().map(|value| *value as u32).collect::<Vec<_>>(), true);
            }
        }
    }

    #[test]
    fn frames_are_those_of_signed_or_unsigned_integers() {
        let around_zero = [u32::MAX, 3, 0];
        assert_eq!(round_trip(&around_zero, true), Frame { least: u32::MAX, width: 3 });
        assert_eq!(round_trip(&around_zero, false), Frame { least: 0, width: 32 });
        let around_half = [0x7FFF_FFFF_u32, 0x8000_0001];
        assert_eq!(round_trip(&around_half, false), Frame { least: 0x7FFF_FFFF, width: 2 });
        assert_eq!(round_trip(&[5_u8; 2000], true), Frame { least: 5, width: 0 });
        assert_eq!(round_trip::<u8>(&[], true), Frame { least: 0, width: 0 });
    }
}
