//! The joins that compute memberships for the rows of a plan.

use std::mem;
use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ExprSchema, Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{
    Expr, ExprSchemable, Extension, JoinType, LogicalPlan, LogicalPlanBuilder, lit, not, when,
};

use super::correlation::{Pulled, deeper_reference, is_scalar_aggregate, of_no_rows, pull_up};
use super::{Membership, filtered};
use crate::mark_join::NullAwareMarkJoin;

/// The column of the members of a correlated subquery.
const MEMBER: &str = "member";
/// A column that is always true, to identify rows without a match after a left join.
const FOUND: &str = "found";

/// The value of a membership that is neither true nor false.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    IsNull,
    /// Used where it makes no difference, as it needs fewer joins.
    IsFalse,
}

/// A plan with a column for each requested membership.
pub(super) struct Marks<'a> {
    plan: LogicalPlan,
    /// Conditions of the plan that refer to a query further out. They are put back on top of the plan. DataFusion can pull
    /// them up from there.
    outer: Vec<Expr>,
    names: &'a AliasGenerator,
}

impl<'a> Marks<'a> {
    pub fn new(plan: LogicalPlan, names: &'a AliasGenerator) -> Self {
        match plan {
            LogicalPlan::Filter(filter) if filter.predicate.contains_outer() => {
                let outer = split_conjunction_owned(filter.predicate);
                Self { plan: Arc::unwrap_or_clone(filter.input), outer, names }
            }
            plan => Self { plan, outer: vec![], names },
        }
    }

    /// The plan with all columns.
    pub fn finish(self) -> Result<LogicalPlan> {
        filtered(self.plan, self.outer)
    }

    /// Replaces the memberships of an expression.
    pub fn replace(&mut self, expr: Expr, unknown: Unknown) -> Result<Expr> {
        expr.transform_up(|expr| match Membership::from_expr(expr) {
            Ok(membership) => self.mark(membership, unknown).map(Transformed::yes),
            Err(expr) => Ok(Transformed::no(expr)),
        })
        .data()
    }

    /// Keeps the rows for which a correlated membership is true by a semi or anti join. Returns the remaining filter
    /// condition, if the join needs one.
    pub fn filter(&mut self, membership: Membership) -> Result<Option<Expr>> {
        let query = self.checked(&membership)?;
        let is_correlated = !query.all_out_ref_exprs().is_empty();
        let value_is_nullable = membership.value.nullable(self.plan.schema().as_ref())?;
        let may_be_null = value_is_nullable || query.schema().field(0).is_nullable();
        if !is_correlated || is_scalar_aggregate(query) || (membership.negated && may_be_null) {
            return self.mark(membership, Unknown::IsNull).map(Some);
        }
        let pulled = pull_up(query, self.names)?;
        let members = self.members(&pulled, false)?;
        let join_type = if membership.negated { JoinType::LeftAnti } else { JoinType::LeftSemi };
        let on = [membership.value.eq(Expr::Column(members.member))].into_iter().chain(members.on);
        self.plan =
            LogicalPlanBuilder::from(mem::take(&mut self.plan)).join_on(members.plan, join_type, on)?.build()?;
        Ok(None)
    }

    /// An expression for the value of a membership.
    pub fn mark(&mut self, membership: Membership, unknown: Unknown) -> Result<Expr> {
        let query = self.checked(&membership)?.clone();
        let Membership { value, subquery, negated } = membership;
        let mark = if query.all_out_ref_exprs().is_empty() {
            self.mark_uncorrelated(value, query, unknown)?
        } else if is_scalar_aggregate(&query) {
            self.equals_aggregate(value, query, subquery)?
        } else {
            self.mark_correlated(value, &query, unknown)?
        };
        Ok(if negated { not(mark) } else { mark })
    }

