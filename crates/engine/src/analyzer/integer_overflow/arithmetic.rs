//! Arithmetic of integers that fails where it overflows.

use std::sync::Arc;

use arrow::compute::kernels::numeric::{add, mul, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::logical_expr::interval_arithmetic::{Interval, apply_operator};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::physical_expr_common::datum::apply;

/// `+`, `-` or `*` of two integers of one type.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct CheckedArithmetic {
    operator: Operator,
    signature: Signature,
}

/// An expression of integers of one type that fails where its result does not fit the type.
pub(super) fn checked(left: Expr, operator: Operator, right: Expr) -> Expr {
    let signature = Signature::any(2, Volatility::Immutable);
    ScalarUDF::from(CheckedArithmetic { operator, signature }).call(vec![left, right])
}

impl CheckedArithmetic {
    /// Which it is.
    pub(crate) fn operator(&self) -> Operator {
        self.operator
    }

    fn as_binary(&self, args: &[Expr]) -> BinaryExpr {
        BinaryExpr::new(Box::new(args[0].clone()), self.operator, Box::new(args[1].clone()))
    }
}

impl ScalarUDFImpl for CheckedArithmetic {
    fn name(&self) -> &str {
        match self.operator {
            Operator::Plus => "add",
            Operator::Minus => "subtract",
            _ => "multiply",
        }
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(self.as_binary(args).to_string())
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(Expr::BinaryExpr(self.as_binary(args)).schema_name().to_string())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), args.arg_fields[0].data_type().clone(), nullable)))
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(arg_types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = args.args.as_slice() else {
            return internal_err!("arithmetic of {} values", args.args.len());
        };
        let result = match self.operator {
            Operator::Plus => apply(left, right, add),
            Operator::Minus => apply(left, right, sub),
            _ => apply(left, right, mul),
        };
        result.map_err(|error| match error.find_root() {
            datafusion::error::DataFusionError::ArrowError(arrow, _) => match arrow.as_ref() {
                ArrowError::ArithmeticOverflow(overflow) => overflows(overflow, args.return_field.data_type()),
                _ => error,
            },
            _ => error,
        })
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        apply_operator(&self.operator, inputs[0], inputs[1])
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        let [left, right] = inputs else { return Ok(SortProperties::Unordered) };
        Ok(match self.operator {
            Operator::Plus => left.sort_properties.add(&right.sort_properties),
            Operator::Minus => left.sort_properties.sub(&right.sort_properties),
            _ => SortProperties::Unordered,
        })
    }
}

fn overflows(overflow: &str, data_type: &DataType) -> datafusion::error::DataFusionError {
    let operation = overflow.rsplit(": ").next().unwrap_or(overflow);
    exec_datafusion_err!(
        "{operation} is beyond the range of {data_type}: write CAST(x AS DECIMAL(38, 0)) for an operand x, or a wider type"
    )
}
