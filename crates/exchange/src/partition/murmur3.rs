//! The hash function of the paper: MurmurHash3 of 32 bits.

/// The hash of bytes.
pub fn murmur3(bytes: &[u8], seed: u32) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let hash = words.iter().fold(seed, |hash, word| mix(hash, u32::from_le_bytes(*word)));
    let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    finish(hash ^ scramble(rest), bytes.len())
}

/// The hash of the bytes of a word, lowest first.
#[inline(always)]
pub fn murmur3_word(word: u64, seed: u32) -> u32 {
    finish(mix(mix(seed, word as u32), (word >> 32) as u32), 8)
}

#[inline(always)]
fn scramble(word: u32) -> u32 {
    word.wrapping_mul(0xCC9E_2D51).rotate_left(15).wrapping_mul(0x1B87_3593)
}

#[inline(always)]
fn mix(hash: u32, word: u32) -> u32 {
    (hash ^ scramble(word)).rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64)
}

#[inline(always)]
fn finish(hash: u32, length: usize) -> u32 {
    let hash = hash ^ length as u32;
    let hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    let hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that implementations of MurmurHash3 publish.
    #[test]
    fn hashes_are_those_of_others() {
        for (bytes, seed, hash) in [
            (&b""[..], 0, 0),
            (b"", 1, 0x514E_28B7),
            (b"", 0xFFFF_FFFF, 0x81F1_6F39),
            (b"\xFF\xFF\xFF\xFF", 0, 0x7629_3B50),
            (b"\x21\x43\x65\x87", 0, 0xF55B_516B),
            (b"\x21\x43\x65\x87", 0x5082_EDEE, 0x2362_F9DE),
            (b"\x21\x43\x65", 0, 0x7E4A_8634),
            (b"\x21\x43", 0, 0xA0F7_B07A),
            (b"\x21", 0, 0x7266_1CF4),
            (b"\0\0\0\0", 0, 0x2362_F9DE),
            (b"aaaa", 0x9747_B28C, 0x5A97_808A),
            (b"Hello, world!", 0x9747_B28C, 0x2488_4CBA),
        ] {
            assert_eq!(murmur3(bytes, seed), hash, "{bytes:?}, {seed}");
        }
        for word in [0, 1, 0x1234_5678_9ABC_DEF0, u64::MAX] {
            assert_eq!(murmur3_word(word, 7), murmur3(&word.to_le_bytes(), 7));
        }
    }
}
