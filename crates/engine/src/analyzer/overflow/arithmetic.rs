//! Arithmetic of integers and decimals that fails where it overflows.

use std::sync::Arc;

use arrow::compute::kernels::numeric::{add, div, mul, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::logical_expr::interval_arithmetic::{Interval, apply_operator};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::physical_expr_common::datum::apply;

use crate::decimals::{digits, fit, most_digits_of_wider};

/// `+`, `-` or `*` of two integers of one type, or those and `/` of two decimals.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct CheckedArithmetic {
    operator: Operator,
    signature: Signature,
}

/// An expression of integers of one type, or of decimals, that fails where its result does not fit its type.
pub(super) fn checked(left: Expr, operator: Operator, right: Expr) -> Expr {
    let signature = Signature::any(2, Volatility::Immutable);
    ScalarUDF::from(CheckedArithmetic { operator, signature }).call(vec![left, right])
}

impl CheckedArithmetic {
    /// Which it is.
    pub(crate) fn operator(&self) -> Operator {
        self.operator
    }

    /// The error of a result that does not fit its type, by what Arrow says of it.
    fn beyond<T>(&self, data_type: &DataType, overflow: Option<&str>) -> Result<T> {
        let Some((precision, scale)) = digits(data_type) else {
            let overflow = overflow.unwrap_or("a result");
            let operation = overflow.rsplit(": ").next().unwrap_or(overflow);
            return exec_err!(
                "{operation} is beyond the range of {data_type}: write CAST(x AS DECIMAL(38, 0)) for an operand x, or a \
                 wider type"
            );
        };
        let operation = match self.operator {
            Operator::Plus => "a sum",
            Operator::Minus => "a difference",
            Operator::Divide => "a quotient",
            _ => "a product",
        };
        let remedy = match most_digits_of_wider(data_type) {
            Some(most) => format!("write CAST(x AS DECIMAL({most}, {scale})) for an operand x"),
            None => "no DECIMAL has more digits; write CAST(x AS DOUBLE) for an operand x".to_owned(),
        };
        exec_err!("{operation} of decimals is beyond the range of DECIMAL({precision}, {scale}): {remedy}")
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
            Operator::Divide => "divide",
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
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, nullable)))
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [left, right] = arg_types else { return internal_err!("arithmetic of {} values", arg_types.len()) };
        BinaryTypeCoercer::new(left, &self.operator, right).get_result_type()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = args.args.as_slice() else {
            return internal_err!("arithmetic of {} values", args.args.len());
        };
        let result = match self.operator {
            Operator::Plus => apply(left, right, add),
            Operator::Minus => apply(left, right, sub),
            Operator::Divide => apply(left, right, div),
            _ => apply(left, right, mul),
        };
        let data_type = args.return_field.data_type();
        match result {
            Ok(result) => {
                let fits = match &result {
                    ColumnarValue::Array(array) => fit(array),
                    ColumnarValue::Scalar(scalar) => fit(&scalar.to_array()?),
                };
                if fits { Ok(result) } else { self.beyond(data_type, None) }
            }
            Err(error) => match error.find_root() {
                DataFusionError::ArrowError(arrow, _) => match arrow.as_ref() {
                    ArrowError::ArithmeticOverflow(overflow) => self.beyond(data_type, Some(overflow)),
                    _ => Err(error),
                },
                _ => Err(error),
            },
        }
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
