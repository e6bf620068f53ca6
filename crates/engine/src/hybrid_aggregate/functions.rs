//! What is computed of each group.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::GroupsAccumulator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::aggregates::AggregateExec;
use overspill_join::grouping::{Groups, PartitionedRows};

pub(super) type Accumulators = Vec<Box<dyn GroupsAccumulator>>;

/// The keys of groups and the functions of their rows.
#[derive(Debug)]
pub(super) struct Functions {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    key_types: Vec<(DataType, bool)>,
    inputs: Inputs,
    aggregates: Vec<Aggregate>,
    rows: Option<SchemaRef>,
    states: SchemaRef,
}

/// What columns have, after those of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// The inputs of the functions, for a row.
    Rows,
    /// The states of each function, for a group or a part of its rows.
    States,
}

/// The arguments and filters of all functions, each once.
#[derive(Debug, Default)]
struct Inputs(Vec<Arc<dyn PhysicalExpr>>);

#[derive(Debug)]
struct Aggregate {
    function: Arc<AggregateFunctionExpr>,
    /// The numbers of its inputs.
    arguments: Vec<usize>,
    filter: Option<usize>,
    /// The number of its columns of states.
    states: usize,
}

/// Keys and inputs of the rows of a batch.
pub(super) struct Evaluated {
    pub keys: Vec<ArrayRef>,
    pub rows: usize,
    pub inputs: Vec<ArrayRef>,
}

impl Inputs {
    /// The number of an input.
    fn number_of(&mut self, input: &Arc<dyn PhysicalExpr>) -> usize {
        // Each volatile function has values of its own.
        let equal = self.0.iter().position(|other| other == input && !is_volatile(input));
        equal.unwrap_or_else(|| {
            self.0.push(Arc::clone(input));
            self.0.len() - 1
        })
    }

    /// Those that differ from row to row.
    fn columns(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        self.0.iter().filter(|input| constant(input).is_none())
    }
}

fn constant(input: &Arc<dyn PhysicalExpr>) -> Option<&Literal> {
    input.downcast_ref::<Literal>()
}

impl Functions {
    /// Those of an aggregate that sees rows. `None` if groups of its keys cannot be numbered, or if a function needs an order of rows or nested
    /// states.
    pub fn of(node: &AggregateExec) -> Result<Option<Self>> {
        let (groups, input) = (node.group_expr(), node.input().schema());
        let takes = |function: &Arc<AggregateFunctionExpr>| {
            function.groups_accumulator_supported()
                && function.order_bys().is_empty()
                && !function.is_distinct()
                && !function.is_reversed()
        };
        if !groups.is_single() || groups.is_empty() || !node.aggr_expr().iter().all(takes) {
            return Ok(None);
        }
        let keys: Vec<Arc<dyn PhysicalExpr>> = groups.expr().iter().map(|(key, _)| Arc::clone(key)).collect();
        let key_type = |key: &Arc<dyn PhysicalExpr>| Ok((key.data_type(&input)?, key.nullable(&input)?));
        let key_types = keys.iter().map(key_type).collect::<Result<Vec<_>>>()?;
        let names = groups.expr().iter().map(|(_, name)| name);
        let key_fields = names
            .zip(&key_types)
            .map(|(name, (data_type, may_be_null))| FieldRef::new(Field::new(name, data_type.clone(), *may_be_null)));
        let key_fields: Vec<FieldRef> = key_fields.collect();
        let mut states = key_fields.clone();
        for function in node.aggr_expr() {
            states.extend(function.state_fields()?);
        }
        let states = Arc::new(Schema::new(states));
        let are_fixed = states.fields().iter().all(|field| PartitionedRows::orders(field.data_type()));
        if Groups::try_new(&key_types).is_none() || !are_fixed {
            return Ok(None);
        }
        let mut inputs = Inputs::default();
        let functions = node.aggr_expr().iter().zip(node.filter_expr());
        let aggregates = functions.map(|(function, filter)| {
            let arguments = function.expressions().iter().map(|argument| inputs.number_of(argument)).collect();
            let filter = filter.as_ref().map(|filter| inputs.number_of(filter));
            let states = function.state_fields()?.len();
            Ok(Aggregate { function: Arc::clone(function), arguments, filter, states })
        });
        let aggregates = aggregates.collect::<Result<_>>()?;
        let fields = inputs.columns().enumerate().map(|(number, column)| {
            let (data_type, may_be_null) = (column.data_type(&input)?, column.nullable(&input)?);
            Ok(FieldRef::new(Field::new(format!("input {number}"), data_type, may_be_null)))
        });
        let fields = fields.collect::<Result<Vec<FieldRef>>>()?;
        let are_fixed = fields.iter().all(|field| PartitionedRows::orders(field.data_type()));
        let rows = are_fixed.then(|| Arc::new(Schema::new([key_fields, fields].concat())));
        Ok(Some(Self { keys, key_types, inputs, aggregates, rows, states }))
    }

