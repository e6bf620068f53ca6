//! What is computed of each group.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::GroupsAccumulator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::projection::update_expr;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;
use overspill_join::grouping::{Groups, PartitionedRows};
use overspill_join::narrow::Step;

use super::Accumulators;
use super::few_groups::FewFunctions;
use super::narrow::{NarrowExpressions, column, is_arithmetic};

/// The keys of groups and the functions of their rows.
#[derive(Debug)]
pub(super) struct Functions {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    key_types: Vec<(DataType, bool)>,
    inputs: Inputs,
    aggregates: Vec<Aggregate>,
    /// Those of `aggregates` whose sums of few groups are narrow.
    few: FewFunctions,
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
struct Inputs {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    /// Sums, differences and products among them, by their number, as steps of `narrow`.
    steps: Vec<(usize, Step, DataType)>,
    narrow: NarrowExpressions,
}

#[derive(Debug)]
struct Aggregate {
    function: Arc<AggregateFunctionExpr>,
    /// The numbers of its inputs.
    arguments: Vec<usize>,
    filter: Option<usize>,
    /// The number of its columns of states.
    states: usize,
}

/// Values of inputs, by their numbers. `None` for those that were not asked for.
type Values = Vec<Option<ArrayRef>>;

/// Which aggregates get rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// All.
    All,
    /// Those that are not among [`Functions::few`].
    Others,
}

impl Inputs {
    /// The number of an input over columns of `schema`.
    fn number_of(&mut self, input: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<usize> {
        // Each volatile function has values of its own.
        let equal = self.expressions.iter().position(|other| other == input && !is_volatile(input));
        if let Some(equal) = equal {
            return Ok(equal);
        }
        let number = self.expressions.len();
        self.expressions.push(Arc::clone(input));
        if is_arithmetic(input)
            && let Some(step) = self.narrow.step(input, schema)?
        {
            self.steps.push((number, step, input.data_type(schema)?));
        }
        Ok(number)
    }

    /// Those that differ from row to row.
    fn columns(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        self.expressions.iter().filter(|input| constant(input).is_none())
    }

    /// The values of those that are asked for.
    fn evaluate(&self, batch: &RecordBatch, is_needed: impl Fn(usize) -> bool) -> Result<Values> {
        let rows = batch.num_rows();
        let mut values: Values = vec![None; self.expressions.len()];
        let steps: Vec<_> = self.steps.iter().filter(|(number, ..)| is_needed(*number)).collect();
        if !steps.is_empty()
            && let Some(narrow) = self.narrow.over(batch)?
        {
            let of_steps: Vec<Step> = steps.iter().map(|(_, step, _)| *step).collect();
            for ((number, step, data_type), words) in steps.into_iter().zip(narrow.of(&of_steps, rows)) {
                values[*number] = column(words, narrow.nulls(*step).cloned(), data_type)?;
            }
        }
        for (number, input) in self.expressions.iter().enumerate() {
            if values[number].is_none() && is_needed(number) {
                values[number] = Some(input.evaluate(batch)?.into_array(rows)?);
            }
        }
        Ok(values)
    }
}

fn constant(input: &Arc<dyn PhysicalExpr>) -> Option<&Literal> {
    input.downcast_ref::<Literal>()
}

impl Functions {
    /// Those of an aggregate that sees rows: the columns of its input, or those that `projection` makes them of. `None` if groups of its keys cannot be numbered, or if
    /// a function needs an order of rows or nested states.
    pub fn of(node: &AggregateExec, projection: Option<&ProjectionExec>) -> Result<Option<Self>> {
        let groups = node.group_expr();
        let input = projection.map_or_else(|| node.input().schema(), |projection| projection.input().schema());
        let below = |expression: &Arc<dyn PhysicalExpr>| match projection {
            None => Ok(Arc::clone(expression)),
            Some(projection) => {
                let below = update_expr(expression, projection.expr(), true)?;
                Ok(below.unwrap_or_else(|| Arc::clone(expression)))
            }
        };
        let takes = |function: &Arc<AggregateFunctionExpr>| {
            function.groups_accumulator_supported()
                && function.order_bys().is_empty()
                && !function.is_distinct()
                && !function.is_reversed()
        };
        if !groups.is_single() || groups.is_empty() || !node.aggr_expr().iter().all(takes) {
            return Ok(None);
        }
        let keys = groups.expr().iter().map(|(key, _)| below(key)).collect::<Result<Vec<_>>>()?;
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
        let mut few = FewFunctions::default();
        let mut aggregates = vec![];
        for (number, (function, filter)) in node.aggr_expr().iter().zip(node.filter_expr()).enumerate() {
            let arguments = function.expressions().iter().map(below).collect::<Result<Vec<_>>>()?;
            if filter.is_none() {
                few.add(number, function, &arguments, &input)?;
            }
            let arguments = arguments.iter().map(|argument| inputs.number_of(argument, &input));
            let arguments = arguments.collect::<Result<_>>()?;
            let filter = filter.as_ref().map(|filter| inputs.number_of(&below(filter)?, &input)).transpose()?;
            let states = function.state_fields()?.len();
            aggregates.push(Aggregate { function: Arc::clone(function), arguments, filter, states });
        }
        let fields = inputs.columns().enumerate().map(|(number, column)| {
            let (data_type, may_be_null) = (column.data_type(&input)?, column.nullable(&input)?);
            Ok(FieldRef::new(Field::new(format!("input {number}"), data_type, may_be_null)))
        });
        let fields = fields.collect::<Result<Vec<FieldRef>>>()?;
        let are_fixed = fields.iter().all(|field| PartitionedRows::orders(field.data_type()));
        let rows = are_fixed.then(|| Arc::new(Schema::new([key_fields, fields].concat())));
        Ok(Some(Self { keys, key_types, inputs, aggregates, few, rows, states }))
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

    /// The expressions of keys and inputs.
    pub fn expressions(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        self.keys.iter().chain(&self.inputs.expressions)
    }

    /// Those whose sums of few groups are narrow; `None` without any.
    pub fn few(&self) -> Option<&FewFunctions> {
        Some(&self.few).filter(|few| !few.is_empty())
    }

    /// The keys of a batch.
    pub fn keys_of(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows())).collect()
    }

