//! The function `sum`.

use std::sync::Arc;

use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Field, FieldRef, Int64Type,
    IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType, TimeUnit, UInt64Type,
};
use datafusion::common::{Result, ScalarValue, not_impl_err};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};

use super::accumulators::{DistinctSumAccumulator, SumAccumulator, Summed};
use super::groups::SumGroupsAccumulator;
use super::intervals::{self, Interval};

/// `sum` of integers, decimals, durations and intervals that is exact or an error. DataFusion's `sum` handles everything
/// else.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct ExactSum {
    sum: Sum,
}

impl ExactSum {
    /// Whether it takes values of a type.
    pub fn takes(data_type: &DataType) -> bool {
        matches!(data_type, DataType::Int64 | DataType::UInt64 | DataType::Duration(_) | DataType::Interval(_))
            || data_type.is_decimal()
    }
}

/// An accumulator for sums of the type of the result.
macro_rules! for_summand {
    ($args:expr, $accumulator:ident) => {{
        let data_type = $args.return_type().clone();
        Ok(match &data_type {
            DataType::Int64 => Box::new($accumulator::<Int64Type>::new(data_type)),
            DataType::UInt64 => Box::new($accumulator::<UInt64Type>::new(data_type)),
            DataType::Decimal32(..) => Box::new($accumulator::<Decimal32Type>::new(data_type)),
            DataType::Decimal64(..) => Box::new($accumulator::<Decimal64Type>::new(data_type)),
            DataType::Decimal128(..) => Box::new($accumulator::<Decimal128Type>::new(data_type)),
            DataType::Decimal256(..) => Box::new($accumulator::<Decimal256Type>::new(data_type)),
            DataType::Duration(TimeUnit::Second) => Box::new($accumulator::<DurationSecondType>::new(data_type)),
            DataType::Duration(TimeUnit::Millisecond) => {
                Box::new($accumulator::<DurationMillisecondType>::new(data_type))
            }
            DataType::Duration(TimeUnit::Microsecond) => {
                Box::new($accumulator::<DurationMicrosecondType>::new(data_type))
            }
            DataType::Duration(TimeUnit::Nanosecond) => {
                Box::new($accumulator::<DurationNanosecondType>::new(data_type))
            }
            other => return not_impl_err!("an exact sum of {other}"),
        })
    }};
}

/// An accumulator for sums of intervals.
fn of_intervals<T: Interval + Summed>(args: &AccumulatorArgs) -> Box<dyn Accumulator> {
    let data_type = args.return_type().clone();
    if args.is_distinct {
        Box::new(DistinctSumAccumulator::<T>::new(data_type))
    } else {
        Box::new(intervals::SumAccumulator::<T>::new(data_type))
    }
}

impl AggregateUDFImpl for ExactSum {
    fn name(&self) -> &str {
        self.sum.name()
    }

    fn signature(&self) -> &Signature {
        self.sum.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.sum.return_type(arg_types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if let DataType::Interval(unit) = args.return_type() {
            return Ok(match unit {
                IntervalUnit::YearMonth => of_intervals::<IntervalYearMonthType>(&args),
                IntervalUnit::DayTime => of_intervals::<IntervalDayTimeType>(&args),
                IntervalUnit::MonthDayNano => of_intervals::<IntervalMonthDayNanoType>(&args),
            });
        }
        if args.is_distinct { for_summand!(args, DistinctSumAccumulator) } else { for_summand!(args, SumAccumulator) }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if args.is_distinct {
            return self.sum.state_fields(args);
        }
        if let DataType::Interval(_) = args.return_type() {
            return Ok(intervals::state_fields(args.name));
        }
        Ok(vec![
            Arc::new(Field::new(format_state_name(args.name, "sum"), args.return_type().clone(), true)),
            Arc::new(Field::new(format_state_name(args.name, "carry"), DataType::Int64, false)),
        ])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct && !matches!(args.return_type(), DataType::Interval(_))
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        for_summand!(args, SumGroupsAccumulator)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.sum.reverse_expr()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.sum.order_sensitivity()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.sum.set_monotonicity(data_type)
    }

    fn value_from_stats(&self, statistics: &StatisticsArgs) -> Option<ScalarValue> {
        self.sum.value_from_stats(statistics)
    }
}
