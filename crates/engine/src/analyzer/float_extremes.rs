//! `min` and `max` of floats.

use std::sync::{Arc, LazyLock};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, Result};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan};

use super::{input_schema, map_expressions};
use crate::float_extremes::FloatExtreme;

/// Replaces `min` and `max` of floats: those of DataFusion 55 depend on the order of rows if there is NaN, and are wrong for
/// a group of infinities.
pub(super) fn float_extremes(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|plan| {
        if !matches!(plan, LogicalPlan::Aggregate(_)) {
            return Ok(Transformed::no(plan));
        }
        let schema = input_schema(&plan)?;
        map_expressions(plan, |expr| rewrite(expr, &schema))
    })
    .data()
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = expr else { return Ok(Transformed::no(expr)) };
    let ours = of_floats(&func, &params.args, schema)?;
    let is_changed = ours.is_some();
    let function = AggregateFunction { func: ours.unwrap_or(func), params };
    Ok(Transformed::new_transformed(Expr::AggregateFunction(function), is_changed))
}

/// The replacement for a DataFusion function, if it takes floats.
fn of_floats(function: &AggregateUDF, args: &[Expr], schema: &DFSchema) -> Result<Option<Arc<AggregateUDF>>> {
    static MIN: LazyLock<Arc<AggregateUDF>> =
        LazyLock::new(|| Arc::new(AggregateUDF::from(FloatExtreme::<Min>::default())));
    static MAX: LazyLock<Arc<AggregateUDF>> =
        LazyLock::new(|| Arc::new(AggregateUDF::from(FloatExtreme::<Max>::default())));
    let function = function.inner();
    let ours = if function.is::<Min>() {
        &MIN
    } else if function.is::<Max>() {
        &MAX
    } else {
        return Ok(None);
    };
    let [arg] = args else { return Ok(None) };
    Ok(arg.get_type(schema)?.is_floating().then(|| Arc::clone(ours)))
}
