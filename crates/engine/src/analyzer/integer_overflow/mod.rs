//! Makes sums, products and differences of integers right, or an error that says that they overflow.
//!
//! DataFusion 55 adds, subtracts, multiplies and negates integers in their type, in which they wrap; and so it sums them.

mod arithmetic;

use std::sync::{Arc, LazyLock};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    AggregateUDF, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, WindowFunctionDefinition, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::input_schema;
use crate::exact_sum::ExactSum;

pub(crate) use arithmetic::CheckedArithmetic;

/// Replaces the arithmetic of integers; see the module.
#[derive(Debug, Default)]
pub struct IntegerOverflow;

impl AnalyzerRule for IntegerOverflow {
    fn name(&self) -> &str {
        "integer_overflow"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| {
            let schema = input_schema(&plan)?;
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let rewritten = expr.transform_up(|expr| rewrite(expr, &schema))?;
                Ok(rewritten.update_data(|expr| name.restore(expr)))
            })
        })
        .data()
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    static SUM: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| Arc::new(AggregateUDF::from(ExactSum::default())));
    Ok(match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) if is_sum(&func, &params.args, schema)? => {
            Transformed::yes(Expr::AggregateFunction(AggregateFunction { func: Arc::clone(&SUM), params }))
        }
        Expr::WindowFunction(mut window) => match &window.fun {
            WindowFunctionDefinition::AggregateUDF(function) if is_sum(function, &window.params.args, schema)? => {
                window.fun = WindowFunctionDefinition::AggregateUDF(Arc::clone(&SUM));
                Transformed::yes(Expr::WindowFunction(window))
            }
            _ => Transformed::no(Expr::WindowFunction(window)),
        },
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::Plus | Operator::Minus | Operator::Multiply),
            right,
        }) => {
            let left_type = left.get_type(schema)?;
            if left_type.is_integer() && left_type == right.get_type(schema)? {
                Transformed::yes(arithmetic::checked(*left, op, *right))
            } else {
                Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right }))
            }
        }
        Expr::Negative(of) if !matches!(*of, Expr::Literal(..)) && of.get_type(schema)?.is_integer() => {
            let zero = ScalarValue::new_zero(&of.get_type(schema)?)?;
            Transformed::yes(arithmetic::checked(lit(zero), Operator::Minus, *of))
        }
        expr => Transformed::no(expr),
    })
}

/// Whether a function is DataFusion's sum, of integers that ours takes.
fn is_sum(function: &AggregateUDF, args: &[Expr], schema: &DFSchema) -> Result<bool> {
    match args {
        [arg] if function.inner().is::<Sum>() => Ok(ExactSum::takes(&arg.get_type(schema)?)),
        _ => Ok(false),
    }
}
