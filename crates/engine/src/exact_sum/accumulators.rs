//! Sums without groups, and over windows.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::Decimal128Type;
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Accumulator;

use super::{PARTIAL, Summand};

/// A sum of values, which also can be taken out again.
#[derive(Debug)]
pub(super) struct SumAccumulator<T> {
    sum: i128,
    /// How many values it is of.
    count: usize,
    summand: PhantomData<T>,
}

impl<T> SumAccumulator<T> {
    pub(super) fn new() -> Self {
        Self { sum: 0, count: 0, summand: PhantomData }
    }
}

impl<T: Summand> Accumulator for SumAccumulator<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        self.sum += T::sum(values);
        self.count += values.len() - values.null_count();
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        self.sum -= T::sum(values);
        self.count -= values.len() - values.null_count();
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = if self.count == 0 { None } else { Some(T::result(self.sum)?) };
        ScalarValue::new_primitive::<T>(sum, &T::DATA_TYPE)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sum = (self.count > 0).then_some(self.sum);
        Ok(vec![ScalarValue::new_primitive::<Decimal128Type>(sum, &PARTIAL)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let sums = states[0].as_primitive::<Decimal128Type>();
        self.sum += sums.iter().flatten().sum::<i128>();
        self.count += sums.len() - sums.null_count();
        Ok(())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of different values, which also can be taken out again.
#[derive(Debug)]
pub(super) struct DistinctSumAccumulator<T: Summand> {
    /// How often each value is there.
    counts: HashMap<i128, usize>,
    sum: i128,
    summand: PhantomData<T>,
}

impl<T: Summand> DistinctSumAccumulator<T> {
    pub(super) fn new() -> Self {
        Self { counts: HashMap::new(), sum: 0, summand: PhantomData }
    }

    fn add(&mut self, values: &PrimitiveArray<T>) {
        for value in values.iter().flatten() {
            let value = value.into();
            let count = self.counts.entry(value).or_default();
            if *count == 0 {
                self.sum += value;
            }
            *count += 1;
        }
    }
}

impl<T: Summand> Accumulator for DistinctSumAccumulator<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values[0].as_primitive::<T>());
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            let value = value.into();
            if let Some(count) = self.counts.get_mut(&value) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&value);
                    self.sum -= value;
                }
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = if self.counts.is_empty() { None } else { Some(T::result(self.sum)?) };
        ScalarValue::new_primitive::<T>(sum, &T::DATA_TYPE)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = self.counts.keys().map(|value| T::result(*value)).collect::<Result<Vec<_>>>()?;
        let values: ArrayRef = Arc::new(PrimitiveArray::<T>::from_iter_values(values));
        Ok(vec![SingleRowListArrayBuilder::new(values).build_list_scalar()])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            self.add(values.as_primitive::<T>());
        }
        Ok(())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(i128, usize)>()
    }
}
