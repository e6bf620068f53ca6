//! Logical rules that correct wrong answers of DataFusion 55, or refuse such queries with a clear error.
//!
//! Each rule has a file or folder of its own and names the fault that it corrects, so that it can be removed when DataFusion
//! no longer has the fault. For each rule, a test shows that it is still needed.

mod comparisons;
mod existence;
mod float_extremes;
mod local_time;
pub(crate) mod lossy_casts;
pub mod membership;
mod null_partitions;
mod overflow;
mod row_changes;
mod scalar_values;
pub(crate) mod set_comparison;
mod set_operation_all;
mod truth_tests;
mod unenforced_keys;
mod using_columns;
mod write_aside;

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{DmlStatement, Expr, Join, LogicalPlan, WriteOp};
use datafusion::optimizer::AnalyzerRule;

use comparisons::comparisons;
use existence::existence;
use float_extremes::float_extremes;
use local_time::local_time;
use lossy_casts::lossy_casts;
use membership::membership_to_mark_join;
use null_partitions::null_partitions;
use overflow::overflow;
use row_changes::row_changes;
use scalar_values::scalar_values;
use set_comparison::order_comparison;
use set_operation_all::set_operation_all;
use truth_tests::truth_tests;
use unenforced_keys::unenforced_keys;
use using_columns::using_columns;
use write_aside::write_aside;

pub use null_partitions::NULL_PARTITION;

/// A logical rule, shared by the sessions that use it.
pub type Rule = Arc<dyn AnalyzerRule + Send + Sync>;

/// A rule without state.
#[derive(Debug)]
struct FunctionRule {
    name: &'static str,
    rewrite: fn(LogicalPlan, &ConfigOptions) -> Result<LogicalPlan>,
}

impl AnalyzerRule for FunctionRule {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        (self.rewrite)(plan, config)
    }

    fn name(&self) -> &str {
        self.name
    }
}

fn rule(name: &'static str, rewrite: fn(LogicalPlan, &ConfigOptions) -> Result<LogicalPlan>) -> Rule {
    Arc::new(FunctionRule { name, rewrite })
}

/// The columns that the expressions of a node may name: the columns of its inputs. The filters of a scan, which an optimized
/// plan that is analyzed again may have, name the columns of the table.
fn input_schema(plan: &LogicalPlan) -> Result<DFSchema> {
    let mut schema = merge_schema(&plan.inputs());
    if let LogicalPlan::TableScan(scan) = plan {
        schema.merge(&DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?);
    }
    Ok(schema)
}

/// The node with `rewrite` applied to all parts of its expressions, from the bottom up. The expressions keep their names.
fn map_expressions(
    plan: LogicalPlan,
    mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(expr.transform_up(&mut rewrite)?.update_data(|expr| name.restore(expr)))
    })
}

/// The same for all nodes of a plan and its subqueries. `rewrite` gets the columns that an expression may name.
fn map_all_expressions(
    plan: LogicalPlan,
    rewrite: impl Fn(Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let schema = input_schema(&node)?;
        map_expressions(node, |expr| rewrite(expr, &schema))
    })
    .data()
}

/// Rewrites a statement, which is the root of the plan or below EXPLAIN.
fn map_statement(plan: LogicalPlan, rewrite: impl Fn(LogicalPlan) -> Result<LogicalPlan>) -> Result<LogicalPlan> {
    plan.transform_down(|node| match node {
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => Ok(Transformed::no(node)),
        statement => Ok(Transformed::new(rewrite(statement)?, true, TreeNodeRecursion::Stop)),
    })
    .data()
}

/// Leaves out what is below DELETE, UPDATE and MERGE: their conditions are passed to the table, and there is no plan below
/// them.
fn without_row_changes(plan: LogicalPlan) -> Transformed<LogicalPlan> {
    let is_change_of_rows = matches!(
        &plan,
        LogicalPlan::Dml(DmlStatement { op: WriteOp::Delete | WriteOp::Update | WriteOp::MergeInto(_), .. })
    );
    let recursion = if is_change_of_rows { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue };
    Transformed::new(plan, false, recursion)
}

/// The join of other sides, with the schema that follows from them.
fn rejoined(join: Join, left: LogicalPlan, right: LogicalPlan) -> Result<LogicalPlan> {
    let Join { on, filter, join_type, join_constraint, null_equality, null_aware, .. } = join;
    let (left, right) = (Arc::new(left), Arc::new(right));
    Join::try_new(left, right, on, filter, join_type, join_constraint, null_equality, null_aware).map(LogicalPlan::Join)
}

/// Adds the rules of this module to the `rules` of a session, which begin with DataFusion's type coercion.
pub fn with_analyzer_rules(rules: Vec<Rule>) -> Vec<Rule> {
    [before_coercion(), rules, after_coercion()].concat()
}

/// Rules that see the plan as the query wrote it, before type coercion.
fn before_coercion() -> Vec<Rule> {
    // Row changes recognize tables by their type, so they come before tables with unenforced keys are hidden.
    vec![
        rule("row_changes", row_changes),
        rule("write_aside", write_aside),
        rule("null_partitions", null_partitions),
        rule("unenforced_keys", unenforced_keys),
        rule("using_columns", using_columns),
        rule("overspill_scalar_values", scalar_values),
        rule("comparisons", comparisons),
    ]
}

/// Rules that see operands after DataFusion's type coercion has brought them to common types.
fn after_coercion() -> Vec<Rule> {
    // Rules that change only expressions come before rules that turn expressions into joins.
    vec![
        rule("local_time", local_time),
        rule("lossy_casts", lossy_casts),
        rule("overflow", overflow),
        rule("overspill_set_operation_all", set_operation_all),
        rule("overspill_order_comparison", order_comparison),
        rule("overspill_existence", existence),
        rule("membership_to_mark_join", membership_to_mark_join),
        // Memberships are treated according to their place in the query, and IS TRUE is such a place.
        rule("overspill_truth_tests", truth_tests),
        // By now, comparisons with ANY and ALL are comparisons with extremes.
        rule("overspill_float_extremes", float_extremes),
    ]
}
