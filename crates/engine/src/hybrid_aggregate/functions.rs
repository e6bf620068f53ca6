//! What is computed of each group.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, new_null_array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::Aggregate as LogicalAggregate;
use datafusion::logical_expr::GroupsAccumulator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::projection::update_expr;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::projection::ProjectionExec;
use overspill_join::grouping::{Groups, PartitionedRows};
use overspill_join::narrow::Step;

use super::Accumulators;
use super::few_groups::FewFunctions;
use super::narrow::{NarrowExpressions, column, is_arithmetic};
use super::sets::{GroupingSet, GroupingSets};

/// The types of keys, and whether each may be null.
type KeyTypes = Vec<(DataType, bool)>;

/// The keys of groups and the functions of their rows.
#[derive(Debug)]
pub(super) struct Functions {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Those of `keys`.
    row_key_types: KeyTypes,
    /// Those of groups: after the keys comes the grouping set, if there are several.
    key_types: KeyTypes,
    sets: Option<GroupingSets>,
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
    types: Vec<DataType>,
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
        self.types.push(input.data_type(schema)?);
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
        if groups.is_empty() || !node.aggr_expr().iter().all(takes) {
            return Ok(None);
        }
        let keys = groups.expr().iter().map(|(key, _)| below(key)).collect::<Result<Vec<_>>>()?;
        let key_type = |key: &Arc<dyn PhysicalExpr>| Ok((key.data_type(&input)?, key.nullable(&input)?));
        let row_key_types = keys.iter().map(key_type).collect::<Result<Vec<_>>>()?;
        let (key_types, sets) = if groups.is_single() {
            (row_key_types.clone(), None)
        } else {
            let Some((key_types, sets)) = grouping_sets(node, &row_key_types)? else { return Ok(None) };
            (key_types, Some(sets))
        };
        let names = groups.expr().iter().map(|(_, name)| name.as_str()).chain([LogicalAggregate::INTERNAL_GROUPING_ID]);
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
        Ok(Some(Self { keys, row_key_types, key_types, sets, inputs, aggregates, few, rows, states }))
    }

    /// The schema of columns in `layout`. `None` for [`Layout::Rows`] if a function has a nested input: such rows are kept as states.
    pub fn schema(&self, layout: Layout) -> Option<&SchemaRef> {
        match layout {
            Layout::Rows => self.rows.as_ref(),
            Layout::States => Some(&self.states),
        }
    }

    /// The number of key columns of groups.
    pub fn keys(&self) -> usize {
        self.key_types.len()
    }

    /// The grouping sets; `None` if all groups have all keys.
    pub fn sets(&self) -> Option<&GroupingSets> {
        self.sets.as_ref()
    }

    /// A table of the groups of all sets.
    pub fn groups(&self) -> Result<Groups> {
        groups_of(&self.key_types)
    }

    /// A table of the groups of rows, which have all keys.
    pub fn groups_of_rows(&self) -> Result<Groups> {
        groups_of(&self.row_key_types)
    }

    /// A table of the groups of a set; `None` if that has no keys.
    pub fn groups_of_set(&self, set: &GroupingSet) -> Result<Option<Groups>> {
        let types: KeyTypes = set.present(&self.key_types).cloned().collect();
        (!types.is_empty()).then(|| groups_of(&types)).transpose()
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

    /// Makes the states of one group of no rows.
    pub fn add_group_of_no_rows(&self, accumulators: &mut Accumulators) -> Result<()> {
        // Accumulators take a group for seen if they get no rows at all: a row that is dropped tells them otherwise.
        let (null_row, dropped) =
            (|input: &usize| new_null_array(&self.inputs.types[*input], 1), BooleanArray::from(vec![false]));
        for (aggregate, accumulator) in self.aggregates.iter().zip(accumulators) {
            let arguments: Vec<ArrayRef> = aggregate.arguments.iter().map(null_row).collect();
            accumulator.update_batch(&arguments, &[0], Some(&dropped), 1)?;
        }
        Ok(())
    }

    /// Adds columns of a layout, those of the keys left out, to their groups.
    pub fn merge(
        &self,
        accumulators: &mut Accumulators,
        (layout, columns): (Layout, &[ArrayRef]),
        numbers: &[usize],
        groups: usize,
    ) -> Result<()> {
        let mut rest = columns;
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

/// The grouping sets of an aggregate that sees rows, and the types of the keys of their groups; `None` if it does not return states, or a set comes twice.
fn grouping_sets(node: &AggregateExec, row_key_types: &[(DataType, bool)]) -> Result<Option<(KeyTypes, GroupingSets)>> {
    let groups = node.group_expr();
    if *node.mode() != AggregateMode::Partial {
        return Ok(None);
    }
    let types = row_key_types.iter().map(|(data_type, _)| data_type.clone()).collect();
    let id_type = node.schema().field(row_key_types.len()).data_type().clone();
    let Some(sets) = GroupingSets::of(groups, types, &id_type)? else { return Ok(None) };
    let keys = row_key_types.iter().zip(groups.exprs_nullable());
    let keys = keys.map(|((data_type, may_be_null), may_be_absent)| (data_type.clone(), *may_be_null || may_be_absent));
    Ok(Some((keys.chain([(id_type, false)]).collect(), sets)))
}

fn groups_of(types: &[(DataType, bool)]) -> Result<Groups> {
    Groups::try_new(types).ok_or_else(|| internal_datafusion_err!("keys of groups cannot be packed: {types:?}"))
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
