//! Kernel arguments of joins, with the layout of `join/arguments.cuh`.

use overspill_machine::memory::View;
use overspill_machine::{Error, Result};

use crate::KeyWidth;

/// Equals `kMaxJoinAggregates`.
pub(super) const MOST_AGGREGATES: usize = 4;

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct JoinInput {
    keys: u64,
    values: u64,
    value_width: u64,
    pub(crate) tuples: u64,
    first_row_id: u64,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct HashTableArguments {
    pub slots: u64,
    pub claims: u64,
    pub slot_keys: u64,
    pub starts: u64,
    pub filled: u64,
    pub values: u64,
    pub slot_count: u64,
    pub smallest_key: u64,
    pub bits: u32,
    pub hash_function: u32,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AggregateArguments {
    pub flip: u64,
    pub of_build: u32,
    pub left: u32,
    pub right: u32,
    pub is_signed: u32,
    pub is_sum: u32,
    pub padding: u32,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct JoinOutput {
    pub totals: u64,
    pub cursor: u64,
    pub capacity: u64,
    pub build_values: u64,
    pub probe_values: u64,
    pub aggregate: [AggregateArguments; MOST_AGGREGATES],
    pub aggregates: u64,
}

/// The source of a side's values.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// A column of 4-byte values. As build values with 4-byte keys, the largest value is reserved.
    Four(View<'a>),
    /// A column of 8-byte values. As build values, the largest value is reserved.
    Eight(View<'a>),
    /// The tuples' numbers, starting at this one.
    RowIds(u64),
}

impl Values<'_> {
    /// The values of `count` tuples starting at tuple `first`.
    pub(crate) fn slice(&self, first: u64, count: u64) -> Result<Self> {
        Ok(match self {
            Self::Four(view) => Self::Four(view.slice(first * 4, count * 4)?),
            Self::Eight(view) => Self::Eight(view.slice(first * 8, count * 8)?),
            Self::RowIds(from) => Self::RowIds(from + first),
        })
    }
}

/// One side of a join.
#[derive(Debug, Clone, Copy)]
pub struct JoinSide<'a> {
    /// The keys.
    pub keys: View<'a>,
    /// A value for each key.
    pub values: Values<'a>,
}

impl JoinSide<'_> {
    /// Checks the side and converts it to kernel arguments.
    pub(crate) fn arguments(&self, key: KeyWidth) -> Result<JoinInput> {
        let tuples = self.keys.bytes() / key.bytes();
        if self.keys.address() % key.bytes() != 0 {
            return Err(Error::Invalid(
                "the keys start at an address that is not a multiple of their width".to_owned(),
            ));
        }
        let (values, width, first_row_id) = match self.values {
            Values::Four(view) => (view, 4, 0),
            Values::Eight(view) => (view, 8, 0),
            Values::RowIds(first) => (View::empty(), 8, first),
        };
        let is_column = !matches!(self.values, Values::RowIds(_));
        if is_column && (values.bytes() < tuples * width || values.address() % width != 0) {
            return Err(Error::Invalid(format!(
                "{} bytes of values for {tuples} keys, {width} for each, aligned",
                values.bytes()
            )));
        }
        // Without tuples the address may be 0, which would mean row ids.
        Ok(JoinInput { keys: self.keys.address(), values: values.address(), value_width: width, tuples, first_row_id })
    }
}
