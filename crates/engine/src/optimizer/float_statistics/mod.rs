//! Keeps what DataFusion knows of Parquet files from columns of floats.
//!
//! The least and greatest value of a column leave NaN out, and no statistic says whether there is any. DataFusion 55 takes them
//! for bounds of all values:
//!
//! - A column whose least and greatest value are 5 is not read: all its values are taken for 5, though some are NaN.
//! - `x > 7` finds no NaN, which is greater than all numbers, in files whose greatest number is 5.
//! - `x = 5 LIMIT 1` takes a group of rows for one in which all are 5.
//!
//! [`FloatBounds`] drops the bounds of files before anything else is planned by them. Those of groups of rows and of pages are in
//! the files. [`FloatFilters`] hides from them the conditions on floats, once all filters have reached the scans.

mod bounds;
mod filters;
mod unprunable;

use arrow::datatypes::DataType;

pub use bounds::FloatBounds;
pub use filters::FloatFilters;

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