    /// The columns of rows with these keys, which are not grouped here. The output stream groups them when it merges a partition.
    pub fn ungrouped(
        &self,
        keys: Vec<ArrayRef>,
        batch: &RecordBatch,
        accumulators: &Accumulators,
    ) -> Result<(Layout, Vec<ArrayRef>)> {
        let mut columns = keys;
        if self.rows.is_none() {
            let inputs = self.inputs.evaluate(batch, |_| true)?;
            for (aggregate, accumulator) in self.aggregates.iter().zip(accumulators) {
                let (arguments, filter) = aggregate.inputs(&inputs)?;
                columns.extend(accumulator.convert_to_state(&arguments, filter)?);
            }
            return Ok((Layout::States, columns));
        }
        let varies = |number: usize| constant(&self.inputs.expressions[number]).is_none();
        columns.extend(self.inputs.evaluate(batch, varies)?.into_iter().flatten());
        Ok((Layout::Rows, columns))
    }

    /// Adds the rows of a batch to their groups. `numbers` has the group of each row, and `groups` is the number of all groups.
    pub fn update(
        &self,
        accumulators: &mut Accumulators,
        batch: &RecordBatch,
        (numbers, groups): (&[usize], usize),
        which: Which,
    ) -> Result<()> {
        let has = |aggregate: usize| which == Which::All || !self.few.has(aggregate);
        let is_needed = |input: usize| {
            let needs = |(number, aggregate): (usize, &Aggregate)| has(number) && aggregate.needs(input);
            self.aggregates.iter().enumerate().any(needs)
        };
        let inputs = self.inputs.evaluate(batch, is_needed)?;
        for (number, (aggregate, accumulator)) in self.aggregates.iter().zip(accumulators).enumerate() {
            if has(number) {
                aggregate.update(accumulator.as_mut(), &inputs, numbers, groups)?;
            }
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
            let inputs = self.inputs.expressions.iter().map(|input| match constant(input) {
                Some(literal) => Ok(Some(literal.value().to_array_of_size(numbers.len())?)),
                None => Ok(varying.next()),
            });
            let inputs = inputs.collect::<Result<Values>>()?;
            for (aggregate, accumulator) in self.aggregates.iter().zip(accumulators) {
                aggregate.update(accumulator.as_mut(), &inputs, numbers, groups)?;
            }
            return Ok(());
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
    /// Whether it has the input with this number.
    fn needs(&self, input: usize) -> bool {
        self.arguments.contains(&input) || self.filter == Some(input)
    }

    /// Its arguments and its filter.
    fn inputs<'a>(&self, inputs: &'a Values) -> Result<(Vec<ArrayRef>, Option<&'a BooleanArray>)> {
        let of = |number: usize| {
            let input = inputs.get(number).and_then(Option::as_ref);
            input.ok_or_else(|| internal_datafusion_err!("{} lost an input", self.function.name()))
        };
        let arguments = self.arguments.iter().map(|number| of(*number).map(Arc::clone)).collect::<Result<_>>()?;
        Ok((arguments, self.filter.map(of).transpose()?.map(|filter| filter.as_boolean())))
    }

    fn update(
        &self,
        accumulator: &mut dyn GroupsAccumulator,
        inputs: &Values,
        numbers: &[usize],
        groups: usize,
    ) -> Result<()> {
        let (arguments, filter) = self.inputs(inputs)?;
        accumulator.update_batch(&arguments, numbers, filter, groups)
    }
}
