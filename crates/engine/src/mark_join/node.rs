//! The logical node.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::{
    Column, DFSchema, DFSchemaRef, Result, TableReference, assert_eq_or_internal_err, internal_err,
};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

/// The name of the column of a mark join, as DataFusion calls it.
const MARK: &str = "mark";

/// The rows of one input, each with a mark that says whether its value is among the members, which are the rows of the other
/// input.
///
/// The mark is that of SQL's `value IN (members)`: true if a member equals the value; else null, if there are members and
/// the value or a member is null; else false.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NullAwareMarkJoin {
    input: Arc<LogicalPlan>,
    /// A subquery with an alias, which also qualifies the mark, and one column.
    members: Arc<LogicalPlan>,
    /// A column of the input.
    value: Column,
    /// The columns of the input, and the mark.
    schema: DFSchemaRef,
}

impl NullAwareMarkJoin {
    /// Marks the rows of `input`.
    ///
    /// # Errors
    /// Fails unless `members` has exactly one column, with a qualifier, or if the input already has such a mark.
    pub fn try_new(input: Arc<LogicalPlan>, members: Arc<LogicalPlan>, value: Column) -> Result<Self> {
        assert_eq_or_internal_err!(members.schema().fields().len(), 1, "the members of a mark join are one column");
        let (Some(alias), _) = members.schema().qualified_field(0) else {
            return internal_err!("the members of a mark join have no alias");
        };
        let mark = Arc::new(Field::new(MARK, DataType::Boolean, true));
        let columns = input.schema().iter().map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field)));
        let columns = columns.chain([(Some(alias.clone()), mark)]).collect();
        let schema = DFSchema::new_with_metadata(columns, input.schema().metadata().clone())?;
        let dependencies = input.schema().functional_dependencies().clone();
        let schema = Arc::new(schema.with_functional_dependencies(dependencies)?);
        Ok(Self { input, members, value, schema })
    }

    /// The rows that are marked.
    pub fn input(&self) -> &Arc<LogicalPlan> {
        &self.input
    }

    /// The subquery.
    pub fn members(&self) -> &Arc<LogicalPlan> {
        &self.members
    }

    /// The column of the input that is searched for among the members.
    pub fn value(&self) -> &Column {
        &self.value
    }

    /// The column of the members.
    pub fn member(&self) -> Column {
        Column::from(self.members.schema().qualified_field(0))
    }

    /// The column of the marks.
    pub fn mark(&self) -> Column {
        Column::from(self.schema.qualified_field(self.schema.fields().len() - 1))
    }

    /// The mark column of a join with the members of this alias.
    pub fn mark_of(alias: impl Into<TableReference>) -> Column {
        Column::new(Some(alias), MARK)
    }
}

impl PartialOrd for NullAwareMarkJoin {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let (this, that) = ((&self.input, &self.members, &self.value), (&other.input, &other.members, &other.value));
        this.partial_cmp(&that).filter(|ordering| *ordering != Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for NullAwareMarkJoin {
    fn name(&self) -> &str {
        "NullAwareMarkJoin"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input, &self.members]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![Expr::Column(self.value.clone()), Expr::Column(self.member())]
    }

    /// Predicates of the input's columns may move below the join.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        HashSet::from([MARK.to_string()])
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "NullAwareMarkJoin: {} = {}", self.value, self.member())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let (Ok([input, members]), [Expr::Column(value), _]) = (<[LogicalPlan; 2]>::try_from(inputs), &exprs[..])
        else {
            return internal_err!("a mark join has two inputs, and compares two columns");
        };
        // DataFusion's filter pushdown offers a predicate to each input of a node. This predicate concerns only the input's
        // rows.
        let members = match members {
            LogicalPlan::Filter(filter) if filter.input == self.members => Arc::clone(&self.members),
            members => Arc::new(members),
        };
        Self::try_new(Arc::new(input), members, value.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let value = self.input.schema().maybe_index_of_column(&self.value)?;
        let columns = self.input.schema().fields().len();
        let mut needed: Vec<_> = output_columns.iter().copied().filter(|column| *column < columns).collect();
        needed.push(value);
        needed.sort_unstable();
        needed.dedup();
        Some(vec![needed, vec![0]])
    }
}
