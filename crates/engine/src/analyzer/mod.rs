//! Logical rules that correct wrong answers of DataFusion 55, or refuse such queries with a clear error.
//!
//! Each rule has a file or folder of its own and names the fault that it corrects, so that it can be removed when DataFusion
//! no longer has the fault. For each rule, a test shows that it is still needed.

mod comparisons;
mod existence;
mod float_extremes;
mod local_time;
mod lossy_casts;
pub mod membership;
mod null_partitions;
mod overflow;
mod row_changes;
mod scalar_values;
mod set_comparison;
mod set_operation_all;
mod truth_tests;
mod unenforced_keys;
mod using_columns;
mod write_aside;

use std::sync::Arc;

use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::optimizer::AnalyzerRule;

pub use comparisons::Comparisons;
pub use existence::Existence;
pub use float_extremes::FloatExtremes;
pub use local_time::LocalTime;
pub use lossy_casts::LossyCasts;
use membership::MembershipToMarkJoin;
pub use null_partitions::{NULL_PARTITION, NullPartitions};
pub use overflow::Overflow;
pub use row_changes::RowChanges;
pub use scalar_values::ScalarValues;
pub use set_comparison::OrderComparison;
pub use set_operation_all::SetOperationAll;
pub use truth_tests::TruthTests;
pub use unenforced_keys::UnenforcedKeys;
pub use using_columns::UsingColumns;
pub use write_aside::WriteAside;

/// A logical rule, shared by the sessions that use it.
pub type Rule = Arc<dyn AnalyzerRule + Send + Sync>;

/// The columns that the expressions of a node may name: the columns of its inputs. The filters of a scan, which an optimized
/// plan that is analyzed again may have, name the columns of the table.
fn input_schema(plan: &LogicalPlan) -> Result<DFSchema> {
    let mut schema = merge_schema(&plan.inputs());
    if let LogicalPlan::TableScan(scan) = plan {
        schema.merge(&DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?);
    }
    Ok(schema)
}

/// Adds the rules of this module to the `rules` of a session, which begin with DataFusion's type coercion.
pub fn with_analyzer_rules(rules: Vec<Rule>) -> Vec<Rule> {
    [before_coercion(), rules, after_coercion()].concat()
}

/// Rules that see the plan as the query wrote it, before type coercion.
fn before_coercion() -> Vec<Rule> {
    // Row changes recognize tables by their type, so they come before tables with unenforced keys are hidden.
    vec![
        Arc::new(RowChanges),
        Arc::new(WriteAside),
        Arc::new(NullPartitions),
        Arc::new(UnenforcedKeys),
        Arc::new(UsingColumns),
        Arc::new(ScalarValues),
        Arc::new(Comparisons),
    ]
}

/// Rules that see operands after DataFusion's type coercion has brought them to common types.
fn after_coercion() -> Vec<Rule> {
    // Rules that change only expressions come before rules that turn expressions into joins.
    vec![
        Arc::new(LocalTime),
        Arc::new(LossyCasts),
        Arc::new(Overflow),
        Arc::new(SetOperationAll::new()),
        Arc::new(OrderComparison::new()),
        Arc::new(Existence::new()),
        Arc::new(MembershipToMarkJoin::new()),
        // Memberships are treated according to their place in the query, and IS TRUE is such a place.
        Arc::new(TruthTests),
        // By now, comparisons with ANY and ALL are comparisons with extremes.
        Arc::new(FloatExtremes),
    ]
}
