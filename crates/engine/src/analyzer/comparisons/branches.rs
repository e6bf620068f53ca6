//! Values that are brought to a common type without being compared.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::{Projection, Union};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use super::sides::Side;

/// Converts values if the result is one of them.
pub(super) fn of_values(
    values: Vec<Expr>,
    schema: &DFSchema,
    config: &ConfigOptions,
) -> Result<Transformed<Vec<Expr>>> {
    let types = values.iter().map(|value| value.get_type(schema)).collect::<Result<Vec<_>>>()?;
    let sides = sides(&values.iter().zip(&types).collect::<Vec<_>>(), config)?;
    let is_changed = sides.iter().any(|side| *side != Side::AsItIs);
    let values = values.into_iter().zip(sides).map(|(value, side)| side.apply(value)).collect::<Result<_>>()?;
    Ok(Transformed::new_transformed(values, is_changed))
}

/// The inputs of a union.
pub(super) fn of_union(union: Union, config: &ConfigOptions) -> Result<Transformed<LogicalPlan>> {
    let width = union.schema.fields().len();
    if union.inputs.iter().any(|input| input.schema().fields().len() != width) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let mut columns = Vec::with_capacity(width);
    for column in 0..width {
        let values: Vec<Expr> = union.inputs.iter().map(|input| value_of(input, column)).collect();
        let types: Vec<&DataType> = union.inputs.iter().map(|input| input.schema().field(column).data_type()).collect();
        columns.push(sides(&values.iter().zip(types).collect::<Vec<_>>(), config)?);
    }
    if columns.iter().flatten().all(|side| *side == Side::AsItIs) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let inputs = union.inputs.into_iter().enumerate().map(|(number, input)| {
        let sides: Vec<&Side> = columns.iter().map(|column| &column[number]).collect();
        Ok(Arc::new(with_columns(input, &sides)?))
    });
    let union = Union::try_new_with_loose_types(inputs.collect::<Result<_>>()?)?;
    Ok(Transformed::yes(LogicalPlan::Union(union)))
}

/// The conversion of each of several values, given all others.
fn sides(values: &[(&Expr, &DataType)], config: &ConfigOptions) -> Result<Vec<Side>> {
    let side = |(value, value_type): &(&Expr, &DataType)| -> Result<Side> {
        for (other, other_type) in values {
            let side = Side::of(value, value_type, other, other_type, config)?;
            if side != Side::AsItIs {
                return Ok(side);
            }
        }
        Ok(Side::AsItIs)
    };
    values.iter().map(side).collect()
}

/// The expression of a plan's column.
fn value_of(plan: &LogicalPlan, column: usize) -> Expr {
    match plan {
        LogicalPlan::Projection(projection) => projection.expr[column].clone().unalias(),
        plan => Expr::Column(Column::from(plan.schema().qualified_field(column))),
    }
}

fn with_columns(input: Arc<LogicalPlan>, sides: &[&Side]) -> Result<LogicalPlan> {
    if sides.iter().all(|side| **side == Side::AsItIs) {
        return Ok(Arc::unwrap_or_clone(input));
    }
    let names = NamePreserver::new_for_projection();
    let (columns, input) = match Arc::unwrap_or_clone(input) {
        LogicalPlan::Projection(projection) => (projection.expr, projection.input),
        other => {
            let columns = other.schema().columns().into_iter().map(Expr::Column).collect();
            (columns, Arc::new(other))
        }
    };
    let columns = columns.into_iter().zip(sides).map(|(column, side)| {
        let name = names.save(&column);
        Ok(name.restore(side.apply(column.unalias())?))
    });
    Ok(LogicalPlan::Projection(Projection::try_new(columns.collect::<Result<_>>()?, input)?))
}
