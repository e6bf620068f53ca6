//! Makes two operands comparable.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{Cast, Expr};

use super::numbers::{Written, as_decimals};

/// The conversion of an operand before DataFusion brings both to one type.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::analyzer) enum Side {
    AsItIs,
    Cast(DataType),
    /// Numbers in it become decimals.
    Exact,
}

impl Side {
    /// The conversion of an operand, given the other operand.
    ///
    /// # Errors
    /// Fails if SQL does not allow the comparison, or if a number in the query has lost significant digits.
    pub(super) fn of(
        expr: &Expr,
        own_type: &DataType,
        other: &Expr,
        other_type: &DataType,
        config: &ConfigOptions,
    ) -> Result<Self> {
        use DataType::{Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Float64, Timestamp};
        let (own_type, other_type) = (value_type(own_type), value_type(other_type));
        Ok(match (own_type, other_type) {
            (own, Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..)) if own.is_floating() => {
                match Written::of(expr) {
                    Written::Exactly => Side::Exact,
                    Written::Rounded(number) => return lost_digits(number),
                    Written::NotANumber => Side::AsItIs,
                }
            }
            (own, beside) if own.is_decimal() && beside.is_floating() => match Written::of(other) {
                Written::NotANumber => Side::Cast(Float64),
                _ => Side::AsItIs,
            },
            (Float64, beside) if beside.is_integer() => match Written::of(expr) {
                // The additional digits could be those of the least BIGINT.
                Written::Rounded(number) if number == i64::MIN as f64 => return lost_digits(number),
                Written::Rounded(_) => Side::Exact,
                _ => Side::AsItIs,
            },
            (own, DataType::Float16 | DataType::Float32) if own.is_integer() && own.primitive_width() >= Some(4) => {
                Side::Cast(Float64)
            }
            (Timestamp(unit, None), Timestamp(_, Some(_))) => Side::Cast(Timestamp(*unit, Some(time_zone(config)))),
            (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, Timestamp(_, Some(_))) => {
                Side::Cast(Timestamp(TimeUnit::Nanosecond, Some(time_zone(config))))
            }
            (Date32, Timestamp(_, Some(_))) => Side::Cast(Timestamp(TimeUnit::Second, Some(time_zone(config)))),
            (Date64, Timestamp(_, Some(_))) => Side::Cast(Timestamp(TimeUnit::Millisecond, Some(time_zone(config)))),
            // The wider range of both; DataFusion would take the narrower one.
            (Date32, Timestamp(unit, None)) => Side::Cast(Timestamp(*unit, None)),
            (Date32 | Date64, beside) if beside.is_integer() || is_time(beside) => {
                return plan_err!(
                    "{expr} is a date and cannot be compared with {other}, which is of type {other_type}: write CAST for \
                     what is meant, as in CAST({other} AS DATE)"
                );
            }
            _ => Side::AsItIs,
        })
    }

    /// The operand after the conversion.
    ///
    /// # Errors
    /// Fails for expressions that [`Side::of`] has not accepted.
    pub(super) fn apply(&self, expr: Expr) -> Result<Expr> {
        match self {
            Side::AsItIs => Ok(expr),
            Side::Cast(to) => Ok(Expr::Cast(Cast::new(Box::new(expr), to.clone()))),
            Side::Exact => as_decimals(expr),
        }
    }
}

/// The conversions of two operands. After them, DataFusion compares the operands as SQL does.
#[derive(Debug, Clone)]
pub(in crate::analyzer) struct Comparable {
    left: Side,
    right: Side,
}

impl Comparable {
    /// The conversions for two operands of these types.
    ///
    /// # Errors
    /// The errors of [`Side::of`].
    pub(in crate::analyzer) fn of(
        left: &Expr,
        left_type: &DataType,
        right: &Expr,
        right_type: &DataType,
        config: &ConfigOptions,
    ) -> Result<Self> {
        Ok(Self {
            left: Side::of(left, left_type, right, right_type, config)?,
            right: Side::of(right, right_type, left, left_type, config)?,
        })
    }

    pub(super) fn is_as_it_is(&self) -> bool {
        self.leaves_left() && self.right == Side::AsItIs
    }

    pub(super) fn leaves_left(&self) -> bool {
        self.left == Side::AsItIs
    }

    pub(super) fn right_side(&self) -> &Side {
        &self.right
    }

    /// The left operand after its conversion.
    pub(in crate::analyzer) fn left(&self, expr: Expr) -> Result<Expr> {
        self.left.apply(expr)
    }

    /// The right operand after its conversion.
    pub(in crate::analyzer) fn right(&self, expr: Expr) -> Result<Expr> {
        self.right.apply(expr)
    }
}

/// Checks that a number that becomes an integer or a decimal equals the number in the query.
///
/// # Errors
/// Fails if the number has lost digits.
pub(super) fn check_digits(expr: &Expr, to: &DataType) -> Result<()> {
    match Written::of(expr) {
        Written::Rounded(number) if to.is_integer() || to.is_decimal() => lost_digits(number),
        _ => Ok(()),
    }
}

/// The common type that DataFusion compares values of these types in.
///
/// # Errors
/// Fails if there is none.
pub(in crate::analyzer) fn common_type(left: &DataType, right: &DataType) -> Result<DataType> {
    comparison_coercion(left, right)
        .ok_or_else(|| plan_datafusion_err!("values of type {left} cannot be compared with those of type {right}"))
}

fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Time32(_) | DataType::Time64(_))
}

/// The time zone of the session: UTC unless it is set.
pub(in crate::analyzer) fn time_zone(config: &ConfigOptions) -> Arc<str> {
    config.execution.time_zone.as_deref().unwrap_or("+00:00").into()
}

fn lost_digits<T>(number: f64) -> Result<T> {
    plan_err!(
        "a number beyond 64 bits, {number:e}, is read as a DOUBLE and may have lost digits: write it as text and with its \
         type, as in CAST('18446744073709551617' AS DECIMAL(38, 0))"
    )
}
