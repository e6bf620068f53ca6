//! Selection on the CPU, block by block.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::NullBuffer;
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use super::column::{Column, Number, Values, widened};
use super::state::{SelectionState, Value};
use super::{Aggregate, Selection};
use crate::with_values;

/// Rows that are processed together, so that their intermediate results stay in the cache.
const BLOCK: usize = 1024;

/// If a smaller share of a batch's rows is selected, the next batch uses branching. Branches are then mostly predicted, and few
/// rows are summed. Measured over TPC-H's `lineitem`: predication is faster for sums of integers from a share of an eighth on,
/// and from a half on for sums of products of decimals, which are not vectorized.
const BRANCHING_BELOW: f64 = 0.25;

/// How rows are selected.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Evaluation {
    /// Chooses by the share of selected rows in the previous batch.
    #[default]
    Auto,
    /// Reads a row's next column only if the row is still selected.
    Branching,
    /// Reads all columns of all rows, and masks unselected rows.
    Predicated,
}

/// Selects and aggregates rows of batches on the CPU.
#[derive(Debug)]
pub struct CpuSelection {
    selection: Arc<Selection>,
    evaluation: Evaluation,
    state: SelectionState,
    /// The share of selected rows in the last batch.
    share: f64,
}

impl CpuSelection {
    /// Creates a selection of no rows so far.
    pub fn new(selection: Arc<Selection>, evaluation: Evaluation) -> Self {
        Self { state: SelectionState::new(&selection), selection, evaluation, share: 0.0 }
    }

    /// Processes a batch in one pass over the needed columns, and returns the method used: [`Evaluation::Branching`] or
    /// [`Evaluation::Predicated`]. Ignores the batch and returns `None` in three cases: a column has a type that
    /// [`takes_type`](super::takes_type) rejects; a product of integers or a factor of a product of decimals does not fit 64
    /// bits; the decimals of a block have a sum of more than 128 bits. The caller must then decide whether there is an
    /// overflow.
    pub fn push(&mut self, batch: &RecordBatch) -> Option<Evaluation> {
        let numbers = self.selection.columns();
        let columns = numbers.iter().map(|column| Column::new(batch.column(*column))).collect::<Option<Vec<_>>>()?;
        let branching = match self.evaluation {
            Evaluation::Auto => self.share < BRANCHING_BELOW,
            chosen => chosen == Evaluation::Branching,
        };
        let rows = batch.num_rows();
        let work = Blocks { selection: &self.selection, numbers: &numbers, columns: &columns, rows, branching };
        let found = with_widest_vectors(work)?;
        self.share = found.selected as f64 / rows.max(1) as f64;
        self.state.merge(&self.selection, &found);
        Some(if branching { Evaluation::Branching } else { Evaluation::Predicated })
    }

    /// Adds the result for other rows.
    pub fn merge(&mut self, other: &SelectionState) {
        self.state.merge(&self.selection, other);
    }

    /// The result so far.
    pub fn state(&self) -> &SelectionState {
        &self.state
    }
}

/// The type that sums are computed in.
trait Term: Copy {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    /// Returns `self` if the bit is 1, and 0 if it is 0.
    fn masked(self, bit: u8) -> Self;
    /// The sum of the terms of a block; `None` if it is not exact.
    fn exact(self) -> Option<i128>;
}

impl Term for i64 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn masked(self, bit: u8) -> Self {
        self & Self::from(bit).wrapping_neg()
    }

    #[inline(always)]
    fn exact(self) -> Option<i128> {
        Some(self.into())
    }
}

/// A number of 128 bits, and whether it has overflowed.
#[derive(Clone, Copy)]
struct Wide {
    number: i128,
    overflows: bool,
}

impl Term for Wide {
    const ZERO: Self = Self { number: 0, overflows: false };

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        let (number, overflows) = self.number.overflowing_add(other.number);
        Self { number, overflows: overflows | self.overflows | other.overflows }
    }

    #[inline(always)]
    fn masked(self, bit: u8) -> Self {
        Self { number: self.number & i128::from(bit).wrapping_neg(), overflows: self.overflows & (bit != 0) }
    }

    #[inline(always)]
    fn exact(self) -> Option<i128> {
        (!self.overflows).then_some(self.number)
    }
}

