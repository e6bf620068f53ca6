//! Aggregates over windows that can be cancelled between two frames.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunctionParams, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, ReversedUDAF, SetMonotonicity, Signature};

use super::check;

/// An aggregate with accumulators that check for a cancellation before they take rows. Used only over windows, where they
/// take the rows of one frame at a time.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct InterruptibleAggregate {
    function: Arc<AggregateUDF>,
}

impl InterruptibleAggregate {
    /// None for functions that already support cancellation.
    pub(super) fn of(function: &Arc<AggregateUDF>) -> Option<Self> {
        (!function.inner().is::<Self>()).then(|| Self { function: Arc::clone(function) })
    }

    fn wrapped(function: AggregateUDF) -> AggregateUDF {
        AggregateUDF::new_from_impl(Self { function: Arc::new(function) })
    }
}

impl AggregateUDFImpl for InterruptibleAggregate {
    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Checked(self.function.accumulator(args)?)))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Checked(self.function.create_sliding_accumulator(args)?)))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.function.reverse_udf() {
            ReversedUDAF::Reversed(function) => {
                ReversedUDAF::Reversed(Arc::new(Self::wrapped(function.as_ref().clone())))
            }
            other => other,
        }
    }

    fn with_beneficial_ordering(self: Arc<Self>, beneficial: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        let ordered = self.function.as_ref().clone().with_beneficial_ordering(beneficial)?;
        Ok(ordered.map(|function| Arc::new(Self { function: Arc::new(function) }) as Arc<dyn AggregateUDFImpl>))
    }

    fn name(&self) -> &str {
        self.function.name()
    }

    fn schema_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.function.schema_name(params)
    }

    fn human_display(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.function.human_display(params)
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.function.window_function_schema_name(params)
    }

    fn display_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.function.display_name(params)
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.function.window_function_display_name(params)
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.function.return_type(arg_types)
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        self.function.return_field(arg_fields)
    }

    fn is_nullable(&self) -> bool {
        self.function.is_nullable()
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.function.state_fields(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.function.order_sensitivity()
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(arg_types)
    }

    fn is_descending(&self) -> Option<bool> {
        self.function.is_descending()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.function.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.function.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.function.supports_within_group_clause()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.function.inner().set_monotonicity(data_type)
    }
}

/// An accumulator that can be cancelled.
#[derive(Debug)]
struct Checked(Box<dyn Accumulator>);

impl Accumulator for Checked {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        check()?;
        self.0.update_batch(values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        check()?;
        self.0.retract_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.0.evaluate()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.0.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.0.merge_batch(states)
    }

    fn supports_retract_batch(&self) -> bool {
        self.0.supports_retract_batch()
    }
}
