//! Order comparisons, `<> ANY` and `= ALL`, by the least and the greatest row of the subquery.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion, TreeNodeRewriter};
use datafusion::common::{Column, DFSchema, Result, plan_err};
use datafusion::logical_expr::expr::{SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Operator};

use super::correlation::obstacle;
use super::summary::{comparison_with, summary_of, type_of};
use crate::analyzer::{rejoined, without_row_changes};

/// The name prefixes of columns that hold the summary of a subquery, or a value that is compared with it.
const COLUMN: &str = "__overspill_compared";

/// Plans `x < ANY (SELECT …)`, `x >= ALL (SELECT …)` and the like by the least and the greatest value of the subquery and its
/// counts of rows and values.
///
/// The summary is a scalar subquery in a projection below the node that compares, so that it is evaluated once, and
/// every reference to it is a column:
///
/// ```text
/// Filter: x < ANY (SELECT y FROM s)  =>  Projection: x
///   scan                                   Filter: x < greatest of summary AND …
///                                            Projection: x, (SELECT {min(y), max(y), …} FROM s) AS summary
///                                              scan
/// ```
///
/// The rule runs after type coercion, which gives both sides a common type: values are ordered by that type.
pub(in crate::analyzer) fn order_comparison(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let mut planner = Planner { columns: ColumnNames::beyond(&plan)? };
    plan.rewrite_with_subqueries(&mut planner).data()
}

struct Planner {
    columns: ColumnNames,
}

impl TreeNodeRewriter for Planner {
    type Node = LogicalPlan;

    fn f_down(&mut self, node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        Ok(without_row_changes(node))
    }

    fn f_up(&mut self, node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        match has_comparisons(&node.expressions()) {
            true => Ok(Transformed::yes(planned(node, &mut self.columns)?)),
            false => Ok(Transformed::no(node)),
        }
    }
}

/// Column names that are unique in the whole plan: the optimizer may combine columns of several parts.
struct ColumnNames {
    given: usize,
}

