//! Arithmetic of integers and decimals that fails on overflow.

use std::sync::Arc;

use arrow::compute::kernels::numeric::{add, div, mul, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::logical_expr::interval_arithmetic::{Interval, apply_operator};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr_common::datum::apply;

use crate::cancellation;
use crate::decimals::{digits, fit, most_digits_of_wider};

/// A chain of `+` and `-`, or of `*` and `/`, from left to right: of integers of one type, or of decimals.
///
/// A chain is one function, however long it is. For each function nested below another, the planner would compute the types
/// and names of everything below it once more.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct CheckedArithmetic {
    /// The operators between the arguments, one fewer than the arguments.
    operators: Vec<Operator>,
    signature: Signature,
}

/// An expression of integers of one type, or of decimals, that fails if its result does not fit its type.
pub(crate) fn checked(left: Expr, operator: Operator, right: Expr) -> Expr {
    let chain = CheckedArithmetic::of(&left).filter(|chain| chain.continues_with(operator));
    let mut operators = chain.map_or_else(Vec::new, |chain| chain.operators.clone());
    let mut args = match left {
        Expr::ScalarFunction(function) if !operators.is_empty() => function.args,
        left => vec![left],
    };
    operators.push(operator);
    args.push(right);
    ScalarUDF::from(CheckedArithmetic::with(operators)).call(args)
}

impl CheckedArithmetic {
    /// A chain with these operators.
    pub(crate) fn with(operators: Vec<Operator>) -> Self {
        let signature = Signature::any(operators.len() + 1, Volatility::Immutable);
        Self { operators, signature }
    }

    /// The operators between the arguments.
    pub(crate) fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// The arithmetic operation of an expression.
    fn of(expr: &Expr) -> Option<&Self> {
        let Expr::ScalarFunction(function) = expr else { return None };
        function.func.inner().downcast_ref()
    }

    /// Whether it is a product of two factors.
    pub(crate) fn is_product(&self) -> bool {
        self.operators == [Operator::Multiply]
    }

    /// Whether an operation on the chain's result and one more operand is part of the chain.
    fn continues_with(&self, operator: Operator) -> bool {
        let adds = |operator| matches!(operator, Operator::Plus | Operator::Minus);
        self.operators.iter().all(|of| adds(*of) == adds(operator))
    }

    /// The chain as text, given the operands as text.
    fn write(&self, operands: impl Iterator<Item = String>) -> String {
        let operators = self.operators.iter().map(|operator| format!(" {operator} "));
        std::iter::once(String::new()).chain(operators).zip(operands).flat_map(|(of, operand)| [of, operand]).collect()
    }
}

/// One operation of a chain.
fn apply_checked(left: &ColumnarValue, operator: Operator, right: &ColumnarValue) -> Result<ColumnarValue> {
    let result = match operator {
        Operator::Plus => apply(left, right, add),
        Operator::Minus => apply(left, right, sub),
        Operator::Divide => apply(left, right, div),
        _ => apply(left, right, mul),
    };
    match result {
        Ok(result) => {
            let fits = match &result {
                ColumnarValue::Array(array) => fit(array),
                ColumnarValue::Scalar(scalar) => fit(&scalar.to_array()?),
            };
            if fits { Ok(result) } else { beyond(operator, &result.data_type(), None) }
        }
        Err(error) => {
            if let DataFusionError::ArrowError(arrow, _) = error.find_root()
                && let ArrowError::ArithmeticOverflow(overflow) = arrow.as_ref()
            {
                let data_type = result_type(&left.data_type(), operator, &right.data_type())?;
                return beyond(operator, &data_type, Some(overflow));
            }
            Err(error)
        }
    }
}

/// The type of the result of an operation.
///
/// # Errors
/// If there is no such operation of these types.
pub(crate) fn result_type(left: &DataType, operator: Operator, right: &DataType) -> Result<DataType> {
    // The planner computes this often for integers.
    if left.is_integer() && left == right {
        return Ok(left.clone());
    }
    BinaryTypeCoercer::new(left, &operator, right).get_result_type()
}

/// The error for a result that does not fit its type, based on Arrow's error.
fn beyond<T>(operator: Operator, data_type: &DataType, overflow: Option<&str>) -> Result<T> {
    let Some((precision, scale)) = digits(data_type) else {
        let overflow = overflow.unwrap_or("a result");
        let operation = overflow.rsplit(": ").next().unwrap_or(overflow);
        return exec_err!(
            "{operation} is beyond the range of {data_type}: write CAST(x AS DECIMAL(38, 0)) for an operand x, or a \
             wider type"
        );
    };
    let operation = match operator {
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

impl ScalarUDFImpl for CheckedArithmetic {
    fn name(&self) -> &str {
        match self.operators.as_slice() {
            [first, rest @ ..] if rest.iter().any(|operator| operator != first) => "arithmetic",
            [Operator::Plus, ..] => "add",
            [Operator::Minus, ..] => "subtract",
            [Operator::Divide, ..] => "divide",
            _ => "multiply",
        }
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(self.write(args.iter().map(Expr::to_string)))
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(self.write(args.iter().map(|arg| arg.schema_name().to_string())))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        // Rules compute the types of deep expressions many times.
        cancellation::check()?;
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, nullable)))
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [first, rest @ ..] = arg_types else { return internal_err!("arithmetic of no types") };
        let mut operands = self.operators.iter().zip(rest);
        operands.try_fold(first.clone(), |left, (operator, right)| result_type(&left, *operator, right))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let mut args = args.args.into_iter();
        let Some(first) = args.next() else { return internal_err!("arithmetic of no values") };
        let mut operands = self.operators.iter().zip(args);
        operands.try_fold(first, |left, (operator, right)| apply_checked(&left, *operator, &right))
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        let [first, rest @ ..] = inputs else { return internal_err!("arithmetic of no intervals") };
        let mut operands = self.operators.iter().zip(rest);
        operands.try_fold((*first).clone(), |left, (operator, right)| apply_operator(operator, &left, right))
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        let [first, rest @ ..] = inputs else { return Ok(SortProperties::Unordered) };
        let operands = self.operators.iter().zip(rest);
        Ok(operands.fold(first.sort_properties, |left, (operator, right)| match operator {
            Operator::Plus => left.add(&right.sort_properties),
            Operator::Minus => left.sub(&right.sort_properties),
            _ => SortProperties::Unordered,
        }))
    }
}
