//! Sums and averages that are exact, or an error if the result does not fit its type.
//!
//! DataFusion 55 adds numbers in their own type and wraps around. So does this module, but it counts how often: a sum of n
//! bits is exact together with its [carry](Total::carry), the number of times that it has passed 2^n. Few or no sums have a
//! carry. The state of a partial sum is two columns, the wrapped sum and the carry, and only a final result must fit its
//! type. Intervals, which are rarely summed in large numbers, are summed in wider numbers, part by part.

mod accumulators;
mod average;
mod function;
mod groups;
mod intervals;
mod total;

use std::fmt::Debug;

use arrow::array::{Array, ArrowPrimitiveType, PrimitiveArray};
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Int64Type, UInt64Type,
};
use datafusion::common::{Result, exec_err};

pub use average::ExactAverage;
pub use function::ExactSum;
use total::{Carrying, Total};

use crate::decimals::{digits, most_digits_of_wider};

/// A type with exact sums.
trait Summand: ArrowPrimitiveType<Native: Carrying> + Send + Sync + Debug + Sized {
    /// Checks that a sum without a carry is a value of the result's type.
    fn fits(_sum: Self::Native, _result: &DataType) -> bool {
        true
    }

    /// The advice in the error for a sum that does not fit the result's type.
    fn remedy(result: &DataType) -> String;

    /// The sum of the values of an array that are not null.
    fn sum(array: &PrimitiveArray<Self>) -> Total<Self::Native> {
        let mut total = Total::default();
        match array.nulls().filter(|nulls| nulls.null_count() > 0) {
            Some(nulls) => {
                for (start, end) in nulls.valid_slices() {
                    total.add(Self::Native::sum(&array.values()[start..end]));
                }
            }
            None => total.add(Self::Native::sum(array.values())),
        }
        total
    }

    /// A sum in the type of the result.
    ///
    /// # Errors
    /// Fails if it does not fit.
    fn result(total: Total<Self::Native>, result: &DataType) -> Result<Self::Native> {
        match total.value() {
            Some(sum) if Self::fits(sum, result) => Ok(sum),
            _ => beyond::<Self, _>(total, result),
        }
    }
}

#[cold]
fn beyond<T: Summand, R>(total: Total<T::Native>, result: &DataType) -> Result<R> {
    let sum = match total.exact() {
        Some(sum) if !result.is_decimal() => format!("a sum is {sum}, which"),
        // Without its decimal point the number is hard to read.
        _ => "a sum".to_owned(),
    };
    exec_err!("{sum} is beyond the range of {}: {}", name(result), T::remedy(result))
}

/// A type's name in SQL.
fn name(data_type: &DataType) -> String {
    match (data_type, digits(data_type)) {
        (_, Some((precision, scale))) => format!("DECIMAL({precision}, {scale})"),
        (DataType::Int64, _) => "BIGINT".to_owned(),
        (DataType::UInt64, _) => "BIGINT UNSIGNED".to_owned(),
        (other, _) => other.to_string(),
    }
}

macro_rules! with_remedy {
    ($remedy:literal, $($data_type:ty),+) => {
        $(impl Summand for $data_type {
            fn remedy(_: &DataType) -> String {
                $remedy.to_owned()
            }
        })+
    };
}
with_remedy!("write sum(CAST(x AS DECIMAL(38, 0))) for sum(x)", Int64Type, UInt64Type);
with_remedy!(
    "write sum(arrow_cast(x, 'Duration(s)')) for sum(x), which counts seconds",
    DurationSecondType,
    DurationMillisecondType,
    DurationMicrosecondType,
    DurationNanosecondType
);

macro_rules! decimals {
    ($($data_type:ty),+) => {
        $(impl Summand for $data_type {
            fn fits(sum: Self::Native, result: &DataType) -> bool {
                digits(result).is_none_or(|(precision, _)| Self::is_valid_decimal_precision(sum, precision))
            }

            fn remedy(result: &DataType) -> String {
                let scale = digits(result).map_or(0, |(_, scale)| scale);
                match most_digits_of_wider(result) {
                    Some(most) => format!("write sum(CAST(x AS DECIMAL({most}, {scale}))) for sum(x)"),
                    None => "no DECIMAL has more digits; write sum(CAST(x AS DOUBLE)) for sum(x)".to_owned(),
                }
            }
        })+
    };
}
decimals!(Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type);

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, Int64Array, UInt64Array};
    use arrow::datatypes::i256;

    use super::*;

    #[test]
    fn sums_of_the_largest_values_are_exact() {
        let signed =
            Int64Array::from(vec![Some(i64::MAX), None, Some(i64::MAX), Some(-1), Some(i64::MIN), Some(i64::MIN)]);
        assert_eq!(Int64Type::sum(&signed).exact(), Some(i256::from(-3)));
        let least = i256::from(i64::MIN);
        let total = Int64Type::sum(&Int64Array::from(vec![i64::MIN; 3]));
        assert_eq!(total.exact(), Some(least + least + least));
        assert_eq!(total.value(), None);
        let unsigned = UInt64Array::from(vec![u64::MAX, u64::MAX, 2]);
        assert_eq!(UInt64Type::sum(&unsigned).exact(), Some(i256::from(i128::from(u64::MAX) * 2 + 2)));
        assert!(UInt64Type::result(UInt64Type::sum(&unsigned), &DataType::UInt64).is_err());
    }

    #[test]
    fn sums_of_decimals_carry_and_return() {
        let most = 10_i128.pow(38) - 1;
        let rising = Decimal128Type::sum(&Decimal128Array::from(vec![most; 5]));
        assert_eq!(rising.value(), None);
        assert_eq!(rising.exact(), Some(i256::from(most) * i256::from(5)));
        let mut total = rising;
        total.add(Decimal128Type::sum(&Decimal128Array::from(vec![-most; 4])));
        assert_eq!(total.value(), Some(most));
        let result = DataType::Decimal128(38, 0);
        assert_eq!(Decimal128Type::result(total, &result).unwrap(), most);
        // 39 digits fit into 128 bits, but not into a DECIMAL(38, 0).
        total.add(Total::of(1));
        assert!(Decimal128Type::result(total, &result).is_err());
    }
}