/// A number of 64 bits split into halves, so that sums use vectors of 64-bit numbers.
#[derive(Clone, Copy)]
struct Halves {
    upper: i64,
    lower: i64,
}

impl Term for Halves {
    const ZERO: Self = Self { upper: 0, lower: 0 };

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self { upper: self.upper.plus(other.upper), lower: self.lower.plus(other.lower) }
    }

    #[inline(always)]
    fn masked(self, bit: u8) -> Self {
        Self { upper: self.upper.masked(bit), lower: self.lower.masked(bit) }
    }

    #[inline(always)]
    fn exact(self) -> Option<i128> {
        Some((i128::from(self.upper) << 32) + i128::from(self.lower))
    }
}

/// Converts a number to a term.
trait Summand: Number {
    type Term: Term;
    fn term(self) -> Self::Term;
}

macro_rules! summands {
    ($($number:ty => $term:ty),+) => {
        $(impl Summand for $number {
            type Term = $term;
            #[inline(always)]
            fn term(self) -> $term {
                self as $term
            }
        })+
    };
}
summands!(i8 => i64, i16 => i64, i32 => i64, u8 => i64, u16 => i64, u32 => i64);

macro_rules! summands_by_halves {
    ($($number:ty),+) => {
        $(impl Summand for $number {
            type Term = Halves;
            #[inline(always)]
            fn term(self) -> Halves {
                Halves { upper: (self >> 32) as i64, lower: (self & 0xffff_ffff) as i64 }
            }
        })+
    };
}
summands_by_halves!(i64, u64);

impl Summand for i128 {
    type Term = Wide;

    #[inline(always)]
    fn term(self) -> Wide {
        Wide { number: self, overflows: false }
    }
}

/// A number type that can be multiplied.
trait Factor: Number {
    /// The product. A product of integers overflows if it does not fit their type.
    fn times(self, other: Self) -> Wide;
}

macro_rules! factors {
    ($($number:ty),+) => {
        $(impl Factor for $number {
            #[inline(always)]
            fn times(self, other: Self) -> Wide {
                let (product, overflows) = self.overflowing_mul(other);
                Wide { number: product.into(), overflows }
            }
        })+
    };
}
factors!(i64, u64);

impl Factor for i128 {
    #[inline(always)]
    fn times(self, other: Self) -> Wide {
        let (left, right) = (self as i64, other as i64);
        let fits = (i128::from(left) == self) & (i128::from(right) == other);
        Wide { number: i128::from(left) * i128::from(right), overflows: !fits }
    }
}

/// The rows of a batch, processed by block.
struct Blocks<'a> {
    selection: &'a Selection,
    /// For each of the columns, its index in the batch.
    numbers: &'a [usize],
    columns: &'a [Column],
    rows: usize,
    branching: bool,
}

impl VectorLoop for Blocks<'_> {
    type Output = Option<SelectionState>;

    #[inline(always)]
    fn run(self, _: impl Vectors) -> Option<SelectionState> {
        let mut state = SelectionState::new(self.selection);
        for start in (0..self.rows).step_by(BLOCK) {
            let block = Block { start, length: BLOCK.min(self.rows - start) };
            let fits = if self.branching {
                self.add(block, &Branching::new(&self, block), &mut state)
            } else {
                self.add(block, &Predicated::new(&self, block), &mut state)
            };
            if !fits {
                return None;
            }
        }
        Some(state)
    }
}

#[derive(Clone, Copy)]
struct Block {
    start: usize,
    length: usize,
}

impl Block {
    #[inline(always)]
    fn of<T>(self, values: &[T]) -> &[T] {
        &values[self.start..self.start + self.length]
    }
}

/// The selected rows of a block.
trait Selected: Clone {
    /// Removes rows that are null.
    fn without_nulls(&self, block: Block, nulls: &NullBuffer) -> Self;
    fn count(&self) -> u64;
    fn sum<T: Summand>(&self, values: &[T]) -> T::Term;
    fn sum_of_products<T: Factor>(&self, left: &[T], right: &[T]) -> Wide;
    /// The best value. `better` returns the better of two values; `worst` is never better than another.
    fn best<T: Number>(&self, values: &[T], worst: T, better: impl Fn(T, T) -> T) -> T;
}

