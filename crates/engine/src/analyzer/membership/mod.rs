//! `IN`, `NOT IN`, `= ANY` and `<> ALL` over subqueries, wherever they stand.
//!
//! DataFusion 55 plans a membership that is a conjunct of a WHERE or HAVING clause as a semi or anti join. Elsewhere in such
//! a clause it plans a mark join, which does not know unknown (its issue 8241). It does not support memberships in other
//! clauses. Correlated `NOT IN` fails (25474), and a correlated subquery that aggregates, or numbers its rows, may be
//! answered wrongly.
//!
//! The rule `membership_to_mark_join` leaves uncorrelated conjuncts to DataFusion, and plans all others:
//!
//! | membership | plan |
//! |---|---|
//! | uncorrelated | a [`NullAwareMarkJoin`](crate::mark_join::NullAwareMarkJoin); one of DataFusion's mark joins if no null can occur, or unknown is as good as false |
//! | correlated conjunct, `IN`, or `NOT IN` without nulls | a semi or anti join |
//! | correlated | a mark join that finds an equal member; if nulls can occur and tell, one that finds a null member, and one that finds any, in the row's own group |
//! | correlated, an aggregate without GROUP BY | a left join with the aggregates of all groups, and a scalar subquery with that of no rows |

mod correlation;
mod marks;

use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion, TreeNodeRewriter};
use datafusion::common::{Column, DFSchemaRef, Result, not_impl_err};
use datafusion::logical_expr::expr::{InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Filter, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Operator, not,
};

use super::{rejoined, without_row_changes};
use marks::{Marks, Unknown};

/// Plans memberships of subqueries by joins; see the [module](self).
///
/// It runs behind type coercion. The filters of DELETE, UPDATE and MERGE are left as they are: there are no joins below them.
pub(super) fn membership_to_mark_join(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let mut rewriter = Rewriter { names: AliasGenerator::new() };
    plan.rewrite_with_subqueries(&mut rewriter).data()
}

/// A membership: whether a value is among the rows of a subquery.
struct Membership {
    value: Expr,
    subquery: Subquery,
    negated: bool,
}

impl Membership {
    fn is(expr: &Expr) -> bool {
        use {Operator::Eq, Operator::NotEq, SetQuantifier::All, SetQuantifier::Any};
        match expr {
            Expr::InSubquery(_) => true,
            Expr::SetComparison(SetComparison { op, quantifier, .. }) => {
                matches!((op, quantifier), (Eq, Any) | (NotEq, All))
            }
            _ => false,
        }
    }

    fn is_in(expr: &Expr) -> bool {
        expr.exists(|expr| Ok(Self::is(expr))).unwrap_or_default()
    }

    /// The membership that an expression represents, or the unchanged expression.
    fn from_expr(expr: Expr) -> Result<Self, Expr> {
        if !Self::is(&expr) {
            return Err(expr);
        }
        match expr {
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => Ok(Self { value: *expr, subquery, negated }),
            Expr::SetComparison(SetComparison { expr, subquery, op, .. }) => {
                Ok(Self { value: *expr, subquery, negated: op == Operator::NotEq })
            }
            other => Err(other),
        }
    }

    /// The same for a conjunct, which may be negated. Its value must not contain a membership.
    fn from_conjunct(conjunct: Expr) -> Result<Self, Expr> {
        match conjunct {
            Expr::Not(inner) if Self::is(&inner) => match Self::from_conjunct(*inner) {
                Ok(membership) => Ok(Self { negated: !membership.negated, ..membership }),
                Err(inner) => Err(not(inner)),
            },
            Expr::InSubquery(InSubquery { ref expr, .. }) | Expr::SetComparison(SetComparison { ref expr, .. })
                if !Self::is_in(expr) =>
            {
                Self::from_expr(conjunct)
            }
            other => Err(other),
        }
    }

