//! The aggregates so far.

use arrow::array::{ArrayData, ArrayRef, make_array, new_null_array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, i256};

use super::{Aggregate, Selection};
use crate::error::Result;

/// An aggregate of the rows so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The number of aggregated rows.
    pub rows: u64,
    /// A sum, minimum or maximum; meaningless for a count or without rows.
    pub value: i256,
}

impl Value {
    /// The aggregate of no rows.
    pub const NONE: Self = Self { rows: 0, value: i256::ZERO };

    /// Creates the aggregate of `rows` rows.
    pub fn new(rows: u64, value: i128) -> Self {
        Self { rows, value: i256::from_i128(value) }
    }

    fn merge(&mut self, aggregate: Aggregate, other: Self) {
        self.value = match (self.rows, other.rows, aggregate) {
            (_, 0, _) => self.value,
            (0, ..) => other.value,
            (_, _, Aggregate::Min(_)) => self.value.min(other.value),
            (_, _, Aggregate::Max(_)) => self.value.max(other.value),
            _ => self.value.wrapping_add(other.value),
        };
        self.rows += other.rows;
    }
}

/// The aggregates of the rows so far, and the number of selected rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectionState {
    pub(super) selected: u64,
    pub(super) values: Vec<Value>,
}

impl SelectionState {
    /// The state of no rows.
    pub fn new(selection: &Selection) -> Self {
        Self { selected: 0, values: vec![Value::NONE; selection.aggregates.len()] }
    }

    /// The state of `selected` selected rows, with a value for each aggregate.
    pub fn of_values(selected: u64, values: Vec<Value>) -> Self {
        Self { selected, values }
    }

    /// The state of `rows` rows that were all selected and have no nulls, from the values of the aggregates.
    pub fn of_rows(rows: u64, values: impl Iterator<Item = i128>) -> Self {
        Self::of_values(rows, values.map(|value| Value::new(rows, value)).collect())
    }

    /// Number of selected rows.
    pub fn selected(&self) -> u64 {
        self.selected
    }

    /// Adds the aggregates of other rows, from the same selection.
    pub fn merge(&mut self, selection: &Selection, other: &Self) {
        self.selected += other.selected;
        for ((value, other), aggregate) in self.values.iter_mut().zip(&other.values).zip(&selection.aggregates) {
            value.merge(*aggregate, *other);
        }
    }

    /// An aggregate as an array of one value of this type, truncated to the type. Null if there are no rows and it is not a
    /// count.
    ///
    /// # Errors
    /// Fails if the type is not a number of up to 128 bits.
    pub fn to_array(&self, selection: &Selection, aggregate: usize, data_type: &DataType) -> Result<ArrayRef> {
        let Value { rows, value } = self.values[aggregate];
        let value = match selection.aggregates[aggregate] {
            Aggregate::CountRows => i128::from(self.selected),
            Aggregate::Count(_) => i128::from(rows),
            _ if rows == 0 => return Ok(new_null_array(data_type, 1)),
            _ => value.as_i128(),
        };
        let buffer = match data_type.primitive_width() {
            Some(1) => Buffer::from_vec(vec![value as i8]),
            Some(2) => Buffer::from_vec(vec![value as i16]),
            Some(4) => Buffer::from_vec(vec![value as i32]),
            Some(8) => Buffer::from_vec(vec![value as i64]),
            _ => Buffer::from_vec(vec![value]),
        };
        Ok(make_array(ArrayData::try_new(data_type.clone(), 1, None, 0, vec![buffer], vec![])?))
    }

    /// How many times 2^n [`SelectionState::to_array`] cuts off a sum by truncating it to a type of n bits.
    pub fn carry(&self, aggregate: usize, data_type: &DataType) -> i64 {
        let bits = u8::try_from(8 * data_type.primitive_width().unwrap_or(16)).unwrap_or(128);
        let sum = self.values[aggregate].value;
        // The truncated sum of a signed type starts at -2^(n - 1).
        let begin = if data_type.is_unsigned_integer() { i256::ZERO } else { i256::ONE << (bits - 1) };
        (sum.wrapping_add(begin) >> bits).as_i128() as i64
    }
}
