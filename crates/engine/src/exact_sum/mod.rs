//! Sums of 64-bit integers that are exact, or an error that says so.
//!
//! DataFusion 55 adds them in 64 bits, in which they wrap. Here they are added in 128 bits, which 2^64 of them do not fill,
//! partial sums are `DECIMAL(38, 0)`, and only the result must fit its type.

mod accumulators;
mod function;
mod groups;

use std::fmt::Debug;

use arrow::array::{Array, PrimitiveArray};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Int64Type, UInt64Type};
use datafusion::common::{Result, exec_datafusion_err};

pub use function::ExactSum;

/// The type of partial sums.
const PARTIAL: DataType = DataType::Decimal128(38, 0);

/// An integer type whose sums are exact.
trait Summand: ArrowPrimitiveType<Native: Into<i128> + TryFrom<i128>> + Send + Sync + Debug + Sized {
    /// Its name in SQL.
    const NAME: &str;

    /// The sum of values, in terms of which 2^31 do not overflow: the upper and the lower half of each value.
    fn sum_of_halves(values: &[Self::Native]) -> (i64, u64);

    /// The sum of the values of an array that are not null.
    fn sum(array: &PrimitiveArray<Self>) -> i128 {
        let Some(nulls) = array.nulls().filter(|nulls| nulls.null_count() > 0) else {
            return sum_of_slice::<Self>(array.values());
        };
        nulls.valid_slices().map(|(start, end)| sum_of_slice::<Self>(&array.values()[start..end])).sum()
    }

    /// A sum in the type of the result.
    ///
    /// # Errors
    /// If it does not fit.
    fn result(sum: i128) -> Result<Self::Native> {
        Self::Native::try_from(sum).map_err(|_| {
            exec_datafusion_err!(
                "a sum is {sum}, which is beyond the range of {}: write sum(CAST(x AS DECIMAL(38, 0))) for sum(x)",
                Self::NAME
            )
        })
    }
}

/// Adds in 64 bits, which processors have vectors for.
fn sum_of_slice<T: Summand>(values: &[T::Native]) -> i128 {
    let chunks = values.chunks(1 << 31).map(T::sum_of_halves);
    chunks.map(|(upper, lower)| (i128::from(upper) << 32) + i128::from(lower)).sum()
}

impl Summand for Int64Type {
    const NAME: &str = "BIGINT";

    fn sum_of_halves(values: &[i64]) -> (i64, u64) {
        values
            .iter()
            .fold((0, 0), |(upper, lower), value| (upper + (value >> 32), lower + (*value as u64 & LOWER_HALF)))
    }
}

impl Summand for UInt64Type {
    const NAME: &str = "BIGINT UNSIGNED";

    fn sum_of_halves(values: &[u64]) -> (i64, u64) {
        values.iter().fold((0, 0), |(upper, lower), value| (upper + (value >> 32) as i64, lower + (value & LOWER_HALF)))
    }
}

const LOWER_HALF: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, UInt64Array};

    use super::*;

    #[test]
    fn sums_of_the_largest_values_are_exact() {
        let signed =
            Int64Array::from(vec![Some(i64::MAX), None, Some(i64::MAX), Some(-1), Some(i64::MIN), Some(i64::MIN)]);
        assert_eq!(Int64Type::sum(&signed), -3);
        assert_eq!(Int64Type::sum(&Int64Array::from(vec![i64::MIN; 3])), 3 * i128::from(i64::MIN));
        let unsigned = UInt64Array::from(vec![u64::MAX, u64::MAX, 2]);
        assert_eq!(UInt64Type::sum(&unsigned), i128::from(u64::MAX) * 2 + 2);
        assert!(UInt64Type::result(i128::from(u64::MAX) + 1).is_err());
        assert!(UInt64Type::result(-1).is_err());
        assert_eq!(Int64Type::result(i128::from(i64::MIN)).unwrap(), i64::MIN);
    }
}
