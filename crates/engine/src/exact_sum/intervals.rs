//! Sums of intervals. An interval has separate parts for months, days and time.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, IntervalDayTime, IntervalDayTimeType, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalYearMonthType,
};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::Accumulator;
use datafusion::logical_expr::utils::format_state_name;

/// Months, days, and nanoseconds or milliseconds. No number of rows is large enough for a sum of one part to exceed 128 bits.
type Parts = [i128; 3];

/// The columns of a partial sum.
const STATE: [&str; 3] = ["months", "days", "time"];

/// A part of the sum as a column of a partial sum. A sum of fewer than 2^56 values fits.
const STATE_TYPE: DataType = DataType::Decimal128(38, 0);

pub(super) trait Interval: ArrowPrimitiveType<Native: Eq + Hash> + Debug + Send + Sync {
    fn parts(interval: Self::Native) -> Parts;

    /// The interval with these parts, if they fit.
    fn of_parts(parts: Parts) -> Option<Self::Native>;

    /// The sum of intervals.
    ///
    /// # Errors
    /// Fails if a part of it does not fit.
    fn sum(parts: Parts) -> Result<Self::Native> {
        match Self::of_parts(parts) {
            Some(sum) => Ok(sum),
            None => exec_err!(
                "a sum of intervals is beyond the range of INTERVAL, of months, days or time: write sum(extract(epoch FROM x)) for \
                 sum(x), which counts seconds, 30 days to a month"
            ),
        }
    }
}

impl Interval for IntervalYearMonthType {
    fn parts(months: i32) -> Parts {
        [months.into(), 0, 0]
    }

    fn of_parts([months, ..]: Parts) -> Option<i32> {
        i32::try_from(months).ok()
    }
}

impl Interval for IntervalDayTimeType {
    fn parts(interval: IntervalDayTime) -> Parts {
        [0, interval.days.into(), interval.milliseconds.into()]
    }

    fn of_parts([_, days, time]: Parts) -> Option<IntervalDayTime> {
        Some(IntervalDayTime::new(i32::try_from(days).ok()?, i32::try_from(time).ok()?))
    }
}

impl Interval for IntervalMonthDayNanoType {
    fn parts(interval: IntervalMonthDayNano) -> Parts {
        [interval.months.into(), interval.days.into(), interval.nanoseconds.into()]
    }

    fn of_parts([months, days, time]: Parts) -> Option<IntervalMonthDayNano> {
        let (months, days) = (i32::try_from(months).ok()?, i32::try_from(days).ok()?);
        Some(IntervalMonthDayNano::new(months, days, i64::try_from(time).ok()?))
    }
}

/// The parts of a sum of intervals.
pub(super) fn total<T: Interval>(intervals: impl Iterator<Item = T::Native>) -> Parts {
    intervals.map(T::parts).fold(Parts::default(), |sum, parts| std::array::from_fn(|part| sum[part] + parts[part]))
}

/// The fields of a partial sum.
pub(super) fn state_fields(name: &str) -> Vec<FieldRef> {
    STATE.map(|part| Field::new(format_state_name(name, part), STATE_TYPE, true).into()).into()
}

/// A sum of intervals that supports removing values.
#[derive(Debug)]
pub(super) struct SumAccumulator<T: Interval> {
    parts: Parts,
    /// The number of intervals in the sum.
    count: usize,
    /// The type of the result.
    data_type: DataType,
    of: PhantomData<T>,
}

impl<T: Interval> SumAccumulator<T> {
    pub(super) fn new(data_type: DataType) -> Self {
        Self { parts: Parts::default(), count: 0, data_type, of: PhantomData }
    }
}

impl<T: Interval> Accumulator for SumAccumulator<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        let of_batch = total::<T>(values.iter().flatten());
        self.parts = std::array::from_fn(|part| self.parts[part] + of_batch[part]);
        self.count += values.len() - values.null_count();
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        let of_batch = total::<T>(values.iter().flatten());
        self.parts = std::array::from_fn(|part| self.parts[part] - of_batch[part]);
        self.count -= values.len() - values.null_count();
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = if self.count == 0 { None } else { Some(T::sum(self.parts)?) };
        ScalarValue::new_primitive::<T>(sum, &self.data_type)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let part =
            |part: i128| ScalarValue::new_primitive::<Decimal128Type>((self.count > 0).then_some(part), &STATE_TYPE);
        self.parts.into_iter().map(part).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for (part, states) in self.parts.iter_mut().zip(states) {
            *part += states.as_primitive::<Decimal128Type>().iter().flatten().sum::<i128>();
        }
        self.count += states[0].len() - states[0].null_count();
        Ok(())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}