impl Blocks<'_> {
    #[inline(always)]
    fn column(&self, number: usize) -> &Column {
        // `numbers` is sorted and has every column that the selection reads.
        &self.columns[self.numbers.partition_point(|other| *other < number)]
    }

    /// Aggregates the selected rows of a block. Returns whether all sums and products are exact.
    #[inline(always)]
    fn add(&self, block: Block, selected: &impl Selected, state: &mut SelectionState) -> bool {
        let count = selected.count();
        if count == 0 {
            return true;
        }
        let mut found = SelectionState { selected: count, values: Vec::with_capacity(state.values.len()) };
        for aggregate in &self.selection.aggregates {
            let value = if aggregate.columns().any(|column| self.column(column).nulls.is_some()) {
                let mut there = selected.clone();
                for nulls in aggregate.columns().filter_map(|column| self.column(column).nulls.as_ref()) {
                    there = there.without_nulls(block, nulls);
                }
                self.aggregate(*aggregate, block, &there)
            } else {
                self.aggregate(*aggregate, block, selected)
            };
            let Some(value) = value else { return false };
            found.values.push(value);
        }
        state.merge(self.selection, &found);
        true
    }

    #[inline(always)]
    fn aggregate(&self, aggregate: Aggregate, block: Block, selected: &impl Selected) -> Option<Value> {
        let value = match aggregate {
            Aggregate::CountRows | Aggregate::Count(_) => 0,
            Aggregate::Sum(column) => {
                with_values!(&self.column(column).values, values => selected.sum(block.of(values)).exact()?)
            }
            Aggregate::SumOfProducts(left, right) => {
                let sum = match (&self.column(left).values, &self.column(right).values) {
                    (Values::I64(left), Values::I64(right)) => {
                        selected.sum_of_products(block.of(left), block.of(right))
                    }
                    (Values::U64(left), Values::U64(right)) => {
                        selected.sum_of_products(block.of(left), block.of(right))
                    }
                    (Values::I128(left), Values::I128(right)) => {
                        selected.sum_of_products(block.of(left), block.of(right))
                    }
                    _ => return None,
                };
                sum.exact()?
            }
            Aggregate::Min(column) => with_values!(&self.column(column).values, values => {
                widened(selected.best(block.of(values), Number::GREATEST, |a, b| a.min(b)))
            }),
            Aggregate::Max(column) => with_values!(&self.column(column).values, values => {
                widened(selected.best(block.of(values), Number::LEAST, |a, b| a.max(b)))
            }),
        };
        Some(Value::new(selected.count(), value))
    }
}

/// The numbers of the selected rows.
#[derive(Clone)]
struct Branching {
    rows: [u16; BLOCK],
    count: usize,
}

impl Branching {
    #[inline(always)]
    fn new(blocks: &Blocks<'_>, block: Block) -> Self {
        let mut selected = Self { rows: [0; BLOCK], count: 0 };
        if blocks.selection.ranges.is_empty() {
            (0..).zip(&mut selected.rows).for_each(|(row, place)| *place = row);
            selected.count = block.length;
        }
        for (number, range) in blocks.selection.ranges.iter().enumerate() {
            let column = blocks.column(range.column);
            with_values!(&column.values, values => match Number::range(range.lowest, range.highest) {
                None => selected.count = 0,
                Some((lowest, highest)) if number == 0 => selected.first(block.of(values), lowest, highest),
                Some((lowest, highest)) => {
                    let values = block.of(values);
                    selected.keep(|row| lowest <= values[row] && values[row] <= highest);
                }
            });
            if let Some(nulls) = &column.nulls {
                selected.keep(|row| nulls.is_valid(block.start + row));
            }
            if selected.count == 0 {
                break;
            }
        }
        selected
    }

    #[inline(always)]
    fn first<T: Number>(&mut self, values: &[T], lowest: T, highest: T) {
        for (row, value) in (0..).zip(values) {
            if lowest <= *value && *value <= highest {
                self.rows[self.count] = row;
                self.count += 1;
            }
        }
    }

