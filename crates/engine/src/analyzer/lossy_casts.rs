//! Keeps the optimizer from moving lossy casts in comparisons.
//!
//! DataFusion 55 moves a cast from a column to the constant that it is compared with: `CAST(price AS INT) = 1` becomes `price
//! = 1.00`, and no longer finds 1.40. For a `TIMESTAMP` cast to one `WITH TIME ZONE` it ignores the zone, and a `TRY_CAST`
//! that is NULL becomes a number. This module replaces such casts by functions, which the optimizer leaves alone.

use std::sync::Arc;

use arrow::compute::CastOptions;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::format::DEFAULT_CAST_OPTIONS;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::{
    BinaryExpr, Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, TryCast, Volatility,
};

use super::comparisons::is_comparison;
use super::map_all_expressions;
use crate::decimals::digits;

/// Replaces lossy casts in comparisons by functions; see the module.
pub(super) fn lossy_casts(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_all_expressions(plan, rewrite_comparison)
}

fn rewrite_comparison(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
            let (left, right) = (keep_cast(*left, schema)?, keep_cast(*right, schema)?);
            let is_changed = left.transformed || right.transformed;
            let comparison = BinaryExpr::new(Box::new(left.data), op, Box::new(right.data));
            Ok(Transformed::new_transformed(Expr::BinaryExpr(comparison), is_changed))
        }
        Expr::InList(InList { expr, list, negated }) => {
            let expr = keep_cast(*expr, schema)?;
            Ok(expr.update_data(|expr| Expr::InList(InList::new(Box::new(expr), list, negated))))
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            let expr = keep_cast(*expr, schema)?;
            Ok(expr.update_data(|expr| Expr::Between(Between::new(Box::new(expr), negated, low, high))))
        }
        expr => Ok(Transformed::no(expr)),
    }
}

/// The operand, with its outermost lossy casts replaced by functions.
fn keep_cast(operand: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (expr, to, is_try) = match operand {
        Expr::Cast(Cast { expr, field }) => (*expr, field, false),
        Expr::TryCast(TryCast { expr, field }) => (*expr, field, true),
        operand => return Ok(Transformed::no(operand)),
    };
    let is_lossy = !matches!(expr, Expr::Literal(..)) && loses(&expr.get_type(schema)?, to.data_type(), is_try);
    let of = keep_cast(expr, schema)?;
    if is_lossy {
        return Ok(Transformed::yes(ScalarUDF::from(KeptCast::new(to, is_try)).call(vec![of.data])));
    }
    Ok(of.update_data(|expr| {
        let expr = Box::new(expr);
        if is_try { Expr::TryCast(TryCast { expr, field: to }) } else { Expr::Cast(Cast { expr, field: to }) }
    }))
}

/// Whether the cast may map different values to the same one, or to values other than their numbers say.
fn loses(from: &DataType, to: &DataType, is_try: bool) -> bool {
    if let Some((_, from)) = digits(from) {
        return match digits(to) {
            Some((_, to)) => is_try || from > to,
            None => to.is_integer(),
        };
    }
    match (from, to) {
        (DataType::Timestamp(_, from), DataType::Timestamp(_, to)) => from.is_some() != to.is_some(),
        (from, to) => is_try && from.is_numeric() && to.is_numeric(),
    }
}

/// A cast that the optimizer does not recognize as one.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeptCast {
    to: FieldRef,
    is_try: bool,
    signature: Signature,
}

impl KeptCast {
    /// A cast to the type of a field; one that `is_try` is NULL where the value does not fit.
    pub fn new(to: FieldRef, is_try: bool) -> Self {
        Self { to, is_try, signature: Signature::any(1, Volatility::Immutable) }
    }

    pub fn to(&self) -> &FieldRef {
        &self.to
    }

    pub fn is_try(&self) -> bool {
        self.is_try
    }
}

impl ScalarUDFImpl for KeptCast {
    fn name(&self) -> &str {
        if self.is_try { "try_cast" } else { "cast" }
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        let function = if self.is_try { "TRY_CAST" } else { "CAST" };
        Ok(format!("{function}({} AS {})", args[0], self.to.data_type()))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.data_type().clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let is_nullable = self.is_try || args.arg_fields[0].is_nullable();
        Ok(Arc::new(self.to.as_ref().clone().with_nullable(is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let options = CastOptions { safe: self.is_try, ..DEFAULT_CAST_OPTIONS };
        args.args[0].cast_to(self.to.data_type(), Some(&options))
    }
}
