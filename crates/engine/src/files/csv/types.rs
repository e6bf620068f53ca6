//! Infers column types from text.

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::kernels::cast_utils::{Parser, string_to_datetime, string_to_timestamp_nanos};
use arrow::datatypes::{DataType, Date32Type, Float32Type, Float64Type, TimeUnit};

/// The types that all values of a column seen so far could have: a set of [`Kind`]s, with [`FAR`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen(u8);

/// The form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Boolean = 1,
    Integer = 2,
    Number = 4,
    Date = 8,
    /// Date and time, to the second.
    Time = 16,
    /// Date and time with fractional seconds, up to nine digits.
    FineTime = 32,
    Text = 64,
}

/// Set together with [`Kind::Date`] and [`Kind::Time`] if the value does not fit nanoseconds since 1970 (years 1677 to 2262).
const FAR: u8 = 128;

impl Seen {
    /// The form of one value.
    pub fn of(value: &str) -> Self {
        let kind = kind(value);
        let is_far = matches!(kind, Kind::Date | Kind::Time) && string_to_timestamp_nanos(value).is_err();
        Self(kind as u8 | if is_far { FAR } else { 0 })
    }

    /// Examines all values of a column.
    pub fn add(&mut self, values: &StringArray) {
        for row in 0..values.len() {
            // An empty value in quotes is read as NULL unless the column is text.
            if values.is_valid(row) && !values.value(row).is_empty() {
                *self = self.and(Self::of(values.value(row)));
            }
        }
    }

    /// The forms of several columns together.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether both have the same kinds.
    pub fn is_like(self, other: Self) -> bool {
        self.0 & !FAR == other.0 & !FAR
    }

    /// Whether no value was seen.
    pub fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// The type that fits all values; text if there were none, so that no later value is lost.
    pub fn data_type(self) -> DataType {
        const TIMES: u8 = Kind::Date as u8 | Kind::Time as u8;
        match self.0 & !FAR {
            1 => DataType::Boolean,
            2 => DataType::Int64,
            4 | 6 => DataType::Float64,
            8 => DataType::Date32,
            seen if seen != 0 && seen & !TIMES == 0 => DataType::Timestamp(TimeUnit::Second, None),
            seen if seen != 0 && seen & !(TIMES | Kind::FineTime as u8) == 0 && self.0 & FAR == 0 => {
                DataType::Timestamp(TimeUnit::Nanosecond, None)
            }
            _ => DataType::Utf8,
        }
    }
}

fn kind(value: &str) -> Kind {
    let bytes = value.as_bytes();
    match bytes.first() {
        Some(b'0'..=b'9' | b'-' | b'.') => number(value).or_else(|| time(value)).unwrap_or(Kind::Text),
        Some(b't' | b'T' | b'f' | b'F')
            if value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false") =>
        {
            Kind::Boolean
        }
        _ => Kind::Text,
    }
}

/// `-12`, `1.5`, `.5`, `1.`, `1e9`.
fn number(value: &str) -> Option<Kind> {
    let unsigned = value.strip_prefix('-').unwrap_or(value);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    if let Some(exponent) = exponent {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        if !is_digits(digits) {
            return None;
        }
    }
    // A number that would become infinite remains text.
    let is_finite = || value.parse::<f64>().is_ok_and(f64::is_finite);
    match (mantissa.split_once('.'), exponent) {
        (Some((whole, part)), _) => {
            let some = !whole.is_empty() || !part.is_empty();
            (some && all_digits(whole) && all_digits(part) && is_finite()).then_some(Kind::Number)
        }
        (None, Some(_)) => (is_digits(mantissa) && is_finite()).then_some(Kind::Number),
        (None, None) if !is_digits(mantissa) => None,
        // A number that fits no integer type remains text: a float would lose digits.
        (None, None) => Some(if value.parse::<i64>().is_ok() { Kind::Integer } else { Kind::Text }),
    }
}

/// `2024-01-31`, `2024-01-31 12:30:00`, `2024-01-31T12:30:00.5+02:00`. Invalid days and times, such as `2024-02-31`, do not
/// count.
fn time(value: &str) -> Option<Kind> {
    let kind = shape_of_time(value.as_bytes())?;
    let is_one = match kind {
        Kind::Date => Date32Type::parse(value).is_some(),
        _ if has_leap_second(value) => false,
        Kind::FineTime => string_to_timestamp_nanos(value).is_ok(),
        _ => "+00:00".parse::<Tz>().is_ok_and(|utc| string_to_datetime(&utc, value).is_ok()),
    };
    is_one.then_some(kind)
}

