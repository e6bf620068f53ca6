//! Hides the float statistics of Parquet files from DataFusion where it would misuse them.
//!
//! The least and greatest value of a column ignore NaN, and no statistic says whether there is one. DataFusion 55 takes them
//! for bounds of all values:
//!
//! - If the least and the greatest value of a column are 5, DataFusion does not read it: it takes all values for 5, though
//!   some are NaN.
//! - `x > 7` finds no NaN, which is greater than all numbers, in files whose greatest number is 5.
//! - `x = 5 LIMIT 1` assumes that all values of a row group with both bounds equal to 5 are 5.
//!
//! [`float_bounds`] drops the bounds of files before any other rule uses them. The bounds of row groups and of pages stay in
//! the files. [`float_filters`] hides the conditions on floats from them, once all filters have reached the scans.

mod bounds;
mod filters;
mod unprunable;

use arrow::datatypes::DataType;

pub(crate) use bounds::float_bounds;
pub(crate) use filters::float_filters;
pub(crate) use unprunable::Unprunable;

/// Whether a column of this type has floats in its values.
fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_floats(field.data_type()),
        DataType::Dictionary(_, values) => has_floats(values),
        DataType::RunEndEncoded(_, values) => has_floats(values.data_type()),
        data_type => data_type.is_floating(),
    }
}