    fn mark_uncorrelated(&mut self, value: Expr, query: LogicalPlan, unknown: Unknown) -> Result<Expr> {
        let value = self.column_of(value)?;
        let members = LogicalPlanBuilder::from(query).alias(self.names.next("__in"))?.build()?;
        let may_be_null = self.plan.schema().nullable(&value)? || members.schema().field(0).is_nullable();
        if may_be_null && unknown == Unknown::IsNull {
            let join = NullAwareMarkJoin::try_new(Arc::new(mem::take(&mut self.plan)), Arc::new(members), value)?;
            let mark = join.mark();
            self.plan = LogicalPlan::Extension(Extension { node: Arc::new(join) });
            return Ok(Expr::Column(mark));
        }
        let member = Column::from(members.schema().qualified_field(0));
        self.mark_join(members, vec![Expr::Column(value).eq(Expr::Column(member))])
    }

    /// Uses at most three joins, each within the row's group: one finds an equal member, one finds a null member, and one
    /// finds any member for the rows whose value is null.
    fn mark_correlated(&mut self, value: Expr, query: &LogicalPlan, unknown: Unknown) -> Result<Expr> {
        let pulled = pull_up(query, self.names)?;
        let value = self.column_of(value)?;
        let value_is_nullable = unknown == Unknown::IsNull && self.plan.schema().nullable(&value)?;
        let member_is_nullable = unknown == Unknown::IsNull && query.schema().field(0).is_nullable();
        if (value_is_nullable || member_is_nullable) && !is_repeatable(query)? {
            return not_impl_err!(
                "IN over a correlated subquery with LIMIT or with random values is not supported: it would be evaluated \
                 several times, with different rows; put its rows into a table first"
            );
        }
        let value = Expr::Column(value);
        let members = self.members(&pulled, false)?;
        let equal = value.clone().eq(Expr::Column(members.member));
        let equal = self.mark_join(members.plan, [vec![equal], members.on].concat())?;
        let mut unknown = None;
        if member_is_nullable {
            let nulls = self.members(&pulled, true)?;
            unknown = Some(self.mark_join(nulls.plan, nulls.on)?);
        }
        if value_is_nullable {
            let any = self.members(&pulled, false)?;
            let any = value.is_null().and(self.mark_join(any.plan, any.on)?);
            unknown = Some(match unknown {
                Some(unknown) => unknown.or(any),
                None => any,
            });
        }
        match unknown {
            Some(unknown) => {
                when(equal, lit(true)).when(unknown, lit(ScalarValue::Boolean(None))).otherwise(lit(false))
            }
            None => Ok(equal),
        }
    }

    /// A comparison with the one row of an aggregate, also for a group without rows.
    fn equals_aggregate(&mut self, value: Expr, query: LogicalPlan, subquery: Subquery) -> Result<Expr> {
        let members = self.members(&pull_up(&query, self.names)?, false)?;
        let found = Column::new(members.member.relation.clone(), FOUND);
        self.plan = LogicalPlanBuilder::from(mem::take(&mut self.plan))
            .join_on(members.plan, JoinType::Left, members.on)?
            .build()?;
        let of_no_rows = Subquery { subquery: Arc::new(of_no_rows(query)?), outer_ref_columns: vec![], ..subquery };
        let aggregate = when(Expr::Column(found).is_not_null(), Expr::Column(members.member))
            .otherwise(Expr::ScalarSubquery(of_no_rows))?;
        // A projection, where DataFusion plans scalar subqueries.
        self.column_of(value.eq(aggregate)).map(Expr::Column)
    }

    /// Adds one of DataFusion's mark joins.
    fn mark_join(&mut self, members: LogicalPlan, on: Vec<Expr>) -> Result<Expr> {
        let Some(alias) = members.schema().qualified_field(0).0.cloned() else {
            return internal_err!("the members of a mark join have no alias");
        };
        self.plan =
            LogicalPlanBuilder::from(mem::take(&mut self.plan)).join_on(members, JoinType::LeftMark, on)?.build()?;
        Ok(Expr::Column(NullAwareMarkJoin::mark_of(alias)))
    }

