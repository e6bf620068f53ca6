//! Decimals with values that have more digits than their type.
//!
//! Arrow checks that decimal results fit the bits of their type, not that they fit its digits.

use arrow::array::{Array, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType};

/// The precision and scale of a decimal type.
pub(crate) fn digits(data_type: &DataType) -> Option<(u8, i8)> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => Some((*precision, *scale)),
        _ => None,
    }
}

/// Whether a decimal type has the most digits that its bits allow, so that results of arithmetic may have more digits.
pub(crate) fn is_full(data_type: &DataType) -> bool {
    match data_type {
        DataType::Decimal32(precision, _) => *precision == Decimal32Type::MAX_PRECISION,
        DataType::Decimal64(precision, _) => *precision == Decimal64Type::MAX_PRECISION,
        DataType::Decimal128(precision, _) => *precision == Decimal128Type::MAX_PRECISION,
        DataType::Decimal256(precision, _) => *precision == Decimal256Type::MAX_PRECISION,
        _ => false,
    }
}

/// The maximum precision of a wider decimal type; `None` if there is no such type.
pub(crate) fn most_digits_of_wider(data_type: &DataType) -> Option<u8> {
    match data_type {
        DataType::Decimal32(..) | DataType::Decimal64(..) => Some(Decimal128Type::MAX_PRECISION),
        DataType::Decimal128(..) => Some(Decimal256Type::MAX_PRECISION),
        _ => None,
    }
}

/// Whether no value of an array has more digits than its type. Always true for other types.
pub(crate) fn fit(array: &dyn Array) -> bool {
    match array.data_type() {
        DataType::Decimal32(precision, _) => fit_digits::<Decimal32Type>(array.as_primitive(), *precision),
        DataType::Decimal64(precision, _) => fit_digits::<Decimal64Type>(array.as_primitive(), *precision),
        DataType::Decimal128(precision, _) => fit_digits::<Decimal128Type>(array.as_primitive(), *precision),
        DataType::Decimal256(precision, _) => fit_digits::<Decimal256Type>(array.as_primitive(), *precision),
        _ => true,
    }
}

fn fit_digits<T: DecimalType>(array: &PrimitiveArray<T>, precision: u8) -> bool {
    let fits = |value| T::is_valid_decimal_precision(value, precision);
    // The values behind nulls are arbitrary.
    array.values().iter().fold(true, |all, value| all & fits(*value)) || array.iter().flatten().all(fits)
}
