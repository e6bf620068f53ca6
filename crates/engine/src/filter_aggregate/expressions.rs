//! Recognizes the DataFusion predicates that are ranges of columns.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use overspill_join::selection::{ColumnRange, constant, takes_type};

/// The ranges of a predicate over columns of this schema, a conjunction of comparisons with constants. `None` for other
/// predicates.
pub(super) fn ranges(predicate: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Vec<ColumnRange>> {
    let mut ranges: Vec<ColumnRange> = Vec::new();
    for part in split_conjunction(predicate) {
        let range = range(part, schema)?;
        match ranges.iter_mut().find(|other| other.column == range.column) {
            Some(other) => {
                other.lowest = other.lowest.max(range.lowest);
                other.highest = other.highest.min(range.highest);
            }
            None => ranges.push(range),
        }
    }
    Some(ranges)
}

fn range(comparison: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<ColumnRange> {
    let comparison = comparison.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (comparison.left(), comparison.right());
    let (column, operator, literal) = match (left.downcast_ref::<Column>(), right.downcast_ref::<Column>()) {
        (Some(column), None) => (column, *comparison.op(), right.downcast_ref::<Literal>()?),
        (None, Some(column)) => (column, comparison.op().swap()?, left.downcast_ref::<Literal>()?),
        _ => return None,
    };
    let data_type = schema.field(column.index()).data_type();
    if !takes_type(data_type) || literal.value().data_type() != *data_type {
        return None;
    }
    let value = constant(&literal.value().to_array().ok()?)?;
    let (lowest, highest) = match operator {
        Operator::Lt => (i128::MIN, value.checked_sub(1)?),
        Operator::LtEq => (i128::MIN, value),
        Operator::Gt => (value.checked_add(1)?, i128::MAX),
        Operator::GtEq => (value, i128::MAX),
        Operator::Eq => (value, value),
        _ => return None,
    };
    Some(ColumnRange { column: column.index(), lowest, highest })
}