    #[inline(always)]
    fn keep(&mut self, is_kept: impl Fn(usize) -> bool) {
        let mut kept = 0;
        for place in 0..self.count {
            let row = self.rows[place];
            if is_kept(usize::from(row)) {
                self.rows[kept] = row;
                kept += 1;
            }
        }
        self.count = kept;
    }

    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows[..self.count].iter().map(|row| usize::from(*row))
    }
}

impl Selected for Branching {
    #[inline(always)]
    fn without_nulls(&self, block: Block, nulls: &NullBuffer) -> Self {
        let mut there = self.clone();
        there.keep(|row| nulls.is_valid(block.start + row));
        there
    }

    #[inline(always)]
    fn count(&self) -> u64 {
        self.count as u64
    }

    #[inline(always)]
    fn sum<T: Summand>(&self, values: &[T]) -> T::Term {
        self.each().fold(T::Term::ZERO, |sum, row| sum.plus(values[row].term()))
    }

    #[inline(always)]
    fn sum_of_products<T: Factor>(&self, left: &[T], right: &[T]) -> Wide {
        self.each().fold(Wide::ZERO, |sum, row| sum.plus(left[row].times(right[row])))
    }

    #[inline(always)]
    fn best<T: Number>(&self, values: &[T], worst: T, better: impl Fn(T, T) -> T) -> T {
        self.each().fold(worst, |best, row| better(best, values[row]))
    }
}

/// A byte for each row of the block: 1 if the row is selected, else 0.
#[derive(Clone)]
struct Predicated {
    bits: [u8; BLOCK],
    length: usize,
}

impl Predicated {
    #[inline(always)]
    fn new(blocks: &Blocks<'_>, block: Block) -> Self {
        let mut selected = Self { bits: [1; BLOCK], length: block.length };
        for range in &blocks.selection.ranges {
            let column = blocks.column(range.column);
            with_values!(&column.values, values => match Number::range(range.lowest, range.highest) {
                None => selected.bits.fill(0),
                Some((lowest, highest)) => {
                    for (bit, value) in selected.bits.iter_mut().zip(block.of(values)) {
                        *bit &= u8::from(lowest <= *value) & u8::from(*value <= highest);
                    }
                }
            });
            if let Some(nulls) = &column.nulls {
                selected.mask_nulls(block, nulls);
            }
        }
        selected
    }

    #[inline(always)]
    fn mask_nulls(&mut self, block: Block, nulls: &NullBuffer) {
        for (row, bit) in self.bits[..block.length].iter_mut().enumerate() {
            *bit &= u8::from(nulls.is_valid(block.start + row));
        }
    }

    #[inline(always)]
    fn bits(&self) -> &[u8] {
        &self.bits[..self.length]
    }
}

impl Selected for Predicated {
    #[inline(always)]
    fn without_nulls(&self, block: Block, nulls: &NullBuffer) -> Self {
        let mut there = self.clone();
        there.mask_nulls(block, nulls);
        there
    }

    #[inline(always)]
    fn count(&self) -> u64 {
        self.bits().iter().map(|bit| u64::from(*bit)).sum()
    }

    #[inline(always)]
    fn sum<T: Summand>(&self, values: &[T]) -> T::Term {
        let rows = self.bits().iter().zip(values);
        rows.fold(T::Term::ZERO, |sum, (bit, value)| sum.plus(value.term().masked(*bit)))
    }

    #[inline(always)]
    fn sum_of_products<T: Factor>(&self, left: &[T], right: &[T]) -> Wide {
        let rows = self.bits().iter().zip(left.iter().zip(right));
        rows.fold(Wide::ZERO, |sum, (bit, (left, right))| sum.plus(left.times(*right).masked(*bit)))
    }

    #[inline(always)]
    fn best<T: Number>(&self, values: &[T], worst: T, better: impl Fn(T, T) -> T) -> T {
        let rows = self.bits().iter().zip(values);
        rows.fold(worst, |best, (bit, value)| better(best, if *bit != 0 { *value } else { worst }))
    }
}
