//! Makes sums, products and differences exact, or errors that report the overflow.
//!
//! DataFusion 55 adds, subtracts, multiplies and negates integers in their own type, and wraps around. It also wraps sums of
//! integers, decimals and durations. Decimal arithmetic may have one more digit than the type, which is not shown: `10^38` is
//! shown as `10^37`.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    AggregateUDF, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, WindowFunctionDefinition, lit,
};

use super::map_all_expressions;
use crate::checked_arithmetic::checked;
use crate::decimals::is_full;
use crate::exact_sum::{ExactAverage, ExactSum};

/// Replaces arithmetic that may overflow; see the module.
pub(super) fn overflow(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_all_expressions(plan, rewrite)
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => match exact(&func, &params.args, schema)? {
            Some(func) => Transformed::yes(Expr::AggregateFunction(AggregateFunction { func, params })),
            None => Transformed::no(Expr::AggregateFunction(AggregateFunction { func, params })),
        },
        Expr::WindowFunction(mut window) => {
            let function = match &window.fun {
                WindowFunctionDefinition::AggregateUDF(function) => exact(function, &window.params.args, schema)?,
                WindowFunctionDefinition::WindowUDF(_) => None,
            };
            let is_changed = function.is_some();
            window.fun = function.map_or(window.fun, WindowFunctionDefinition::AggregateUDF);
            Transformed::new_transformed(Expr::WindowFunction(window), is_changed)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            if overflows(&left.get_type(schema)?, op, &right.get_type(schema)?) {
                Transformed::yes(checked(*left, op, *right))
            } else {
                Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right }))
            }
        }
        Expr::Negative(of) if !matches!(*of, Expr::Literal(..)) && of.get_type(schema)?.is_integer() => {
            let zero = ScalarValue::new_zero(&of.get_type(schema)?)?;
            Transformed::yes(checked(lit(zero), Operator::Minus, *of))
        }
        expr => Transformed::no(expr),
    })
}

/// The replacement for a DataFusion function that wraps around.
fn exact(function: &AggregateUDF, args: &[Expr], schema: &DFSchema) -> Result<Option<Arc<AggregateUDF>>> {
    static SUM: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| Arc::new(AggregateUDF::from(ExactSum::default())));
    static AVERAGE: LazyLock<Arc<AggregateUDF>> =
        LazyLock::new(|| Arc::new(AggregateUDF::from(ExactAverage::default())));
    let [arg] = args else { return Ok(None) };
    let function = function.inner();
    Ok(if function.is::<Sum>() && ExactSum::takes(&arg.get_type(schema)?) {
        Some(Arc::clone(&SUM))
    } else if function.is::<Avg>() && ExactAverage::takes(&arg.get_type(schema)?) {
        Some(Arc::clone(&AVERAGE))
    } else {
        None
    })
}

/// Whether arithmetic of two types may return results that do not fit, without an error.
fn overflows(left: &DataType, op: Operator, right: &DataType) -> bool {
    use Operator::{Divide, Minus, Multiply, Plus};
    match op {
        Plus | Minus | Multiply if left.is_integer() => left == right,
        Plus | Minus | Multiply | Divide if left.is_decimal() && right.is_decimal() => {
            BinaryTypeCoercer::new(left, &op, right).get_result_type().is_ok_and(|result| is_full(&result))
        }
        _ => false,
    }
}