impl ColumnNames {
    fn beyond(plan: &LogicalPlan) -> Result<Self> {
        let mut given = 0;
        plan.apply_with_subqueries(|node| {
            let numbers =
                node.schema().fields().iter().filter_map(|field| field.name().strip_prefix(COLUMN)?.parse().ok());
            given = numbers.fold(given, usize::max);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(Self { given })
    }

    fn next(&mut self) -> String {
        self.given += 1;
        format!("{COLUMN}{}", self.given)
    }
}

fn has_comparisons(expressions: &[Expr]) -> bool {
    expressions.iter().any(|expr| !comparisons_of(expr).is_empty())
}

/// The distinct comparisons in an expression.
fn comparisons_of(expr: &Expr) -> Vec<SetComparison> {
    let mut found: Vec<SetComparison> = vec![];
    expr.apply(|expr| {
        if let Expr::SetComparison(comparison) = expr
            && !is_membership(comparison)
            && !found.contains(comparison)
        {
            found.push(comparison.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .expect("the closure gives no error");
    found
}

/// Whether a comparison is equivalent to IN or NOT IN.
fn is_membership(comparison: &SetComparison) -> bool {
    matches!(
        (comparison.op, &comparison.quantifier),
        (Operator::Eq, SetQuantifier::Any) | (Operator::NotEq, SetQuantifier::All)
    )
}

/// The node without comparisons, with the same output.
fn planned(node: LogicalPlan, columns: &mut ColumnNames) -> Result<LogicalPlan> {
    let output = node.schema().columns();
    // Sorts are enforced by comparing expressions, which DataFusion 55 does wrongly for some that contain subqueries. So in
    // sorts, and in groups, the comparison becomes a column.
    let (passes_its_input_on, result) = match &node {
        LogicalPlan::Projection(_) => (false, ResultIn::Place),
        LogicalPlan::Aggregate(_) => (false, ResultIn::Column),
        LogicalPlan::Filter(_) => (true, ResultIn::Place),
        LogicalPlan::Sort(_) | LogicalPlan::Window(_) => (true, ResultIn::Column),
        LogicalPlan::Join(_) => {
            let LogicalPlan::Join(join) = node else { unreachable!("it has just been matched") };
            return planned_join(join, output, columns);
        }
        other => {
            return plan_err!(
                "a comparison with ANY or ALL rows of a subquery is not supported in {}. Compute it in a query below, \
                 SELECT … AS name FROM …, and use that name",
                other.display()
            );
        }
    };
    let names = NamePreserver::new(&node);
    let mut input = Comparing::new(Arc::new(node.inputs()[0].clone()), result, columns);
    let expressions = node
        .expressions()
        .into_iter()
        .map(|expr| {
            if matches!(expr, Expr::GroupingSet(_)) && has_comparisons(std::slice::from_ref(&expr)) {
                return plan_err!(
                    "a comparison with ANY or ALL rows of a subquery is not supported in grouping sets. Compute it in a \
                     query below, SELECT … AS name FROM …, and group by that name"
                );
            }
            let name = names.save(&expr);
            Ok(name.restore(input.rewrite(expr)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let node = node.with_new_exprs(expressions, vec![input.build()?])?;
    if passes_its_input_on { with_columns(node, output) } else { Ok(node) }
}

/// The same for a join condition with comparisons.
fn planned_join(mut join: Join, output: Vec<Column>, columns: &mut ColumnNames) -> Result<LogicalPlan> {
    let (comparing, rest): (Vec<_>, Vec<_>) = join
        .filter
        .take()
        .map(split_conjunction_owned)
        .unwrap_or_default()
        .into_iter()
        .partition(|term| has_comparisons(std::slice::from_ref(term)));
    let keys: Vec<Expr> = join.on.iter().flat_map(|(left, right)| [left.clone(), right.clone()]).collect();
    if has_comparisons(&keys) {
        return plan_err!(
            "a comparison with ANY or ALL rows of a subquery is not supported on one side of an equality of a join. \
             Compute it in a query below, SELECT … AS name FROM …, and join on that name"
        );
    }
    if join.join_type == JoinType::Inner {
        join.filter = conjunction(rest);
        let predicate = conjunction(comparing).expect("a term compares");
        let filter = LogicalPlanBuilder::from(LogicalPlan::Join(join)).filter(predicate)?.build()?;
        return planned(filter, columns);
    }
    let mut left = Comparing::new(Arc::clone(&join.left), ResultIn::Place, columns);
    let mut right_terms = vec![];
    let mut filter = rest;
    for term in comparing {
        if left.can_summarise(&term) {
            filter.push(left.rewrite(term)?);
        } else {
            right_terms.push(term);
        }
    }
    let left = left.build()?;
    let mut right = Comparing::new(Arc::clone(&join.right), ResultIn::Place, columns);
    for term in right_terms {
        if !right.can_summarise(&term) {
            return plan_err!(
                "a comparison with ANY or ALL rows of a subquery that refers to both sides of the {} join is not \
                 supported in the condition of the join. Let the subquery refer to one side, or compute the \
                 comparison with a subquery that has no condition on the other",
                join.join_type
            );
        }
        filter.push(right.rewrite(term)?);
    }
    let right = right.build()?;
    with_columns(rejoined(Join { filter: conjunction(filter), ..join }, left, right)?, output)
}

fn with_columns(plan: LogicalPlan, columns: Vec<Column>) -> Result<LogicalPlan> {
    LogicalPlanBuilder::from(plan).project(columns.into_iter().map(Expr::Column))?.build()
}

/// The place where a comparison is evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResultIn {
    /// In the node itself.
    Place,
    /// In a projection below the node.
    Column,
}

/// A plan and the additional columns that comparisons above it need from it.
struct Comparing<'a> {
    input: Arc<LogicalPlan>,
    result: ResultIn,
    columns: &'a mut ColumnNames,
    /// Summaries, and values that must be evaluated only once.
    added: Vec<Expr>,
    /// Comparisons, built from the columns above.
    results: Vec<Expr>,
    /// The comparisons rewritten so far, with their replacements.
    rewritten: Vec<(SetComparison, Expr)>,
}

impl<'a> Comparing<'a> {
    fn new(input: Arc<LogicalPlan>, result: ResultIn, columns: &'a mut ColumnNames) -> Self {
        Self { input, result, columns, added: vec![], results: vec![], rewritten: vec![] }
    }

    /// Whether all outer columns of the subqueries in `expr` are columns of the plan.
    fn can_summarise(&self, expr: &Expr) -> bool {
        comparisons_of(expr).iter().all(|comparison| knows_outer_columns(self.input.schema(), comparison))
    }

    /// The expression with each comparison rewritten to use the summary of its subquery.
    fn rewrite(&mut self, expr: Expr) -> Result<Expr> {
        expr.transform_up(|expr| match expr {
            Expr::SetComparison(comparison) if !is_membership(&comparison) => {
                Ok(Transformed::yes(self.rewrite_comparison(comparison)?))
            }
            expr => Ok(Transformed::no(expr)),
        })
        .data()
    }

    fn rewrite_comparison(&mut self, comparison: SetComparison) -> Result<Expr> {
        let volatile = comparison.expr.is_volatile();
        if let Some((_, expr)) = self.rewritten.iter().find(|(known, _)| *known == comparison && !volatile) {
            return Ok(expr.clone());
        }
        let SetComparison { op, quantifier, .. } = &comparison;
        let refusal = if !knows_outer_columns(self.input.schema(), &comparison) {
            Some("the subquery refers to a query further out than the one that compares".to_owned())
        } else {
            obstacle(&comparison.subquery.subquery)?
        };
        if let Some(reason) = refusal {
            return plan_err!(
                "{op} {quantifier} (SELECT …) is not supported here: {reason}. Write EXISTS (SELECT … WHERE …) with the \
                 comparison among its conditions, or NOT EXISTS with its opposite"
            );
        }
        let data_type = type_of(&comparison)?;
        let summary = named(summary_of(&comparison)?, self.columns, &mut self.added);
        let value = comparison.expr.as_ref().clone();
        // BETWEEN evaluates its value twice.
        let value = if volatile { named(value, self.columns, &mut self.added) } else { value };
        let expr = comparison_with(&summary, value, &data_type, &comparison)?;
        let expr = match self.result {
            ResultIn::Place => expr,
            ResultIn::Column => named(expr, self.columns, &mut self.results),
        };
        self.rewritten.push((comparison, expr.clone()));
        Ok(expr)
    }

    fn build(self) -> Result<LogicalPlan> {
        let mut plan = Arc::unwrap_or_clone(self.input);
        for added in [self.added, self.results] {
            if !added.is_empty() {
                let known = plan.schema().columns().into_iter().map(Expr::Column);
                plan = LogicalPlanBuilder::from(plan).project(known.chain(added))?.build()?;
            }
        }
        Ok(plan)
    }
}

fn named(expr: Expr, columns: &mut ColumnNames, added: &mut Vec<Expr>) -> Expr {
    let name = columns.next();
    added.push(expr.alias(&name));
    Expr::Column(Column::new_unqualified(name))
}

fn knows_outer_columns(schema: &DFSchema, comparison: &SetComparison) -> bool {
    comparison.subquery.subquery.all_out_ref_exprs().iter().all(|expr| match expr {
        Expr::OuterReferenceColumn(_, column) => schema.has_column(column),
        _ => true,
    })
}
