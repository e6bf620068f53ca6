//! Sums without groups, and over windows.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::sum;
use arrow::datatypes::{DataType, Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Accumulator;

use super::intervals::{Interval, total};
use super::{Summand, Total};

/// A sum of values that supports removing values.
#[derive(Debug)]
pub(super) struct SumAccumulator<T: Summand> {
    pub(super) total: Total<T::Native>,
    /// The number of values in the sum.
    pub(super) count: usize,
    /// The type of the result.
    pub(super) data_type: DataType,
}

impl<T: Summand> SumAccumulator<T> {
    pub(super) fn new(data_type: DataType) -> Self {
        Self { total: Total::default(), count: 0, data_type }
    }
}

impl<T: Summand> Accumulator for SumAccumulator<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        self.total.add(T::sum(values));
        self.count += values.len() - values.null_count();
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        self.total.subtract(T::sum(values));
        self.count -= values.len() - values.null_count();
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = if self.count == 0 { None } else { Some(T::result(self.total, &self.data_type)?) };
        ScalarValue::new_primitive::<T>(sum, &self.data_type)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sum = (self.count > 0).then_some(self.total.wrapped);
        Ok(vec![ScalarValue::new_primitive::<T>(sum, &self.data_type)?, ScalarValue::from(self.total.carry)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)?;
        self.total.carry += carries(&states[1]);
        Ok(())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of the carries of partial sums.
fn carries(state: &ArrayRef) -> i64 {
    sum(state.as_primitive::<Int64Type>()).unwrap_or_default()
}

/// The sum of distinct values that supports removing values.
#[derive(Debug)]
pub(super) struct DistinctSumAccumulator<T: Summed> {
    /// The number of occurrences of each value.
    counts: HashMap<T::Native, usize>,
    /// The type of the result.
    data_type: DataType,
}

/// A type that supports sums of distinct values.
pub(super) trait Summed: ArrowPrimitiveType<Native: Eq + Hash> + Debug {
    /// The sum of values, in the type of the result.
    ///
    /// # Errors
    /// Fails if it does not fit.
    fn sum_of(values: impl Iterator<Item = Self::Native>, result: &DataType) -> Result<Self::Native>;
}

impl<T: Summand> Summed for T {
    fn sum_of(values: impl Iterator<Item = T::Native>, result: &DataType) -> Result<T::Native> {
        let mut total = Total::default();
        values.for_each(|value| total.add_value(value));
        T::result(total, result)
    }
}

macro_rules! intervals {
    ($($data_type:ty),+) => {
        $(impl Summed for $data_type {
            fn sum_of(values: impl Iterator<Item = Self::Native>, _: &DataType) -> Result<Self::Native> {
                <$data_type>::sum(total::<$data_type>(values))
            }
        })+
    };
}
intervals!(IntervalYearMonthType, IntervalDayTimeType, IntervalMonthDayNanoType);

impl<T: Summed> DistinctSumAccumulator<T> {
    pub(super) fn new(data_type: DataType) -> Self {
        Self { counts: HashMap::new(), data_type }
    }

    fn add(&mut self, values: &PrimitiveArray<T>) {
        for value in values.iter().flatten() {
            *self.counts.entry(value).or_default() += 1;
        }
    }
}

impl<T: Summed> Accumulator for DistinctSumAccumulator<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values[0].as_primitive::<T>());
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            if let Some(count) = self.counts.get_mut(&value) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&value);
                }
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum =
            if self.counts.is_empty() { None } else { Some(T::sum_of(self.counts.keys().copied(), &self.data_type)?) };
        ScalarValue::new_primitive::<T>(sum, &self.data_type)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = PrimitiveArray::<T>::from_iter_values(self.counts.keys().copied());
        let values: ArrayRef = Arc::new(values.with_data_type(self.data_type.clone()));
        Ok(vec![SingleRowListArrayBuilder::new(values).build_list_scalar()])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            self.add(values.as_primitive::<T>());
        }
        Ok(())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(T::Native, usize)>()
    }
}
