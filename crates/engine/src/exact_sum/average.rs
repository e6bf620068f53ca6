//! The function `avg` of durations.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::compute::sum;
use arrow::datatypes::{
    DataType, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType, Field,
    FieldRef, TimeUnit, UInt64Type,
};
use datafusion::common::{Result, ScalarValue, not_impl_err};
use datafusion::functions_aggregate::average::Avg;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, ReversedUDAF, Signature};

use super::Summand;
use super::accumulators::SumAccumulator;

/// `avg` of durations. Their sum may exceed the range of durations. DataFusion adds decimals in a type that is wide enough.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct ExactAverage {
    average: Avg,
}

impl ExactAverage {
    /// Whether it takes values of a type.
    pub fn takes(data_type: &DataType) -> bool {
        matches!(data_type, DataType::Duration(_))
    }
}

impl AggregateUDFImpl for ExactAverage {
    fn name(&self) -> &str {
        self.average.name()
    }

    fn signature(&self) -> &Signature {
        self.average.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.average.return_type(arg_types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return not_impl_err!("avg(DISTINCT …) of durations: write it over a subquery with SELECT DISTINCT");
        }
        let data_type = args.return_type().clone();
        Ok(match data_type {
            DataType::Duration(TimeUnit::Second) => Box::new(Average::<DurationSecondType>::new(data_type)),
            DataType::Duration(TimeUnit::Millisecond) => Box::new(Average::<DurationMillisecondType>::new(data_type)),
            DataType::Duration(TimeUnit::Microsecond) => Box::new(Average::<DurationMicrosecondType>::new(data_type)),
            DataType::Duration(TimeUnit::Nanosecond) => Box::new(Average::<DurationNanosecondType>::new(data_type)),
            other => return not_impl_err!("an exact average of {other}"),
        })
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![
            Arc::new(Field::new(format_state_name(args.name, "sum"), args.return_type().clone(), true)),
            Arc::new(Field::new(format_state_name(args.name, "carry"), DataType::Int64, false)),
            Arc::new(Field::new(format_state_name(args.name, "count"), DataType::UInt64, false)),
        ])
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.average.reverse_expr()
    }
}

/// An average of values that supports removing values.
#[derive(Debug)]
struct Average<T: Summand>(SumAccumulator<T>);

impl<T: Summand> Average<T> {
    fn new(data_type: DataType) -> Self {
        Self(SumAccumulator::new(data_type))
    }
}

impl<T: Summand + ArrowPrimitiveType<Native = i64>> Accumulator for Average<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.0.update_batch(values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.0.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let SumAccumulator { total, count, data_type } = &self.0;
        let sum = i128::from(total.wrapped) + (i128::from(total.carry) << i64::BITS);
        // The average is between the least and the greatest value, so it fits the type.
        let average = sum.checked_div(*count as i128).map(|average| average as i64);
        ScalarValue::new_primitive::<T>(average, data_type)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let mut state = self.0.state()?;
        state.push(ScalarValue::from(self.0.count as u64));
        Ok(state)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let count = self.0.count + sum(states[2].as_primitive::<UInt64Type>()).unwrap_or_default() as usize;
        self.0.merge_batch(states)?;
        self.0.count = count;
        Ok(())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}
