//! Which expressions can fail on some row.
//!
//! A condition that cannot fail may be evaluated on rows that the order of a query would have dropped before, and so may move.

use arrow::datatypes::{DataType, Schema};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};

/// Whether an expression over columns of this schema can fail on some row, as far as is known.
pub(crate) fn may_fail(expression: &PhysicalExprRef, schema: &Schema) -> bool {
    let fails_itself = match expression.downcast_ref::<BinaryExpr>() {
        Some(binary) => !(is_comparison(*binary.op()) || binary.op().is_logic_operator()),
        None => match expression.downcast_ref::<CastExpr>() {
            Some(cast) => !widens(cast, schema),
            None => {
                !(expression.is::<Column>()
                    || expression.is::<Literal>()
                    || expression.is::<NotExpr>()
                    || expression.is::<IsNullExpr>()
                    || expression.is::<IsNotNullExpr>()
                    || expression.is::<LikeExpr>()
                    || expression.is::<InListExpr>()
                    || expression.is::<CaseExpr>())
            }
        },
    };
    fails_itself || expression.children().into_iter().any(|child| may_fail(child, schema))
}

/// Whether a cast has a value for each value, of the same order.
pub(crate) fn widens(cast: &CastExpr, schema: &Schema) -> bool {
    use DataType::{LargeUtf8, Utf8, Utf8View};
    let Ok(source) = cast.expr().data_type(schema) else { return false };
    let is_text = |data_type: &DataType| matches!(data_type, Utf8 | Utf8View | LargeUtf8);
    // A text of more than 2 GiB fits no column with offsets of 32 bits.
    let keeps_text =
        is_text(&source) && is_text(cast.cast_type()) && (source != LargeUtf8 || *cast.cast_type() != Utf8);
    keeps_text || cast.is_bigger_cast(&source)
}

fn is_comparison(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}