    /// The rows of a subquery, or those that are null, under a new alias.
    fn members(&self, pulled: &Pulled, only_nulls: bool) -> Result<Members> {
        let member = Expr::Column(pulled.member.clone());
        let alias = self.names.next("__in");
        let mut columns = vec![member.clone().alias(MEMBER), lit(true).alias(FOUND)];
        let mut filters = pulled.filters.clone();
        for (number, column) in pulled.inner_columns().into_iter().enumerate() {
            let name = format!("key_{number}");
            let key = Column::new(Some(alias.clone()), &name);
            columns.push(Expr::Column(column.clone()).alias(name));
            filters = filters.into_iter().map(|filter| replace_column(filter, &column, &key)).collect::<Result<_>>()?;
        }
        let rows = LogicalPlanBuilder::from(pulled.plan.clone());
        let rows = if only_nulls { rows.filter(member.is_null())? } else { rows };
        let plan = rows.project(columns)?.alias(alias.clone())?.build()?;
        let on = filters.into_iter().map(|filter| self.with_own_columns(filter)).collect::<Result<_>>()?;
        Ok(Members { plan, member: Column::new(Some(alias), MEMBER), on })
    }

    /// A condition of a subquery rewritten as a join condition.
    fn with_own_columns(&self, condition: Expr) -> Result<Expr> {
        let replaced = condition.transform(|expr| match expr {
            Expr::OuterReferenceColumn(_, column) if self.plan.schema().has_column(&column) => {
                Ok(Transformed::yes(Expr::Column(column)))
            }
            Expr::OuterReferenceColumn(_, column) => not_impl_err!(
                "IN over a subquery that refers to {column} is not supported where that is a column of a query further out, or \
                 one that ORDER BY does not see; join its table in the subquery, or select the column"
            ),
            expr => Ok(Transformed::no(expr)),
        })?;
        Ok(replaced.data)
    }

    /// The subquery of a membership, if joins can compute it.
    fn checked<'m>(&self, membership: &'m Membership) -> Result<&'m LogicalPlan> {
        let query = membership.subquery.subquery.as_ref();
        if let Some(column) = deeper_reference(query)? {
            return not_impl_err!(
                "IN over a subquery that has a subquery which refers to {column}, of the query around both, is not supported; \
                 join that query's table in the inner subquery"
            );
        }
        if membership.value.contains_outer() {
            return not_impl_err!(
                "{} IN a subquery is not supported where the value is of a query further out; state it in the query of the \
                 value",
                membership.value
            );
        }
        Ok(query)
    }

    /// A column with the value of an expression.
    fn column_of(&mut self, value: Expr) -> Result<Column> {
        if let Expr::Column(column) = value {
            return Ok(column);
        }
        let name = self.names.next("__in_value");
        let columns = self.plan.schema().columns().into_iter().map(Expr::Column);
        let columns = columns.chain([value.alias(name.clone())]);
        self.plan =
            LogicalPlanBuilder::from(mem::take(&mut self.plan)).project(columns.collect::<Vec<_>>())?.build()?;
        Ok(Column::new_unqualified(name))
    }
}

/// The rows of a subquery as the right side of a join.
struct Members {
    plan: LogicalPlan,
    member: Column,
    /// The conditions that correlate it with the outer query.
    on: Vec<Expr>,
}

fn replace_column(expr: Expr, from: &Column, to: &Column) -> Result<Expr> {
    expr.transform(|expr| match expr {
        Expr::Column(column) if column == *from => Ok(Transformed::yes(Expr::Column(to.clone()))),
        expr => Ok(Transformed::no(expr)),
    })
    .data()
}

/// Whether a plan returns the same rows each time it is evaluated.
fn is_repeatable(plan: &LogicalPlan) -> Result<bool> {
    let mut is_repeatable = true;
    plan.apply_with_subqueries(|node| {
        is_repeatable &=
            !matches!(node, LogicalPlan::Limit(_)) && !matches!(node, LogicalPlan::Sort(sort) if sort.fetch.is_some());
        node.apply_expressions(|expr| {
            is_repeatable &= !expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(is_repeatable)
}