    /// Whether DataFusion answers it correctly as a conjunct: its null-aware anti join takes a column of the input as its
    /// key.
    fn is_left_to_host(&self) -> bool {
        let is_correlated = !self.subquery.subquery.all_out_ref_exprs().is_empty();
        !is_correlated && (!self.negated || self.value.any_column_refs() && !self.value.is_volatile())
    }

    fn into_expr(self) -> Expr {
        Expr::InSubquery(InSubquery::new(Box::new(self.value), self.subquery, self.negated))
    }

    /// The columns of the outer query that it depends on.
    fn columns(&self) -> Vec<Column> {
        let outer = self.subquery.subquery.all_out_ref_exprs().into_iter().filter_map(|expr| match expr {
            Expr::OuterReferenceColumn(_, column) => Some(column),
            _ => None,
        });
        self.value.column_refs().into_iter().cloned().chain(outer).collect()
    }
}

struct Rewriter {
    names: AliasGenerator,
}

impl TreeNodeRewriter for Rewriter {
    type Node = LogicalPlan;

    fn f_down(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        Ok(without_row_changes(plan))
    }

    fn f_up(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let mut found = false;
        plan.apply_expressions(|expr| {
            found |= Membership::is_in(expr);
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        match plan {
            _ if !found => Ok(Transformed::no(plan)),
            LogicalPlan::Filter(filter) => self.filter(filter),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) | LogicalPlan::Window(_) | LogicalPlan::Sort(_) => {
                self.expressions(plan).map(Transformed::yes)
            }
            _ => Ok(Transformed::no(plan)),
        }
    }
}

impl Rewriter {
    fn filter(&self, filter: Filter) -> Result<Transformed<LogicalPlan>> {
        let schema = Arc::clone(filter.input.schema());
        let is_changed = |conjunct: &Expr| match Membership::from_conjunct(conjunct.clone()) {
            Ok(membership) => !membership.is_left_to_host() || has_set_comparison(conjunct),
            Err(conjunct) => Membership::is_in(&conjunct),
        };
        let conjuncts = split_conjunction_owned(filter.predicate.clone());
        if !conjuncts.iter().any(is_changed) {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        }
        let (mut below, mut joined, mut above) = (vec![], vec![], vec![]);
        for conjunct in conjuncts {
            match Membership::from_conjunct(conjunct) {
                Ok(membership) if membership.is_left_to_host() => below.push(membership.into_expr()),
                Ok(membership) => joined.push(membership),
                // References to a query further out are pulled up from above the joins.
                Err(conjunct) if Membership::is_in(&conjunct) || conjunct.contains_outer() => above.push(conjunct),
                Err(conjunct) => below.push(conjunct),
            }
        }
        let mut marks = Marks::new(filtered(Arc::unwrap_or_clone(filter.input), below)?, &self.names);
        for membership in joined {
            above.extend(marks.filter(membership)?);
        }
        let replace = |conjunct: Expr| {
            let unknown = if takes_unknown_for_false(&conjunct) { Unknown::IsFalse } else { Unknown::IsNull };
            marks.replace(conjunct, unknown)
        };
        let above = above.into_iter().map(replace).collect::<Result<Vec<_>>>()?;
        with_columns_of(&schema, filtered(marks.finish()?, above)?).map(Transformed::yes)
    }

    /// A node that evaluates expressions over the rows of one input.
    fn expressions(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if let LogicalPlan::Aggregate(aggregate) = &plan
            && let Some(set) = aggregate.group_expr.iter().find(|expr| matches!(expr, Expr::GroupingSet(_)))
            && Membership::is_in(set)
        {
            return not_impl_err!(
                "IN over a subquery is not supported in GROUPING SETS, ROLLUP or CUBE; compute it in a subquery of the FROM \
                 clause, and group by its column"
            );
        }
        let schema = Arc::clone(plan.schema());
        let mut marks = Marks::new(plan.inputs()[0].clone(), &self.names);
        let names = NamePreserver::new(&plan);
        let keeps_names = !matches!(plan, LogicalPlan::Sort(_));
        let rewrite = |expr: Expr| {
            let name = names.save(&expr);
            let expr = marks.replace(expr, Unknown::IsNull)?;
            Ok(if keeps_names { name.restore(expr) } else { expr })
        };
        let expressions = plan.expressions().into_iter().map(rewrite).collect::<Result<Vec<_>>>()?;
        with_columns_of(&schema, plan.with_new_exprs(expressions, vec![marks.finish()?])?)
    }

