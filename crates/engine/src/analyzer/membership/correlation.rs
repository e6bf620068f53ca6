//! Removes the correlating conditions from correlated subqueries.

use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, not_impl_err};
use datafusion::logical_expr::logical_plan::{Aggregate, Distinct, Projection, SubqueryAlias};
use datafusion::logical_expr::utils::{merge_schema, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Extension, Filter, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Operator, binary_expr, lit,
};

use super::filtered;
use crate::analyzer::rejoined;
use crate::mark_join::NullAwareMarkJoin;

/// A subquery without its conditions on columns of the outer query.
pub(super) struct Pulled {
    /// The rows for all outer rows.
    pub plan: LogicalPlan,
    /// The filters that select the rows for one outer row. Columns of the outer query are outer references, the others are
    /// columns of the plan.
    pub filters: Vec<Expr>,
    /// The plan's column that holds the subquery's value.
    pub member: Column,
}

impl Pulled {
    /// The columns of the plan that the filters read.
    pub fn inner_columns(&self) -> Vec<Column> {
        inner_columns(&self.filters)
    }
}

/// Extracts the correlated conditions from a subquery.
///
/// # Errors
/// Fails if a clause between such a condition and its rows would return other rows without the condition.
pub(super) fn pull_up(query: &LogicalPlan, names: &AliasGenerator) -> Result<Pulled> {
    let member = Column::from(query.schema().qualified_field(0));
    let (plan, filters) = match is_scalar_aggregate(query) {
        true => pull_from_scalar_aggregate(query, names)?,
        false => pull(query, names)?,
    };
    Ok(Pulled { plan, filters, member })
}

/// A subquery with the rows that it returns if no row passes its correlated conditions.
pub(super) fn of_no_rows(query: LogicalPlan) -> Result<LogicalPlan> {
    query
        .transform_down(|plan| match plan {
            LogicalPlan::Filter(filter) if filter.predicate.contains_outer() => {
                Ok(Transformed::yes(LogicalPlanBuilder::from(filter.input).filter(lit(false))?.build()?))
            }
            plan => Ok(Transformed::no(plan)),
        })
        .data()
}

