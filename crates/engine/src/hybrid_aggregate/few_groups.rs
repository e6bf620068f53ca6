//! Sums, averages and numbers of rows of few groups, in words of 64 bits.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use overspill_join::grouping::{FewSum, FewSums, MOST_FEW};
use overspill_join::narrow::Step;

use super::Accumulators;
use super::narrow::{NarrowExpressions, column};
use crate::exact_sum::ExactSum;

/// The functions that are made of sums of narrow values, and of numbers of rows.
#[derive(Debug, Default)]
pub(super) struct FewFunctions {
    expressions: NarrowExpressions,
    /// The steps that are summed.
    steps: Vec<Step>,
    /// Functions by the number of their aggregate.
    functions: Vec<(usize, Function)>,
}

#[derive(Debug)]
enum Function {
    /// The number of rows.
    Rows,
    /// The sum of one of the steps, and its type.
    Sum(usize, DataType),
    /// The average of one of the steps, and the type of its sum.
    Average(usize, DataType),
}

impl FewFunctions {
    /// Adds the `number`th aggregate, if it is one. `arguments` have the columns of `schema`.
    ///
    /// # Errors
    /// If an expression has no type.
    pub fn add(
        &mut self,
        number: usize,
        function: &AggregateFunctionExpr,
        arguments: &[Arc<dyn PhysicalExpr>],
        schema: &Schema,
    ) -> Result<()> {
        let [argument] = arguments else { return Ok(()) };
        let kind = function.fun().inner();
        let found = if kind.is::<Count>() {
            let is_null = argument.downcast_ref::<Literal>().is_some_and(|literal| literal.value().is_null());
            (!is_null && !argument.nullable(schema)?).then_some(Function::Rows)
        } else {
            let states = function.state_fields()?;
            let (is_average, state) = (kind.is::<Avg>(), usize::from(kind.is::<Avg>()));
            let sum = states.get(state).map(|field| field.data_type().clone());
            match sum.filter(|sum| kind.is::<ExactSum>() || is_average && is_decimal(sum)) {
                Some(sum) if has_scale_of(&sum, &argument.data_type(schema)?) => {
                    let step = self.summed(argument, schema)?;
                    step.map(|step| if is_average { Function::Average(step, sum) } else { Function::Sum(step, sum) })
                }
                _ => None,
            }
        };
        self.functions.extend(found.map(|function| (number, function)));
        Ok(())
    }

    /// The number of an argument's step among those that are summed.
    fn summed(&mut self, argument: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<usize>> {
        let Some(step) = self.expressions.step(argument, schema)? else { return Ok(None) };
        let equal = self.steps.iter().position(|other| *other == step);
        Ok(Some(equal.unwrap_or_else(|| {
            self.steps.push(step);
            self.steps.len() - 1
        })))
    }

    /// Whether it has the `number`th aggregate.
    pub fn has(&self, number: usize) -> bool {
        self.functions.iter().any(|(other, _)| *other == number)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal128(..))
}

/// Whether a sum of values of a type has the same digits behind the point.
fn has_scale_of(sum: &DataType, values: &DataType) -> bool {
    match (sum, values) {
        (DataType::Decimal128(_, sum), DataType::Decimal128(_, values)) => sum == values,
        (DataType::Int64, values) => values.is_integer(),
        _ => false,
    }
}

/// The sums of the groups of a stream, as long as these are few.
#[derive(Debug)]
pub(super) struct FewGroups {
    sums: FewSums,
    /// The groups of a batch's rows.
    numbers: Vec<u8>,
    /// How many batches had values that do not fit.
    refused: usize,
}

/// The most batches whose values may not fit before the others are no longer looked at.
const MOST_REFUSED: usize = 8;

impl FewGroups {
    pub fn new(functions: &FewFunctions) -> Self {
        Self { sums: FewSums::new(functions.steps.clone()), numbers: vec![], refused: 0 }
    }

    /// Whether to add batches of rows that have `groups` groups by now.
    pub fn takes(&self, groups: usize) -> bool {
        groups <= MOST_FEW && self.refused < MOST_REFUSED
    }

    /// Adds a batch. `numbers` has the group of each row. Adds nothing and returns `false` if some values may not fit.
    ///
    /// # Errors
    /// Those of expressions, and of the accumulators, that get the sums there are before a sum may not fit.
    pub fn add(
        &mut self,
        functions: &FewFunctions,
        batch: &RecordBatch,
        (numbers, groups): (&[usize], usize),
        accumulators: &mut Accumulators,
    ) -> Result<bool> {
        let Some(values) = functions.expressions.over(batch)? else {
            self.refused += 1;
            return Ok(false);
        };
        self.numbers.clear();
        // `takes` allows no group of more bits.
        self.numbers.extend(numbers.iter().map(|number| *number as u8));
        if self.sums.add(&values, &self.numbers) {
            return Ok(true);
        }
        self.take(functions, groups, accumulators)?;
        let is_added = self.sums.add(&values, &self.numbers);
        self.refused += usize::from(!is_added);
        Ok(is_added)
    }

    /// Merges all sums into the accumulators of `groups` groups.
    ///
    /// # Errors
    /// Those of the accumulators.
    pub fn take(&mut self, functions: &FewFunctions, groups: usize, accumulators: &mut Accumulators) -> Result<()> {
        if self.sums.is_empty() {
            return Ok(());
        }
        // The sums are of the groups that were few.
        let few = groups.min(MOST_FEW);
        let (rows, sums) = self.sums.take(few);
        let numbers: Vec<usize> = (0..few).collect();
        for (number, function) in &functions.functions {
            accumulators[*number].merge_batch(&function.states(&rows, &sums)?, &numbers, groups)?;
        }
        Ok(())
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.sums.bytes() + self.numbers.capacity()
    }
}

impl Function {
    /// The columns of its state, as DataFusion's `count` and `avg` and the exact `sum` have them.
    fn states(&self, rows: &[u64], sums: &[FewSum]) -> Result<Vec<ArrayRef>> {
        let sum = |step: usize, data_type| -> Result<(ArrayRef, NullBuffer)> {
            let FewSum { sums, values } = &sums[step];
            let nulls = NullBuffer::from_iter(values.iter().map(|count| *count > 0));
            let column = column(sums.clone(), Some(nulls.clone()), data_type)?;
            Ok((column.ok_or_else(|| internal_datafusion_err!("a sum of type {data_type} is not narrow"))?, nulls))
        };
        Ok(match self {
            Self::Rows => vec![Arc::new(rows.iter().map(|rows| Some(*rows as i64)).collect::<Int64Array>())],
            Self::Sum(step, data_type) => {
                let (sum, _) = sum(*step, data_type)?;
                let carries = Int64Array::from(vec![0; sum.len()]);
                vec![sum, Arc::new(carries)]
            }
            Self::Average(step, data_type) => {
                let (sum, nulls) = sum(*step, data_type)?;
                let counts = UInt64Array::new(sums[*step].values.clone().into(), Some(nulls));
                vec![Arc::new(counts), sum]
            }
        })
    }
}
