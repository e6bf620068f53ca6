//! What is computed of each group.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::GroupsAccumulator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, aggregate_expressions, evaluate_many};
use overspill_join::grouping::Groups;

/// The keys of groups and the functions of their rows. Rows of states have the columns of the keys, then those of the states of each function.
#[derive(Debug)]
pub(super) struct Functions {
    keys: Vec<Vec<Arc<dyn PhysicalExpr>>>,
    key_types: Vec<(DataType, bool)>,
    aggregates: Vec<Aggregate>,
    states: SchemaRef,
}

#[derive(Debug)]
struct Aggregate {
    function: Arc<AggregateFunctionExpr>,
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    /// The number of its columns of states.
    states: usize,
}

/// The rows of a batch, as functions take them.
pub(super) struct Evaluated {
    pub keys: Vec<ArrayRef>,
    pub rows: usize,
    arguments: Vec<Vec<ArrayRef>>,
    filters: Vec<Option<BooleanArray>>,
}

impl Functions {
    /// Those of a partial aggregate. `None` if groups of its keys cannot be numbered, or if a function needs more than states of fixed width of
    /// its rows, in any order.
    pub fn of(partial: &AggregateExec) -> Result<Option<Self>> {
        let (groups, input) = (partial.group_expr(), partial.input().schema());
        let takes = |function: &Arc<AggregateFunctionExpr>| {
            function.groups_accumulator_supported()
                && function.order_bys().is_empty()
                && !function.is_distinct()
                && !function.is_reversed()
        };
        if !groups.is_single() || groups.is_empty() || !partial.aggr_expr().iter().all(takes) {
            return Ok(None);
        }
        let keys: Vec<Arc<dyn PhysicalExpr>> = groups.expr().iter().map(|(key, _)| Arc::clone(key)).collect();
        let key_type = |key: &Arc<dyn PhysicalExpr>| Ok((key.data_type(&input)?, key.nullable(&input)?));
        let key_types = keys.iter().map(key_type).collect::<Result<Vec<_>>>()?;
        let states = partial.schema();
        let is_fixed = |data_type: &DataType| data_type.primitive_width().is_some() || *data_type == DataType::Boolean;
        if Groups::try_new(&key_types).is_none() || !states.fields().iter().all(|field| is_fixed(field.data_type())) {
            return Ok(None);
        }
        let arguments = aggregate_expressions(partial.aggr_expr(), &AggregateMode::Partial, 0)?;
        let functions = partial.aggr_expr().iter().zip(partial.filter_expr()).zip(arguments);
        let aggregates = functions.map(|((function, filter), arguments)| {
            let states = function.state_fields()?.len();
            Ok(Aggregate { function: Arc::clone(function), arguments, filter: filter.clone(), states })
        });
        let aggregates = aggregates.collect::<Result<_>>()?;
        Ok(Some(Self { keys: vec![keys], key_types, aggregates, states }))
    }

    /// The columns of rows of states.
    pub fn states(&self) -> &SchemaRef {
        &self.states
    }

    /// The number of key columns.
    pub fn keys(&self) -> usize {
        self.key_types.len()
    }

    pub fn groups(&self) -> Result<Groups> {
        let groups = Groups::try_new(&self.key_types);
        groups.ok_or_else(|| internal_datafusion_err!("keys of groups cannot be packed: {:?}", self.key_types))
    }

    pub fn accumulators(&self) -> Result<Vec<Box<dyn GroupsAccumulator>>> {
        self.aggregates.iter().map(|aggregate| aggregate.function.create_groups_accumulator()).collect()
    }

    /// Evaluates keys, arguments and filters.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<Evaluated> {
        let keys = evaluate_many(&self.keys, batch)?.swap_remove(0);
        let filter = |aggregate: &Aggregate| {
            let Some(filter) = &aggregate.filter else { return Ok(None) };
            let filter = filter.evaluate(batch)?.into_array(batch.num_rows())?;
            Ok(Some(filter.as_boolean().clone()))
        };
        let arguments = self.aggregates.iter().map(|aggregate| aggregate.arguments.clone());
        Ok(Evaluated {
            keys,
            rows: batch.num_rows(),
            arguments: evaluate_many(&arguments.collect::<Vec<_>>(), batch)?,
            filters: self.aggregates.iter().map(filter).collect::<Result<_>>()?,
        })
    }

    /// Splits the columns of states of rows by function.
    pub fn split<'a>(&self, columns: &'a [ArrayRef]) -> impl Iterator<Item = &'a [ArrayRef]> {
        let mut rest = &columns[self.keys()..];
        self.aggregates.iter().map(move |aggregate| {
            let (states, others) = rest.split_at(aggregate.states);
            rest = others;
            states
        })
    }
}

impl Evaluated {
    /// Adds each row to its group. `numbers` has the group of each row, and `groups` is the number of all groups.
    pub fn update(
        &self,
        accumulators: &mut [Box<dyn GroupsAccumulator>],
        numbers: &[usize],
        groups: usize,
    ) -> Result<()> {
        for ((accumulator, arguments), filter) in accumulators.iter_mut().zip(&self.arguments).zip(&self.filters) {
            accumulator.update_batch(arguments, numbers, filter.as_ref(), groups)?;
        }
        Ok(())
    }

    /// The states of groups of one row each.
    pub fn into_states(self, accumulators: &[Box<dyn GroupsAccumulator>]) -> Result<Vec<ArrayRef>> {
        let mut columns = self.keys;
        for ((accumulator, arguments), filter) in accumulators.iter().zip(&self.arguments).zip(&self.filters) {
            columns.extend(accumulator.convert_to_state(arguments, filter.as_ref())?);
        }
        Ok(columns)
    }
}