/// Whether a subquery always returns one row, whatever rows it aggregates.
pub(super) fn is_scalar_aggregate(query: &LogicalPlan) -> bool {
    match query {
        LogicalPlan::Projection(projection) => is_scalar_aggregate(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => is_scalar_aggregate(&alias.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}

/// A column of a query outside the directly enclosing one that a subquery of the plan refers to.
pub(super) fn deeper_reference(plan: &LogicalPlan) -> Result<Option<Column>> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        let own = merge_schema(&node.inputs());
        node.apply_subqueries(|subquery| {
            let LogicalPlan::Subquery(subquery) = subquery else { return Ok(TreeNodeRecursion::Continue) };
            found = found.take().or_else(|| {
                subquery.subquery.all_out_ref_exprs().into_iter().find_map(|expr| match expr {
                    Expr::OuterReferenceColumn(_, column) if !own.has_column(&column) => Some(column),
                    _ => None,
                })
            });
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(found)
}

/// A plan without its correlated conditions, and those conditions. The result keeps all columns of the given plan.
fn pull(plan: &LogicalPlan, names: &AliasGenerator) -> Result<(LogicalPlan, Vec<Expr>)> {
    if plan.all_out_ref_exprs().is_empty() {
        return Ok((plan.clone(), vec![]));
    }
    match plan {
        LogicalPlan::Filter(Filter { predicate, input, .. }) => {
            let (input, mut filters) = pull(input, names)?;
            let conjuncts = split_conjunction_owned(predicate.clone());
            let (outer, inner): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(Expr::contains_outer);
            if outer.iter().any(has_subquery) {
                return refuse("a condition that has both a subquery and a column of the query around");
            }
            filters.extend(outer);
            Ok((filtered(input, inner)?, filters))
        }
        LogicalPlan::Projection(Projection { expr, input, .. }) => projected(expr, pull(input, names)?, names),
        LogicalPlan::SubqueryAlias(alias) => aliased(alias, pull(&alias.input, names)?),
        // The order of the rows does not matter.
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => pull(&sort.input, names),
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let (input, filters) = pull(input, names)?;
            Ok((LogicalPlan::Distinct(Distinct::All(Arc::new(input))), filters))
        }
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
            refuse("an aggregate without GROUP BY below other clauses, such as HAVING")
        }
        LogicalPlan::Aggregate(aggregate) => pull_from_groups(aggregate, names),
        LogicalPlan::Join(join) => pull_from_join(join, names),
        LogicalPlan::Extension(Extension { node }) => match node.as_any().downcast_ref::<NullAwareMarkJoin>() {
            Some(join) if join.members().all_out_ref_exprs().is_empty() => {
                let (input, filters) = pull(join.input(), names)?;
                let members = Arc::clone(join.members());
                let join = NullAwareMarkJoin::try_new(Arc::new(input), members, join.value().clone())?;
                Ok((LogicalPlan::Extension(Extension { node: Arc::new(join) }), filters))
            }
            _ => refuse("an operator that is not DataFusion's"),
        },
        LogicalPlan::Limit(_) | LogicalPlan::Sort(_) => refuse("LIMIT or OFFSET"),
        LogicalPlan::Window(_) => refuse("a window function"),
        LogicalPlan::Union(_) => refuse("UNION"),
        LogicalPlan::Distinct(Distinct::On(_)) => refuse("DISTINCT ON"),
        other => refuse(&other.display().to_string()),
    }
}

/// The aggregates of each group that has rows.
fn pull_from_scalar_aggregate(query: &LogicalPlan, names: &AliasGenerator) -> Result<(LogicalPlan, Vec<Expr>)> {
    match query {
        LogicalPlan::Projection(projection) => {
            let input = pull_from_scalar_aggregate(&projection.input, names)?;
            projected(&projection.expr, input, names)
        }
        LogicalPlan::SubqueryAlias(alias) => aliased(alias, pull_from_scalar_aggregate(&alias.input, names)?),
        LogicalPlan::Aggregate(aggregate) => pull_from_groups(aggregate, names),
        other => pull(other, names),
    }
}

fn projected(
    expr: &[Expr],
    (input, filters): (LogicalPlan, Vec<Expr>),
    names: &AliasGenerator,
) -> Result<(LogicalPlan, Vec<Expr>)> {
    if expr.iter().any(Expr::contains_outer) {
        return refuse("a column of the query around in its SELECT list");
    }
    let (keys, filters) = keys(filters, names)?;
    Ok((LogicalPlanBuilder::from(input).project(expr.iter().cloned().chain(keys))?.build()?, filters))
}

fn aliased(alias: &SubqueryAlias, (input, filters): (LogicalPlan, Vec<Expr>)) -> Result<(LogicalPlan, Vec<Expr>)> {
    let inner = Arc::clone(input.schema());
    let plan = SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?;
    let filters = filters.into_iter().map(|filter| {
        rename(filter, |column| Ok(Column::from(plan.schema.qualified_field(inner.index_of_column(column)?))))
    });
    let filters = filters.collect::<Result<_>>()?;
    Ok((LogicalPlan::SubqueryAlias(plan), filters))
}

/// The groups of all outer rows: rows that a condition distinguishes are in different groups.
fn pull_from_groups(aggregate: &Aggregate, names: &AliasGenerator) -> Result<(LogicalPlan, Vec<Expr>)> {
    let Aggregate { input, group_expr, aggr_expr, .. } = aggregate;
    if group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_))) {
        return refuse("GROUPING SETS, ROLLUP or CUBE");
    }
    if group_expr.iter().chain(aggr_expr).any(Expr::contains_outer) {
        return refuse("a column of the query around in GROUP BY or an aggregate");
    }
    let (input, filters) = pull(input, names)?;
    let (keys, filters) = if aggr_expr.is_empty() { keys(filters, names)? } else { equal_keys(filters, names)? };
    let groups = group_expr.iter().cloned().chain(keys);
    Ok((LogicalPlanBuilder::from(input).aggregate(groups, aggr_expr.clone())?.build()?, filters))
}

