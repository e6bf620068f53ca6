//! `min` and `max` of floats.
//!
//! DataFusion 55 compares the floats of groups by `partial_cmp`, which does not order NaN, so whether the result is NaN
//! depends on the order of the rows. It starts with the least or greatest finite number, and returns that number for a group
//! of infinities. Without groups it takes the result from the statistics of Parquet files, which ignore NaN.
//!
//! The functions of this module compare by the total order of IEEE 754, as `<` and `ORDER BY` do: NaN is greater than all
//! numbers, and NaN with a sign bit is less.

use std::fmt::Debug;
use std::hash::Hash;

use arrow::array::{ArrowNativeTypeOp, ArrowPrimitiveType};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::{Result, not_impl_err};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// A DataFusion function that a function of this module replaces.
pub trait Extreme: AggregateUDFImpl + Default + Debug + Hash + Eq {
    /// The extremes of groups of floats.
    fn of_groups<T: ArrowPrimitiveType<Native: ArrowNativeTypeOp> + Send>(
        data_type: &DataType,
    ) -> Box<dyn GroupsAccumulator>;
}

impl Extreme for Min {
    fn of_groups<T: ArrowPrimitiveType<Native: ArrowNativeTypeOp> + Send>(
        data_type: &DataType,
    ) -> Box<dyn GroupsAccumulator> {
        let lower = |least: &mut T::Native, value: T::Native| {
            if value.is_lt(*least) {
                *least = value;
            }
        };
        let groups = PrimitiveGroupsAccumulator::<T, _>::new(data_type, lower);
        Box::new(groups.with_starting_value(T::Native::MAX_TOTAL_ORDER))
    }
}

impl Extreme for Max {
    fn of_groups<T: ArrowPrimitiveType<Native: ArrowNativeTypeOp> + Send>(
        data_type: &DataType,
    ) -> Box<dyn GroupsAccumulator> {
        let raise = |greatest: &mut T::Native, value: T::Native| {
            if value.is_gt(*greatest) {
                *greatest = value;
            }
        };
        let groups = PrimitiveGroupsAccumulator::<T, _>::new(data_type, raise);
        Box::new(groups.with_starting_value(T::Native::MIN_TOTAL_ORDER))
    }
}

/// `min` or `max` of floats. It does not implement `is_descending`: DataFusion's groups of `ORDER BY max(x) LIMIT n` also
/// compare by `partial_cmp`.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct FloatExtreme<F> {
    function: F,
}

impl<F: Extreme + 'static> AggregateUDFImpl for FloatExtreme<F> {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(arg_types)
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.function.return_type(arg_types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.function.accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.function.create_sliding_accumulator(args)
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_type() {
            data_type @ DataType::Float16 => Ok(F::of_groups::<Float16Type>(data_type)),
            data_type @ DataType::Float32 => Ok(F::of_groups::<Float32Type>(data_type)),
            data_type @ DataType::Float64 => Ok(F::of_groups::<Float64Type>(data_type)),
            other => not_impl_err!("{} of {other} as a float", self.name()),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.function.reverse_expr()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.function.order_sensitivity()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.function.set_monotonicity(data_type)
    }
}
