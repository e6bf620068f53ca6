//! Frame of reference and bit packing.
//!
//! Integers of an array are stored less the least of them, each block of 1,024 in as many bits as its greatest needs: a rare large one
//! costs its block alone. A block lies in the order of FastLanes, which vectors and warps unpack without shuffling. The last, if it is
//! not full, has its integers one after the other, as most of a full block would be empty.

use crate::integer::Bits;
use crate::layers::CHUNK;

/// Integers of a block.
const BLOCK: usize = 1024;

/// The most blocks of an array.
pub(crate) const BLOCKS: usize = CHUNK / BLOCK;

/// The least of some integers, and how many bits those of each block need beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Frame<T> {
    pub least: T,
    pub widths: [u8; BLOCKS],
}

impl<T: Bits> Frame<T> {
    /// The frame of at most [`CHUNK`] integers. The least is that of signed integers, or of unsigned ones. `O(n)`.
    pub fn of(values: &[T], is_signed: bool) -> Self {
        let flip = if is_signed { T::SIGN } else { T::default() };
        let ends = |block: &[T]| {
            let ordered = block.iter().map(|value| *value ^ flip);
            ordered.fold((!T::default(), T::default()), |(least, most), value| (least.min(value), most.max(value)))
        };
        let mut of_blocks = [(T::default(), T::default()); BLOCKS];
        for (of_block, block) in of_blocks.iter_mut().zip(values.chunks(BLOCK)) {
            *of_block = ends(block);
        }
        let of_blocks = &of_blocks[..values.len().div_ceil(BLOCK)];
        let Some(least) = of_blocks.iter().map(|(least, _)| *least).min() else { return Self::default() };
        let mut widths = [0; BLOCKS];
        for (width, (_, most)) in widths.iter_mut().zip(of_blocks) {
            *width = (u64::BITS - most.minus(least).word().leading_zeros()) as u8;
        }
        Self { least: least ^ flip, widths }
    }

    /// Bytes of `count` packed integers: words of 8 bytes for each block.
    pub fn packed_bytes(&self, count: usize) -> usize {
        let of_block = |(number, width): (usize, &u8)| {
            let integers = count.saturating_sub(number * BLOCK).min(BLOCK);
            (integers * usize::from(*width)).div_ceil(64) * 8
        };
        self.widths.iter().enumerate().map(of_block).sum()
    }

    /// Whether no block has more bits than an integer, or bits without integers.
    pub fn is_possible(&self, count: usize) -> bool {
        let most = (T::BYTES * 8) as u8;
        let blocks = count.div_ceil(BLOCK);
        self.widths.iter().enumerate().all(|(number, width)| *width <= if number < blocks { most } else { 0 })
    }
}

/// Adds packed integers, as words of 8 bytes. `O(n)`.
pub(crate) fn pack<T: Bits>(values: &[T], frame: &Frame<T>, out: &mut Vec<u8>) {
    let mut begin = out.len();
    out.resize(begin + frame.packed_bytes(values.len()), 0);
    for (block, width) in values.chunks(BLOCK).zip(frame.widths) {
        let end = begin + (block.len() * usize::from(width)).div_ceil(64) * 8;
        match block.as_array::<BLOCK>() {
            Some(block) => pack_block(block, frame.least, usize::from(width), &mut out[begin..end]),
            None => pack_rest(block, frame.least, usize::from(width), &mut out[begin..end]),
        }
        begin = end;
    }
}

/// Packs a whole block into `BLOCK / 8 * width` bytes.
fn pack_block<T: Bits>(block: &[T; BLOCK], least: T, width: usize, out: &mut [u8]) {
    let (mut offsets, mut packed) = ([T::default(); BLOCK], [T::default(); BLOCK]);
    for (offset, value) in offsets.iter_mut().zip(block) {
        *offset = value.minus(least);
    }
    assert!(width <= T::BYTES * 8);
    let packed = &mut packed[..BLOCK * width / (T::BYTES * 8)];
    // SAFETY: `offsets` has 1,024 integers, and `packed` as many as `width` bits of each are.
    unsafe { T::unchecked_pack(width, &offsets, packed) };
    for (bytes, word) in out.chunks_exact_mut(T::BYTES).zip(packed) {
        bytes.copy_from_slice(&word.word().to_le_bytes()[..T::BYTES]);
    }
}

/// Packs fewer integers one after the other, from the lowest bit on.
fn pack_rest<T: Bits>(values: &[T], least: T, width: usize, out: &mut [u8]) {
    let mut words = out.as_chunks_mut::<8>().0.iter_mut();
    let mut write = |word: u64| words.next().into_iter().for_each(|bytes| *bytes = word.to_le_bytes());
    let (mut held, mut bits) = (0_u128, 0);
    for value in values {
        held |= u128::from(value.minus(least).word()) << bits;
        bits += width;
        if bits >= 64 {
            write(held as u64);
            (held, bits) = (held >> 64, bits - 64);
        }
    }
    if bits > 0 {
        write(held as u64);
    }
}