    /// The memberships of a join's condition. Those of an inner join filter its rows; those of other joins are computed on
    /// the side whose columns they read.
    fn join(&self, join: Join) -> Result<Transformed<LogicalPlan>> {
        let conjuncts = join.filter.clone().map(split_conjunction_owned).unwrap_or_default();
        if join.join_type == JoinType::Inner {
            let (memberships, others): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(Membership::is_in);
            let Some(predicate) = conjunction(memberships) else {
                return Ok(Transformed::no(LogicalPlan::Join(join)));
            };
            let join = LogicalPlan::Join(Join { filter: conjunction(others), ..join });
            let filter = Filter::try_new(predicate, Arc::new(join))?;
            return self.filter(filter).map(|plan| Transformed::yes(plan.data));
        }
        let schema = Arc::clone(&join.schema);
        let mut sides = [&join.left, &join.right].map(|side| Marks::new(side.as_ref().clone(), &self.names));
        let schemas = [join.left.schema(), join.right.schema()];
        let mut replace = |conjunct: Expr| {
            let replaced = conjunct.transform_up(|expr| match Membership::from_expr(expr) {
                Ok(membership) => {
                    let columns = membership.columns();
                    let side = schemas.iter().position(|side| columns.iter().all(|column| side.has_column(column)));
                    match side {
                        Some(side) => sides[side].mark(membership, Unknown::IsNull).map(Transformed::yes),
                        None => not_impl_err!(
                            "IN over a subquery is not supported in the ON clause of an outer join if it reads columns of \
                             both sides ({}); compute one of them in a subquery of the FROM clause",
                            membership.value
                        ),
                    }
                }
                Err(expr) => Ok(Transformed::no(expr)),
            });
            replaced.data()
        };
        let filter = conjuncts.into_iter().map(&mut replace).collect::<Result<Vec<_>>>()?;
        let [left, right] = sides;
        let join = Join { filter: conjunction(filter), ..join };
        with_columns_of(&schema, rejoined(join, left.finish()?, right.finish()?)?).map(Transformed::yes)
    }
}

/// Whether there is a comparison that is equivalent to IN but that DataFusion would plan differently.
fn has_set_comparison(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(matches!(expr, Expr::SetComparison(_)))).unwrap_or_default()
}

/// Whether a conjunct is true for the same rows if unknown memberships count as false. AND and OR qualify if their operands
/// do.
fn takes_unknown_for_false(conjunct: &Expr) -> bool {
    match conjunct {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
            takes_unknown_for_false(left) && takes_unknown_for_false(right)
        }
        expr => match Membership::from_expr(expr.clone()) {
            Ok(membership) => !membership.negated && !Membership::is_in(&membership.value),
            Err(expr) => !Membership::is_in(&expr),
        },
    }
}

fn filtered(plan: LogicalPlan, conjuncts: Vec<Expr>) -> Result<LogicalPlan> {
    match conjunction(conjuncts) {
        Some(predicate) => LogicalPlanBuilder::from(plan).filter(predicate)?.build(),
        None => Ok(plan),
    }
}

/// A plan without the columns that its joins have added.
fn with_columns_of(schema: &DFSchemaRef, plan: LogicalPlan) -> Result<LogicalPlan> {
    if plan.schema().fields().len() == schema.fields().len() {
        return Ok(plan);
    }
    LogicalPlanBuilder::from(plan).project(schema.columns().into_iter().map(Expr::Column))?.build()
}
