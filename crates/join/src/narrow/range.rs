//! Ranges of values.

/// The values from `least` to `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The least value.
    pub least: i64,
    /// The greatest value.
    pub most: i64,
}

impl Range {
    /// The range of one value.
    pub fn of(value: i64) -> Self {
        Self { least: value, most: value }
    }

    /// The least range with all of `values`, in 128 bits; `None` if it does not fit 64.
    fn around(values: impl IntoIterator<Item = i128>) -> Option<Self> {
        let (least, most) =
            values.into_iter().fold((i128::MAX, i128::MIN), |(least, most), value| (least.min(value), most.max(value)));
        Some(Self { least: i64::try_from(least).ok()?, most: i64::try_from(most).ok()? })
    }

    /// The sums of values of two ranges; `None` if one does not fit 64 bits.
    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let [a, b, c, d] = [self.least, self.most, other.least, other.most].map(i128::from);
        Self::around([a + c, b + d])
    }

    /// The differences of values of two ranges; `None` if one does not fit 64 bits.
    pub(super) fn minus(self, other: Self) -> Option<Self> {
        let [a, b, c, d] = [self.least, self.most, other.least, other.most].map(i128::from);
        Self::around([a - d, b - c])
    }

    /// The products of values of two ranges; `None` if one does not fit 64 bits.
    pub(super) fn times(self, other: Self) -> Option<Self> {
        let [a, b, c, d] = [self.least, self.most, other.least, other.most].map(i128::from);
        Self::around([a * c, a * d, b * c, b * d])
    }

    /// The greatest absolute value.
    pub fn magnitude(self) -> u64 {
        self.least.unsigned_abs().max(self.most.unsigned_abs())
    }
}
