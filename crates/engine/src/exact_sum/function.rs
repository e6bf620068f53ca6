//! The function `sum`.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};

use super::accumulators::{DistinctSumAccumulator, SumAccumulator};
use super::groups::SumGroupsAccumulator;
use super::{PARTIAL, Summand};

/// `sum` of `BIGINT` or `BIGINT UNSIGNED`, exact or an error. In all else it is DataFusion's.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct ExactSum {
    sum: Sum,
}

impl ExactSum {
    /// Whether it takes values of a type.
    pub fn takes(data_type: &DataType) -> bool {
        matches!(data_type, DataType::Int64 | DataType::UInt64)
    }
}

/// Calls a function with the integer type of the result as its first parameter.
macro_rules! with_summand {
    ($args:expr, $make:ident) => {
        match $args.return_type() {
            DataType::UInt64 => Ok($make::<UInt64Type>(&$args)),
            _ => Ok($make::<Int64Type>(&$args)),
        }
    };
}

fn accumulator<T: Summand>(args: &AccumulatorArgs) -> Box<dyn Accumulator> {
    if args.is_distinct { Box::new(DistinctSumAccumulator::<T>::new()) } else { Box::new(SumAccumulator::<T>::new()) }
}

fn groups_accumulator<T: Summand>(_: &AccumulatorArgs) -> Box<dyn GroupsAccumulator> {
    Box::new(SumGroupsAccumulator::<T>::new())
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
        with_summand!(args, accumulator)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        with_summand!(args, accumulator)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if args.is_distinct {
            return self.sum.state_fields(args);
        }
        Ok(vec![Arc::new(Field::new(format_state_name(args.name, "sum"), PARTIAL, true))])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        with_summand!(args, groups_accumulator)
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
