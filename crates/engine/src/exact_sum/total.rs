//! Sums that count how often they have wrapped.

use std::fmt::Debug;
use std::hash::Hash;

use arrow::datatypes::i256;

/// A number with sums that wrap around and report it.
pub(super) trait Carrying: Copy + Eq + Hash + Default + Debug + Send + Sync {
    /// The sum modulo 2^n for numbers of n bits, and the multiple of 2^n that it lacks.
    fn plus(self, other: Self) -> (Self, i64);

    /// The difference in the same way.
    fn minus(self, other: Self) -> (Self, i64);

    /// The number combined with a carry, in 256 bits; `None` if the result may need more.
    fn exact(self, carry: i64) -> Option<i256>;

    /// The sum of many numbers.
    fn sum(values: &[Self]) -> Total<Self> {
        let mut total = Total::default();
        for value in values {
            total.add_value(*value);
        }
        total
    }
}

/// A sum of any number of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Total<N> {
    /// The sum modulo 2^n of the n bits of a value.
    pub(super) wrapped: N,
    /// The multiple of 2^n that `wrapped` lacks.
    pub(super) carry: i64,
}

impl<N: Carrying> Default for Total<N> {
    fn default() -> Self {
        Self::of(N::default())
    }
}

impl<N: Carrying> Total<N> {
    /// The total of one value.
    pub(super) fn of(value: N) -> Self {
        Self { wrapped: value, carry: 0 }
    }

    pub(super) fn add_value(&mut self, value: N) {
        let (sum, carry) = self.wrapped.plus(value);
        *self = Self { wrapped: sum, carry: self.carry + carry };
    }

    pub(super) fn subtract_value(&mut self, value: N) {
        let (difference, carry) = self.wrapped.minus(value);
        *self = Self { wrapped: difference, carry: self.carry + carry };
    }

    pub(super) fn add(&mut self, other: Self) {
        self.add_value(other.wrapped);
        self.carry += other.carry;
    }

    pub(super) fn subtract(&mut self, other: Self) {
        self.subtract_value(other.wrapped);
        self.carry -= other.carry;
    }

    /// The sum, if it fits the values' type.
    pub(super) fn value(self) -> Option<N> {
        (self.carry == 0).then_some(self.wrapped)
    }

    /// The sum in 256 bits; `None` if it may need more.
    pub(super) fn exact(self) -> Option<i256> {
        self.wrapped.exact(self.carry)
    }
}

macro_rules! signed {
    ($($number:ty $(, $sum:path)?);+) => {
        $(impl Carrying for $number {
            #[inline(always)]
            fn plus(self, other: Self) -> (Self, i64) {
                let (sum, wraps) = self.overflowing_add(other);
                (sum, if wraps { sign(other < 0) } else { 0 })
            }

            #[inline(always)]
            fn minus(self, other: Self) -> (Self, i64) {
                let (difference, wraps) = self.overflowing_sub(other);
                (difference, if wraps { -sign(other < 0) } else { 0 })
            }

            fn exact(self, carry: i64) -> Option<i256> {
                Some(i256::from(i128::from(self)).wrapping_add(i256::from(carry) << Self::BITS as u8))
            }

            $(fn sum(values: &[Self]) -> Total<Self> {
                $sum(values)
            })?
        })+
    };
}
signed!(i32; i64, sum_of_signed; i128);

fn sign(is_negative: bool) -> i64 {
    if is_negative { -1 } else { 1 }
}

impl Carrying for u64 {
    #[inline(always)]
    fn plus(self, other: Self) -> (Self, i64) {
        let (sum, wraps) = self.overflowing_add(other);
        (sum, i64::from(wraps))
    }

    #[inline(always)]
    fn minus(self, other: Self) -> (Self, i64) {
        let (difference, wraps) = self.overflowing_sub(other);
        (difference, -i64::from(wraps))
    }

    fn exact(self, carry: i64) -> Option<i256> {
        Some(i256::from(i128::from(self)).wrapping_add(i256::from(carry) << Self::BITS as u8))
    }

    fn sum(values: &[Self]) -> Total<Self> {
        let sum: i128 = values
            .chunks(MOST_HALVES)
            .map(|values| {
                let (upper, lower) = values
                    .iter()
                    .fold((0, 0), |(upper, lower), value| (upper + (value >> 32), lower + (value & LOWER_HALF)));
                (i128::from(upper) << 32) + i128::from(lower)
            })
            .sum();
        Total { wrapped: sum as u64, carry: (sum >> Self::BITS) as i64 }
    }
}

impl Carrying for i256 {
    #[inline(always)]
    fn plus(self, other: Self) -> (Self, i64) {
        let (sum, wraps) = self.overflowing_add(other);
        (sum, if wraps { sign(other.is_negative()) } else { 0 })
    }

    #[inline(always)]
    fn minus(self, other: Self) -> (Self, i64) {
        let (difference, wraps) = self.overflowing_sub(other);
        (difference, if wraps { -sign(other.is_negative()) } else { 0 })
    }

    fn exact(self, carry: i64) -> Option<i256> {
        (carry == 0).then_some(self)
    }
}

/// The number of halves of 64-bit numbers that can be added in 64 bits; processors have vector instructions for that.
const MOST_HALVES: usize = 1 << 31;

const LOWER_HALF: u64 = u32::MAX as u64;

fn sum_of_signed(values: &[i64]) -> Total<i64> {
    let sum: i128 = values
        .chunks(MOST_HALVES)
        .map(|values| {
            let (upper, lower) = values
                .iter()
                .fold((0, 0), |(upper, lower), value| (upper + (value >> 32), lower + (*value as u64 & LOWER_HALF)));
            (i128::from(upper) << 32) + i128::from(lower)
        })
        .sum();
    let wrapped = sum as i64;
    Total { wrapped, carry: ((sum - i128::from(wrapped)) >> i64::BITS) as i64 }
}
