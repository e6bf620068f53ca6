//! The numbers in the text of a query.
//!
//! DataFusion reads `0.1` as a `DOUBLE`, and also each whole number of more than 64 bits. The query's number is the shortest
//! decimal number that the `DOUBLE` represents, if that has no more than 15 digits.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, lit};

/// From this number on, a `DOUBLE` cannot distinguish neighbouring whole numbers.
const LEAST_ROUNDED: f64 = 9_007_199_254_740_992.0;

/// The maximum number of digits of a decimal.
const LEAST_TOO_LARGE: f64 = 1e38;

/// What is known about the decimal value of an expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Written {
    /// It consists of numbers written in the query, and each has a decimal value.
    Exactly,
    /// It is a whole number that may have had more digits than are left.
    Rounded(f64),
    /// Anything else.
    NotANumber,
}

impl Written {
    /// Analyzes an expression of numbers, `+`, `-` and `*`.
    pub(super) fn of(expr: &Expr) -> Self {
        match expr {
            Expr::Literal(ScalarValue::Float64(Some(number)), _) => Self::of_number(*number),
            Expr::Literal(value, _) if value.data_type().is_integer() => Written::Exactly,
            Expr::Negative(of) => match Self::of(of) {
                Written::Rounded(number) => Written::Rounded(-number),
                written => written,
            },
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus | Operator::Minus | Operator::Multiply, right }) => {
                match (Self::of(left), Self::of(right)) {
                    (Written::Exactly, Written::Exactly) => Written::Exactly,
                    _ => Written::NotANumber,
                }
            }
            _ => Written::NotANumber,
        }
    }

    fn of_number(number: f64) -> Self {
        match exact_decimal(number) {
            Some(_) if is_rounded(number) => Written::Rounded(number),
            Some(_) => Written::Exactly,
            None => Written::NotANumber,
        }
    }
}

/// The expression with its numbers as decimals.
pub(super) fn as_decimals(expr: Expr) -> Result<Expr> {
    expr.transform_up(|expr| match &expr {
        Expr::Literal(ScalarValue::Float64(Some(number)), _) => Ok(match exact_decimal(*number) {
            Some(decimal) => Transformed::yes(lit(decimal)),
            None => Transformed::no(expr),
        }),
        _ => Ok(Transformed::no(expr)),
    })
    .data()
}

fn is_rounded(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() >= LEAST_ROUNDED
}

/// The decimal number that the query must have written to yield this number; its own value if digits may be lost. `None` if
/// decimals cannot hold it.
fn exact_decimal(number: f64) -> Option<ScalarValue> {
    if !number.is_finite() || number.abs() >= LEAST_TOO_LARGE {
        return None;
    }
    if is_rounded(number) {
        return Some(ScalarValue::Decimal128(Some(number as i128), 38, 0));
    }
    let text = number.to_string();
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    let scale = i8::try_from(fraction.len()).ok()?;
    let digits = text.replace(['.', '-'], "");
    let precision = u8::try_from(digits.trim_start_matches('0').len().max(fraction.len()).max(1)).ok()?;
    let value = text.replace('.', "").parse().ok()?;
    (precision <= 38).then_some(ScalarValue::Decimal128(Some(value), precision, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_what_the_query_says() {
        let decimal = |number| match exact_decimal(number) {
            Some(ScalarValue::Decimal128(Some(value), precision, scale)) => Some((value, precision, scale)),
            _ => None,
        };
        assert_eq!(decimal(0.07), Some((7, 2, 2)));
        assert_eq!(decimal(-123456.789), Some((-123456789, 9, 3)));
        assert_eq!(decimal(0.0), Some((0, 1, 0)));
        assert_eq!(decimal(1e-20), Some((1, 20, 20)));
        assert_eq!(decimal(18446744073709551616.0), Some((1 << 64, 38, 0)));
        assert_eq!(decimal(1e38), None);
        assert_eq!(decimal(1e-39), None);
        assert_eq!(decimal(f64::NAN), None);
    }
}