/// The first row of `values` that lost something when it was cast to `array`: `1e999` became infinite, a date lost its time
/// of day, or a time lost digits of its fraction of a second.
pub fn first_lossy(values: &StringArray, array: &ArrayRef) -> Option<usize> {
    let first = |is_lossy: &dyn Fn(usize, &str) -> bool| {
        (0..values.len()).find(|row| values.is_valid(*row) && is_lossy(*row, values.value(*row)))
    };
    // "inf" itself is infinite and loses nothing.
    let is_digit = |value: &str| value.bytes().any(|byte| byte.is_ascii_digit());
    match array.data_type() {
        DataType::Float32 => {
            let numbers = array.as_primitive::<Float32Type>();
            first(&|row, value| numbers.value(row).is_infinite() && is_digit(value))
        }
        DataType::Float64 => {
            let numbers = array.as_primitive::<Float64Type>();
            first(&|row, value| numbers.value(row).is_infinite() && is_digit(value))
        }
        DataType::Date32 => first(&|_, value| value.len() > 10 && value.contains(':')),
        DataType::Timestamp(unit, _) => {
            let digits = match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 3,
                TimeUnit::Microsecond => 6,
                TimeUnit::Nanosecond => 9,
            };
            first(&|_, value| has_leap_second(value) || is_finer_than(value, digits))
        }
        _ => None,
    }
}

/// Whether a time has a second 60. No type has one: it would be read as the second before.
fn has_leap_second(time: &str) -> bool {
    time.as_bytes().get(16..19) == Some(b":60")
}

/// Whether the fraction of a second in `time` has more than `digits` digits, not counting trailing zeros.
fn is_finer_than(time: &str, digits: usize) -> bool {
    let part = time.split_once('.').map_or("", |(_, part)| part);
    part.bytes().take_while(u8::is_ascii_digit).skip(digits).any(|digit| digit != b'0')
}

/// The form of a text that has digits where dates and times have them.
fn shape_of_time(bytes: &[u8]) -> Option<Kind> {
    let matches = |text: &[u8], pattern: &[u8]| {
        let fits = |(byte, wanted): (&u8, &u8)| match wanted {
            b'0' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b' '),
            _ => byte == wanted,
        };
        text.len() == pattern.len() && text.iter().zip(pattern).all(fits)
    };
    if matches(bytes, b"0000-00-00") {
        return Some(Kind::Date);
    }
    let (second, rest) = bytes.split_at_checked(19)?;
    if !matches(second, b"0000-00-00T00:00:00") {
        return None;
    }
    let (kind, zone) = match rest.strip_prefix(b".") {
        Some(part) => {
            let digits = part.iter().take_while(|byte| byte.is_ascii_digit()).count();
            ((1..=9).contains(&digits).then_some(Kind::FineTime)?, &part[digits..])
        }
        None => (Kind::Time, rest),
    };
    let zone_fits = match zone {
        b"" | b"Z" => true,
        zone => matches!(zone[0], b'+' | b'-') && (matches(&zone[1..], b"00:00") || matches(&zone[1..], b"0000")),
    };
    zone_fits.then_some(kind)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && all_digits(text)
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(values: &[&str]) -> DataType {
        values.iter().fold(Seen::default(), |seen, value| seen.and(Seen::of(value))).data_type()
    }

    #[test]
    fn a_type_has_all_values() {
        assert_eq!(type_of(&["1", "-20"]), DataType::Int64);
        assert_eq!(type_of(&["1", "2.5", ".5", "1.", "-1e-9"]), DataType::Float64);
        assert_eq!(type_of(&["true", "FALSE"]), DataType::Boolean);
        assert_eq!(type_of(&["2024-01-31"]), DataType::Date32);
        assert_eq!(type_of(&["2024-01-31", "2024-01-31T10:00:00"]), DataType::Timestamp(TimeUnit::Second, None));
        assert_eq!(type_of(&["9999-12-31", "0001-01-01"]), DataType::Date32);
        assert_eq!(type_of(&["9999-12-31 10:00:00"]), DataType::Timestamp(TimeUnit::Second, None));
        assert_eq!(type_of(&["2024-01-31 10:00:00.123456789Z"]), DataType::Timestamp(TimeUnit::Nanosecond, None));
    }

    #[test]
    fn what_is_no_other_type_is_text() {
        for values in [
            &["1", "x"][..],
            &["true", "1"],
            &["9223372036854775808"],
            &["-"],
            &["."],
            &["1e"],
            &["2024-01-31", "1"],
            &["2024-01-31 10:00:00 in the morning"],
            &["2024-1-31"],
            &["0000-00-00"],
            &["2024-02-31"],
            &["2024-01-31 24:00:01"],
            &["2024-01-31 10:61:00"],
            &["2016-12-31 23:59:60"],
            &["2024-01-31 10:00:00+99:00"],
            &["2263-01-01 10:00:00.5"],
            &["9999-12-31", "2024-01-31 10:00:00.5"],
            &["9999-12-31 10:00:00", "2024-01-31 10:00:00.5"],
            &["1e999"],
            &[],
        ] {
            assert_eq!(type_of(values), DataType::Utf8, "{values:?}");
        }
    }
}