fn pull_from_join(join: &Join, names: &AliasGenerator) -> Result<(LogicalPlan, Vec<Expr>)> {
    let conditions = join.on.iter().flat_map(|(left, right)| [left, right]).chain(&join.filter);
    let [left_is_correlated, right_is_correlated] =
        [&join.left, &join.right].map(|side| !side.all_out_ref_exprs().is_empty());
    let may_pull = match join.join_type {
        JoinType::Inner => true,
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => !right_is_correlated,
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => !left_is_correlated,
        JoinType::Full => false,
    };
    if !may_pull {
        return refuse("a column of the query around on the inner side of an outer join, EXCEPT, INTERSECT or EXISTS");
    }
    if conditions.into_iter().any(Expr::contains_outer) {
        return refuse("a column of the query around in an ON clause");
    }
    let (left, mut filters) = pull(&join.left, names)?;
    let (right, others) = pull(&join.right, names)?;
    filters.extend(others);
    Ok((rejoined(join.clone(), left, right)?, filters))
}

/// Aliased expressions for the columns that filters read, and the filters over those aliases.
fn keys(filters: Vec<Expr>, names: &AliasGenerator) -> Result<(Vec<Expr>, Vec<Expr>)> {
    let columns = inner_columns(&filters);
    let aliases: Vec<_> = columns.iter().map(|_| names.next("__in_key")).collect();
    let keys = columns.iter().zip(&aliases).map(|(column, alias)| Expr::Column(column.clone()).alias(alias)).collect();
    let filters = filters.into_iter().map(|filter| {
        rename(filter, |column| {
            let number = columns.iter().position(|known| known == column);
            Ok(number.map_or_else(|| column.clone(), |number| Column::new_unqualified(&aliases[number])))
        })
    });
    Ok((keys, filters.collect::<Result<_>>()?))
}

/// The same for filters below an aggregate: each must equate a value that the rows of a group have in common with an
/// expression of the outer query.
fn equal_keys(filters: Vec<Expr>, names: &AliasGenerator) -> Result<(Vec<Expr>, Vec<Expr>)> {
    let (mut keys, mut equalities) = (vec![], vec![]);
    for filter in filters {
        if !filter.any_column_refs() {
            equalities.push(filter);
            continue;
        }
        let Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Eq | Operator::IsNotDistinctFrom), right }) =
            filter
        else {
            return refuse("an aggregate, and a condition on a column of the query around that is not an equality,");
        };
        let (inner, outer) = if left.contains_outer() { (*right, *left) } else { (*left, *right) };
        if inner.contains_outer() || outer.any_column_refs() || inner.is_volatile() {
            return refuse("an aggregate, and a condition that has columns of both queries on one side,");
        }
        let alias = names.next("__in_key");
        keys.push(inner.alias(&alias));
        equalities.push(binary_expr(Expr::Column(Column::new_unqualified(alias)), op, outer));
    }
    Ok((keys, equalities))
}

fn inner_columns(filters: &[Expr]) -> Vec<Column> {
    let mut columns = vec![];
    for column in filters.iter().flat_map(Expr::column_refs) {
        if !columns.contains(column) {
            columns.push(column.clone());
        }
    }
    columns.sort();
    columns
}

fn rename(expr: Expr, name: impl Fn(&Column) -> Result<Column>) -> Result<Expr> {
    expr.transform(|expr| match expr {
        Expr::Column(column) => Ok(Transformed::yes(Expr::Column(name(&column)?))),
        expr => Ok(Transformed::no(expr)),
    })
    .data()
}

fn has_subquery(expr: &Expr) -> bool {
    let is_subquery = |expr: &Expr| {
        matches!(expr, Expr::InSubquery(_) | Expr::Exists(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_))
    };
    expr.exists(|expr| Ok(is_subquery(expr))).unwrap_or_default()
}

fn refuse<T>(what: &str) -> Result<T> {
    not_impl_err!(
        "IN over a correlated subquery with {what} is not supported; write it as a join with the subquery's rows, grouped or \
         numbered by the columns that correlate it"
    )
}
