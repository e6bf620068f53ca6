//! Recognizes the DataFusion aggregates that selections compute.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use overspill_join::selection::{Aggregate, takes_product, takes_type};

use crate::checked_arithmetic::CheckedArithmetic;
use crate::exact_sum::ExactSum;

/// Whether an aggregate reads input rows, reads all of them, returns one row for each stream, and updates no dynamic
/// expressions.
pub(super) fn is_first_without_groups(aggregate: &AggregateExec) -> bool {
    matches!(aggregate.mode(), AggregateMode::Partial | AggregateMode::Single)
        && aggregate.group_expr().is_true_no_grouping()
        && aggregate.filter_expr().iter().all(Option::is_none)
        && aggregate.limit_options().is_none()
        && aggregate.dynamic_expressions_produced().is_empty()
}

/// The `Aggregate` of a DataFusion aggregate over columns of this schema. `None` if selections do not support it.
pub(super) fn aggregate(aggregate: &AggregateFunctionExpr, schema: &Schema) -> Option<Aggregate> {
    let is_plain = !aggregate.is_distinct()
        && !aggregate.ignore_nulls()
        && !aggregate.is_reversed()
        && aggregate.order_bys().is_empty();
    let arguments = aggregate.expressions();
    let ([argument], true) = (arguments.as_slice(), is_plain) else { return None };
    let function = aggregate.fun().inner();
    let result = aggregate.field();
    let column = argument.downcast_ref::<Column>();
    let field = column.map(|column| schema.field(column.index()));
    if function.is::<Count>() {
        return match (column, field) {
            (Some(_), Some(field)) if !field.is_nullable() => Some(Aggregate::CountRows),
            (Some(column), Some(field)) if takes_type(field.data_type()) => Some(Aggregate::Count(column.index())),
            _ => {
                let literal = argument.downcast_ref::<Literal>()?;
                (!literal.value().is_null()).then_some(Aggregate::CountRows)
            }
        };
    }
    // DataFusion's sum wraps around; a selection's does not.
    if function.is::<ExactSum>() {
        return sum(argument, result.data_type(), schema);
    }
    let (column, field) = (column?, field?);
    if !takes_type(field.data_type()) || field.data_type() != result.data_type() {
        return None;
    }
    if function.is::<Min>() {
        Some(Aggregate::Min(column.index()))
    } else if function.is::<Max>() {
        Some(Aggregate::Max(column.index()))
    } else {
        None
    }
}

fn sum(argument: &Arc<dyn PhysicalExpr>, result: &DataType, schema: &Schema) -> Option<Aggregate> {
    let type_of = |column: &Column| schema.field(column.index()).data_type().clone();
    if let Some(column) = argument.downcast_ref::<Column>() {
        return is_sum(&type_of(column), result).then_some(Aggregate::Sum(column.index()));
    }
    if let Some(cast) = argument.downcast_ref::<CastExpr>() {
        let column = cast.expr().downcast_ref::<Column>()?;
        let is_wider = cast.cast_type() == result && widens(&type_of(column), result);
        return is_wider.then_some(Aggregate::Sum(column.index()));
    }
    let [left, right] = factors(argument)?;
    let (left, right) = (left.downcast_ref::<Column>()?, right.downcast_ref::<Column>()?);
    let (left_type, right_type) = (type_of(left), type_of(right));
    let product_type = argument.data_type(schema).ok()?;
    let is_exact = match (&left_type, &right_type, &product_type) {
        // The product of the numbers, without rescaling.
        (DataType::Decimal128(_, left), DataType::Decimal128(_, right), DataType::Decimal128(_, scale)) => {
            left.checked_add(*right) == Some(*scale)
        }
        _ => true,
    };
    let is_taken = is_exact && takes_product(&left_type, &right_type) && is_sum(&product_type, result);
    is_taken.then_some(Aggregate::SumOfProducts(left.index(), right.index()))
}

/// The operands of a product of integers or of decimals that is exact or fails.
fn factors(product: &Arc<dyn PhysicalExpr>) -> Option<[&Arc<dyn PhysicalExpr>; 2]> {
    if let Some(function) = product.downcast_ref::<ScalarFunctionExpr>() {
        let arithmetic = function.fun().inner().downcast_ref::<CheckedArithmetic>()?;
        let [left, right] = function.args() else { return None };
        return arithmetic.is_product().then_some([left, right]);
    }
    let product = product.downcast_ref::<BinaryExpr>().filter(|binary| *binary.op() == Operator::Multiply)?;
    Some([product.left(), product.right()])
}

/// Whether a sum of values of one type has the other type, with the same meaning of its digits.
fn is_sum(of: &DataType, result: &DataType) -> bool {
    match (of, result) {
        (DataType::Int64, DataType::Int64) | (DataType::UInt64, DataType::UInt64) => true,
        (DataType::Decimal128(_, scale), DataType::Decimal128(_, result)) => scale == result,
        _ => false,
    }
}

/// Whether an integer type can represent every value of another one.
fn widens(from: &DataType, to: &DataType) -> bool {
    match to {
        DataType::Int64 => from.is_integer() && *from != DataType::UInt64,
        DataType::UInt64 => from.is_unsigned_integer(),
        _ => false,
    }
}