/// Unpacks `values.len()` integers, at most [`CHUNK`]. `O(n)`.
///
/// # Panics
/// If there are not [`Frame::packed_bytes`] of them, or the frame is not [possible](Frame::is_possible).
pub(crate) fn unpack<T: Bits>(bytes: &[u8], frame: &Frame<T>, values: &mut [T]) {
    let mut rest = bytes;
    for (block, width) in values.chunks_mut(BLOCK).zip(frame.widths) {
        let width = usize::from(width);
        assert!(width <= T::BYTES * 8);
        let (own, others) = rest.split_at((block.len() * width).div_ceil(64) * 8);
        match block.as_mut_array::<BLOCK>() {
            Some(block) => unpack_block(own, frame.least, width, block),
            None => unpack_rest(own, frame.least, width, block),
        }
        rest = others;
    }
}

fn unpack_block<T: Bits>(bytes: &[u8], least: T, width: usize, block: &mut [T; BLOCK]) {
    if width == 0 {
        return block.fill(least);
    }
    let mut packed = [T::default(); BLOCK];
    let packed = &mut packed[..BLOCK * width / (T::BYTES * 8)];
    for (bytes, word) in bytes.chunks_exact(T::BYTES).zip(packed.iter_mut()) {
        let mut whole = [0; 8];
        whole[..T::BYTES].copy_from_slice(bytes);
        *word = T::of_word(u64::from_le_bytes(whole));
    }
    // SAFETY: `packed` has as many integers as `width` bits of 1,024 are, and `block` has 1,024.
    unsafe { T::unchecked_unpack(width, packed, block) };
    if least != T::default() {
        block.iter_mut().for_each(|value| *value = value.plus(least));
    }
}

fn unpack_rest<T: Bits>(bytes: &[u8], least: T, width: usize, values: &mut [T]) {
    if width == 0 {
        return values.fill(least);
    }
    let mask = u64::MAX >> (64 - width);
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let (mut held, mut bits) = (0_u128, 0);
    for value in values {
        if bits < width {
            held |= u128::from(words.next().unwrap_or(0)) << bits;
            bits += 64;
        }
        *value = T::of_word(held as u64 & mask).plus(least);
        (held, bits) = (held >> width, bits - width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Bits>(values: &[T], is_signed: bool) -> Frame<T> {
        let frame = Frame::of(values, is_signed);
        let (mut bytes, mut again) = (vec![], vec![T::default(); values.len()]);
        pack(values, &frame, &mut bytes);
        assert!(bytes.len() == frame.packed_bytes(values.len()) && frame.is_possible(values.len()));
        unpack(&bytes, &frame, &mut again);
        assert!(again == values, "{} integers of {:?} bits", values.len(), frame.widths);
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
                let widths = round_trip(&values, false).widths;
                assert_eq!(widths[(count as usize - 1) / BLOCK], expected, "{count} values");
                round_trip(&values.iter().map(|value| *value as u8).collect::<Vec<_>>(), false);
                round_trip(&values.iter().map(|value| *value as u16).collect::<Vec<_>>(), true);
                round_trip(&values.iter().map(|value| *value as u32).collect::<Vec<_>>(), true);
            }
        }
    }

    #[test]
    fn frames_are_those_of_signed_or_unsigned_integers_and_blocks_have_widths_of_their_own() {
        let frame = |least, width| Frame { least, widths: [width, 0, 0, 0] };
        let around_zero = [u32::MAX, 3, 0];
        assert_eq!(round_trip(&around_zero, true), frame(u32::MAX, 3));
        assert_eq!(round_trip(&around_zero, false), frame(0, 32));
        let around_half = [0x7FFF_FFFF_u32, 0x8000_0001];
        assert_eq!(round_trip(&around_half, false), frame(0x7FFF_FFFF, 2));
        assert_eq!(round_trip(&[5_u8; 2000], true), Frame { least: 5, widths: [0; 4] });
        assert_eq!(round_trip::<u8>(&[], true), Frame::default());
        let mut values = [1_u64; 3000];
        (values[1500], values[2999]) = (u64::MAX, 9);
        let found = round_trip(&values, false);
        assert_eq!(found, Frame { least: 1, widths: [0, 64, 4, 0] });
        assert_eq!(found.packed_bytes(3000), 1024 * 8 + (952 * 4_usize).div_ceil(64) * 8);
        assert!(!found.is_possible(1024) && !Frame { least: 0_u8, widths: [9, 0, 0, 0] }.is_possible(1));
    }
}