    /// The schema of columns in `layout`. `None` for [`Layout::Rows`] if a function has a nested input: such rows are kept as states.
    pub fn schema(&self, layout: Layout) -> Option<&SchemaRef> {
        match layout {
            Layout::Rows => self.rows.as_ref(),
            Layout::States => Some(&self.states),
        }
    }

    /// The number of key columns.
    pub fn keys(&self) -> usize {
        self.key_types.len()
    }

    pub fn groups(&self) -> Result<Groups> {
        let groups = Groups::try_new(&self.key_types);
        groups.ok_or_else(|| internal_datafusion_err!("keys of groups cannot be packed: {:?}", self.key_types))
    }

    pub fn accumulators(&self) -> Result<Accumulators> {
        self.aggregates.iter().map(|aggregate| aggregate.function.create_groups_accumulator()).collect()
    }

    /// Evaluates keys and inputs.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<Evaluated> {
        let evaluate = |expressions: &[Arc<dyn PhysicalExpr>]| {
            let columns = expressions.iter().map(|column| column.evaluate(batch)?.into_array(batch.num_rows()));
            columns.collect::<Result<Vec<_>>>()
        };
        Ok(Evaluated { keys: evaluate(&self.keys)?, rows: batch.num_rows(), inputs: evaluate(&self.inputs.0)? })
    }

    /// The columns of `rows`, which are not grouped here. The output stream groups them when it merges a partition.
    pub fn ungrouped(&self, rows: Evaluated, accumulators: &Accumulators) -> Result<(Layout, Vec<ArrayRef>)> {
        let Evaluated { keys: mut columns, inputs, .. } = rows;
        if self.rows.is_none() {
            for (aggregate, accumulator) in self.aggregates.iter().zip(accumulators) {
                let (arguments, filter) = aggregate.inputs(&inputs);
                columns.extend(accumulator.convert_to_state(&arguments, filter)?);
            }
            return Ok((Layout::States, columns));
        }
        let varying = inputs.into_iter().zip(&self.inputs.0).filter(|(_, input)| constant(input).is_none());
        columns.extend(varying.map(|(column, _)| column));
        Ok((Layout::Rows, columns))
    }

    /// Adds rows with these inputs to their groups. `numbers` has the group of each row, and `groups` is the number of all groups.
    pub fn update(
        &self,
        accumulators: &mut Accumulators,
        inputs: &[ArrayRef],
        numbers: &[usize],
        groups: usize,
    ) -> Result<()> {
        for (aggregate, accumulator) in self.aggregates.iter().zip(accumulators) {
            let (arguments, filter) = aggregate.inputs(inputs);
            accumulator.update_batch(&arguments, numbers, filter, groups)?;
        }
        Ok(())
    }

    /// Adds columns of a layout to their groups.
    pub fn merge(
        &self,
        accumulators: &mut Accumulators,
        (layout, columns): (Layout, &[ArrayRef]),
        numbers: &[usize],
        groups: usize,
    ) -> Result<()> {
        let mut rest = &columns[self.keys()..];
        if layout == Layout::Rows {
            let mut varying = rest.iter().cloned();
            let inputs = self.inputs.0.iter().map(|input| match constant(input) {
                Some(literal) => literal.value().to_array_of_size(numbers.len()),
                None => varying.next().ok_or_else(|| internal_datafusion_err!("an aggregate lost its input {input}")),
            });
            return self.update(accumulators, &inputs.collect::<Result<Vec<_>>>()?, numbers, groups);
        }
        for (aggregate, accumulator) in self.aggregates.iter().zip(accumulators) {
            let (states, others) = rest.split_at(aggregate.states);
            accumulator.merge_batch(states, numbers, groups)?;
            rest = others;
        }
        Ok(())
    }
}

impl Aggregate {
    /// Its arguments and its filter.
    fn inputs<'a>(&self, inputs: &'a [ArrayRef]) -> (Vec<ArrayRef>, Option<&'a BooleanArray>) {
        let arguments = self.arguments.iter().map(|number| Arc::clone(&inputs[*number]));
        (arguments.collect(), self.filter.map(|number| inputs[number].as_boolean()))
    }
}
