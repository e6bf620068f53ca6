//! Gives the columns that `USING` and `NATURAL` merge the value of the side that has the row.
//!
//! DataFusion 55 takes the merged column of `a RIGHT JOIN b USING (k)` for `a.k`, which is NULL in rows of `b` without a
//! match. In SQL it is `b.k`, and for a `FULL JOIN` it is `coalesce(a.k, b.k)`, while `a.k` and `b.k` remain each side's own
//! columns.
//!
//! [`sql::plan`](crate::sql::plan) plans statements without such joins. This rule is for plans from other sources, such as
//! `SessionContext::sql`, and corrects what can be recognized in them. `SELECT sum(k), sum(a.k)` is a single sum in such
//! plans.
//!
//! When rules see a plan, the merged column is already written as one of the two. The SQL planner leaves two traces of the
//! query's text, and both are needed:
//!
//! | in the query | span in the text | name of the table |
//! |---|---|---|
//! | `k`, `*` | none | shared with the schema of the input |
//! | `a.k` | its place in the text | shared with the schema of the input |
//! | `a.*`, and columns that programs build | none | a string of its own |

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNodeRewriter};
use datafusion::common::{Column, DFSchema, JoinConstraint, JoinType, Result, TableReference, plan_err};
use datafusion::logical_expr::logical_plan::Join;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::prelude::coalesce;

use super::comparisons::{Comparable, common_type};
use super::map_expressions;

/// Rewrites references to merged columns of outer joins; see the module.
pub(super) fn using_columns(plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    let mut rewriter = Rewriter { config, frames: vec![vec![]] };
    plan.rewrite_with_subqueries(&mut rewriter).data()
}

/// A column that `USING` merged from columns of several tables.
#[derive(Debug, Clone)]
struct MergedColumn {
    /// The columns as named in the schema of the plan.
    members: Vec<Column>,
    value: Expr,
    /// Whether all members have the same value in every row, so that any of them may represent it.
    is_each_member: bool,
}

impl MergedColumn {
    /// A column that no join has merged.
    fn single(column: &Column, schema: &DFSchema) -> Self {
        let in_schema = schema.iter().map(Column::from).find(|other| other == column);
        let column = in_schema.unwrap_or_else(|| column.clone());
        Self { value: Expr::Column(column.clone()), members: vec![column], is_each_member: true }
    }

    /// Whether this column of the plan was the merged column in the query.
    fn is_meant_by(&self, column: &Column) -> bool {
        let member = self.members.iter().find(|member| *member == column);
        match member.map(|member| (&member.relation, &column.relation)) {
            None => false,
            Some((Some(in_schema), Some(written))) => {
                column.spans.get_spans().is_empty() && share_their_name(in_schema, written)
            }
            // Only the merged column has a name without a table.
            Some(_) => true,
        }
    }
}

fn share_their_name(one: &TableReference, other: &TableReference) -> bool {
    std::ptr::eq(one.table(), other.table())
}

struct Rewriter<'a> {
    config: &'a ConfigOptions,
    /// For each node on the path to the visited one, the merged columns of its subqueries and inputs visited so far.
    frames: Vec<Vec<Vec<MergedColumn>>>,
}

impl TreeNodeRewriter for Rewriter<'_> {
    type Node = LogicalPlan;

    fn f_down(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        self.frames.push(vec![]);
        Ok(Transformed::no(plan))
    }

    fn f_up(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let mut frame = self.frames.pop().unwrap_or_default();
        // Subqueries are visited before the inputs.
        let columns = frame.split_off(frame.len().saturating_sub(plan.inputs().len())).concat();
        let (rewritten, columns) = match plan {
            LogicalPlan::Join(join) if join.join_constraint == JoinConstraint::Using => self.merge(join, columns)?,
            plan => {
                let rewritten = self.rewrite_references(plan, &columns)?;
                let columns = if passes_columns(&rewritten.data) { columns } else { vec![] };
                (rewritten, columns)
            }
        };
        if let Some(parent) = self.frames.last_mut() {
            parent.push(columns);
        }
        Ok(rewritten)
    }
}

