//! Blocks of pairs.

use arrow::array::{Array, BooleanArray};

use crate::hash_table::FoundRows;
use crate::hybrid::output::{BuildRows, SideRows};
use crate::memory::{LentVec, MAX_COPY_BYTES, RowSizes, SideSizes, fitting_pairs};

/// Pairs of one build row and one probe row each.
#[derive(Debug, Default)]
pub struct PairBlock {
    /// The build rows.
    pub build: PairRows,
    /// The probe rows, as many.
    pub probe: PairRows,
}

/// The rows of one side of pairs.
#[derive(Debug)]
pub enum PairRows {
    /// Row numbers, in the build side or in a unit.
    Numbers(LentVec<u32>),
    /// Words that hold the rows' packed columns.
    Packed(LentVec<u64>),
}

impl Default for PairRows {
    fn default() -> Self {
        Self::Numbers(LentVec::default())
    }
}

impl PairBlock {
    /// The number of pairs.
    pub(in crate::hybrid) fn len(&self) -> usize {
        self.probe.len()
    }

    /// How many of the first pairs fit one output batch. `build` and `probe` are the row sizes; `probe` is unused for packed
    /// rows.
    pub(in crate::hybrid) fn fitting(&self, build: &RowSizes, probe: Option<&RowSizes>) -> usize {
        fitting_pairs(self.len(), MAX_COPY_BYTES, [self.build.sizes(Some(build)), self.probe.sizes(probe)])
    }

    /// Splits off the pairs from `pair` on.
    pub(in crate::hybrid) fn split_off(&mut self, pair: usize) -> Self {
        Self { build: self.build.split_off(pair), probe: self.probe.split_off(pair) }
    }

    /// Puts back pairs that were split off. The lent vectors stay in this block.
    pub(in crate::hybrid) fn restore(&mut self, pairs: Self) {
        self.build.restore(pairs.build);
        self.probe.restore(pairs.probe);
    }
}

impl FoundRows for PairRows {
    fn numbers(&mut self) -> &mut Vec<u32> {
        self.numbers()
    }

    fn packed(&mut self) -> &mut Vec<u64> {
        self.packed()
    }
}

impl PairRows {
    /// The vector of row numbers, for the caller to fill.
    pub fn numbers(&mut self) -> &mut Vec<u32> {
        if !matches!(self, Self::Numbers(_)) {
            *self = Self::Numbers(LentVec::default());
        }
        let Self::Numbers(rows) = self else { unreachable!("replaced above") };
        rows.refill()
    }

    /// The vector of packed columns, for the caller to fill.
    pub fn packed(&mut self) -> &mut Vec<u64> {
        if !matches!(self, Self::Packed(_)) {
            *self = Self::Packed(LentVec::default());
        }
        let Self::Packed(words) = self else { unreachable!("replaced above") };
        words.refill()
    }

    /// Keeps the rows of pairs that passed a filter.
    pub(in crate::hybrid) fn retain(&mut self, passed: &BooleanArray) {
        match self {
            Self::Numbers(rows) => retain(rows, passed),
            Self::Packed(words) => retain(words, passed),
        }
    }

    /// Moves these build rows out; the block keeps none.
    pub(in crate::hybrid) fn take<'a>(&mut self, build: &'a dyn BuildRows) -> SideRows<'a> {
        match self {
            Self::Numbers(rows) => build.numbered(rows.lend()),
            Self::Packed(words) => build.packed(words.lend()),
        }
    }

    /// Copies these build rows; the block keeps them.
    pub(in crate::hybrid) fn copy<'a>(&self, build: &'a dyn BuildRows) -> SideRows<'a> {
        match self {
            Self::Numbers(rows) => build.numbered(rows.to_vec().into()),
            Self::Packed(words) => build.packed(words.to_vec().into()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Numbers(rows) => rows.len(),
            Self::Packed(words) => words.len(),
        }
    }

    fn sizes<'a>(&'a self, sizes: Option<&'a RowSizes>) -> SideSizes<'a> {
        match (self, sizes) {
            (Self::Numbers(rows), Some(sizes)) => SideSizes::Rows(sizes, rows),
            _ => SideSizes::Fixed(size_of::<u64>()),
        }
    }

    fn split_off(&mut self, pair: usize) -> Self {
        match self {
            Self::Numbers(rows) => Self::Numbers(rows.split_off(pair).into()),
            Self::Packed(words) => Self::Packed(words.split_off(pair).into()),
        }
    }

    fn restore(&mut self, rows: Self) {
        match rows {
            Self::Numbers(mut rows) => *self.numbers() = std::mem::take(&mut *rows),
            Self::Packed(mut words) => *self.packed() = std::mem::take(&mut *words),
        }
    }
}

/// Keeps the values of pairs that passed a filter.
pub(in crate::hybrid) fn retain<T>(values: &mut Vec<T>, passed: &BooleanArray) {
    let mut pair = 0;
    values.retain(|_| {
        pair += 1;
        passed.is_valid(pair - 1) && passed.value(pair - 1)
    });
}
