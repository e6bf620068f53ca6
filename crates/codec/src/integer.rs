//! Integers that are compressed.

use std::fmt::Debug;

use fastlanes::BitPacking;

mod sealed {
    pub trait Sealed {}
}

/// An integer of 8 to 64 bits.
pub trait Integer: sealed::Sealed + Copy + Default + PartialEq + Debug + Send + Sync + 'static {
    /// The unsigned integer of the same size, in which the codec computes, wrapping.
    type Bits: Bits;
    /// Whether the least value of a frame of reference is that of signed numbers.
    const IS_SIGNED: bool;

    /// The bits.
    fn bits(self) -> Self::Bits;

    /// The integer with these bits.
    fn from_bits(bits: Self::Bits) -> Self;
}

/// An unsigned integer.
pub trait Bits: sealed::Sealed + BitPacking + Copy + Default + Ord + Debug + Send + Sync + 'static {
    /// Its bytes.
    const BYTES: usize;
    /// The highest bit.
    const SIGN: Self;

    /// As a word.
    fn word(self) -> u64;

    /// The low bits of a word.
    fn of_word(word: u64) -> Self;

    /// The sum, wrapping.
    fn plus(self, other: Self) -> Self;

    /// The difference, wrapping.
    fn minus(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($bits:ty, $signed:ty;)*) => {$(
        impl sealed::Sealed for $bits {}
        impl sealed::Sealed for $signed {}

        impl Bits for $bits {
            const BYTES: usize = size_of::<$bits>();
            const SIGN: Self = 1 << (<$bits>::BITS - 1);

            #[inline(always)]
            fn word(self) -> u64 {
                self.into()
            }

            #[inline(always)]
            fn of_word(word: u64) -> Self {
                word as $bits
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
        }

        impl Integer for $bits {
            type Bits = $bits;
            const IS_SIGNED: bool = false;

            #[inline(always)]
            fn bits(self) -> $bits {
                self
            }

            #[inline(always)]
            fn from_bits(bits: $bits) -> Self {
                bits
            }
        }

        impl Integer for $signed {
            type Bits = $bits;
            const IS_SIGNED: bool = true;

            #[inline(always)]
            fn bits(self) -> $bits {
                self as $bits
            }

            #[inline(always)]
            fn from_bits(bits: $bits) -> Self {
                bits as $signed
            }
        }
    )*};
}

integers! {
    u8, i8;
    u16, i16;
    u32, i32;
    u64, i64;
}