impl Rewriter<'_> {
    /// Makes a join compare merged columns, and merges the columns in its constraint.
    fn merge(
        &self,
        mut join: Join,
        mut columns: Vec<MergedColumn>,
    ) -> Result<(Transformed<LogicalPlan>, Vec<MergedColumn>)> {
        for (left_key, right_key) in &mut join.on {
            let (Expr::Column(left), Expr::Column(right)) = (&*left_key, &*right_key) else { continue };
            let left = take(&mut columns, left, join.left.schema());
            let right = take(&mut columns, right, join.right.schema());
            (*left_key, *right_key) = (left.value.clone(), right.value.clone());
            let value = match join.join_type {
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => right.value,
                JoinType::Full => self.either(left.value, join.left.schema(), right.value, join.right.schema())?,
                _ => left.value,
            };
            columns.push(MergedColumn {
                members: [left.members, right.members].concat(),
                value,
                is_each_member: left.is_each_member && right.is_each_member && join.join_type == JoinType::Inner,
            });
        }
        // Its keys may differ from the columns that the constraint names. A plan that is analyzed again, such as the plan of
        // a view, already names the intended columns.
        join.join_constraint = JoinConstraint::On;
        Ok((Transformed::yes(LogicalPlan::Join(join)), columns))
    }

    /// The value of the side that has the row, in the type that the join uses to compare the two.
    fn either(&self, left: Expr, left_schema: &DFSchema, right: Expr, right_schema: &DFSchema) -> Result<Expr> {
        let (left_type, right_type) = (left.get_type(left_schema)?, right.get_type(right_schema)?);
        let comparable = Comparable::of(&left, &left_type, &right, &right_type, self.config)?;
        let (left, right) = (comparable.left(left)?, comparable.right(right)?);
        let common = common_type(&left.get_type(left_schema)?, &right.get_type(right_schema)?)?;
        Ok(coalesce(vec![left.cast_to(&common, left_schema)?, right.cast_to(&common, right_schema)?]))
    }

    fn rewrite_references(&self, plan: LogicalPlan, columns: &[MergedColumn]) -> Result<Transformed<LogicalPlan>> {
        if columns.is_empty() {
            return Ok(Transformed::no(plan));
        }
        let rewritten = map_expressions(plan, |expr| self.rewrite_reference(expr, columns))?;
        if rewritten.transformed { rewritten.map_data(LogicalPlan::recompute_schema) } else { Ok(rewritten) }
    }

    fn rewrite_reference(&self, expr: Expr, columns: &[MergedColumn]) -> Result<Transformed<Expr>> {
        let column = match &expr {
            Expr::Column(column) => column,
            Expr::OuterReferenceColumn(_, column) => {
                refuse_outer_column(column, columns)?;
                return Ok(Transformed::no(expr));
            }
            _ => return Ok(Transformed::no(expr)),
        };
        let mut columns = columns.iter().filter(|merged| !merged.is_each_member);
        let Some(merged) = columns.find(|merged| merged.is_meant_by(column)) else { return Ok(Transformed::no(expr)) };
        if merged.value == expr {
            return Ok(Transformed::no(expr));
        }
        if !self.config.sql_parser.collect_spans {
            return plan_err!(
                "The column {column} is merged by an outer join with USING or NATURAL, and whether the query means its side \
                 of the join or both is unknown while datafusion.sql_parser.collect_spans is false: set it to true, \
                 or write ON and coalesce"
            );
        }
        Ok(Transformed::yes(merged.value.clone()))
    }
}

/// Refuses an outer column in a subquery if it has the name of a merged column there: for an unqualified merged column, the
/// SQL planner takes the outer one.
fn refuse_outer_column(column: &Column, columns: &[MergedColumn]) -> Result<()> {
    let name = &column.name;
    if columns.iter().any(|merged| merged.members.iter().any(|member| member.name == *name)) {
        return plan_err!(
            "Whether {name} in a subquery means the column that its join with USING or NATURAL merges or {column} of the \
             query around it is unknown: write the join of the subquery with ON, and {name} with the name of its table"
        );
    }
    Ok(())
}

/// Removes and returns the merged column that contains this one.
fn take(columns: &mut Vec<MergedColumn>, column: &Column, schema: &DFSchema) -> MergedColumn {
    match columns.iter().position(|merged| merged.members.contains(column)) {
        Some(position) => columns.swap_remove(position),
        None => MergedColumn::single(column, schema),
    }
}

/// Whether a node outputs the columns of its inputs unchanged.
fn passes_columns(plan: &LogicalPlan) -> bool {
    matches!(
        plan,
        LogicalPlan::Join(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Repartition(_)
    )
}
