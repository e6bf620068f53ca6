//! Settings: errors that name the setting, and the exact limits.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, config_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Statement, TableScan, case, lit};
use datafusion::optimizer::AnalyzerRule;
use overspill::size::Size;

use crate::error::{nearest_setting, plain};
use crate::limits::in_force;
use crate::owner::Owner;

/// A setting and its new value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub value: String,
}

impl Change {
    /// The change made by a statement, if it is SET.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        let LogicalPlan::Statement(Statement::SetVariable(set)) = plan else { return None };
        Some(Self { key: set.variable.clone(), value: set.value.clone() })
    }

    /// The error of the change, with the name of the setting and its valid values.
    pub fn refused(&self, error: &DataFusionError, options: &ConfigOptions) -> DataFusionError {
        let Self { key, value } = self;
        let text = plain(error);
        let known = options.entries().into_iter().map(|entry| entry.key).collect::<Vec<_>>();
        // Runtime settings belong to no namespace; their own error names them.
        if !known.iter().any(|known| known == key) && !key.starts_with("datafusion.runtime.") {
            return config_datafusion_err!(
                "there is no setting '{key}'{}",
                nearest_setting(key, &known)
                    .map_or(" (SHOW ALL lists them)".to_string(), |meant| format!(" (did you mean {meant}?)"))
            );
        }
        // DataFusion repeats Rust's messages about numbers.
        let reason = match error.strip_backtrace() {
            text if text.contains("invalid digit") || text.contains("cannot parse integer") => {
                "a whole number is expected".to_string()
            }
            text if text.contains("invalid float") => "a number is expected".to_string(),
            text if text.contains("not `true` or `false`") => "true or false is expected".to_string(),
            _ => text,
        };
        if reason.contains(key.as_str()) && reason.contains(value.as_str()) {
            return config_datafusion_err!("{reason}");
        }
        config_datafusion_err!("{key} cannot be '{value}': {reason}")
    }
}

/// Shows the memory limit and the limit of the temporary directory exactly, in the unit they were given in. DataFusion counts
/// whole MiB, and shows 64MB as 61M.
#[derive(Debug, Default)]
pub struct ExactLimits {
    pub session: Owner,
}

impl ExactLimits {
    /// The table of settings with replaced values of the limits.
    fn replaced(&self, scan: &TableScan) -> Result<LogicalPlan> {
        let column = |name: &str| Expr::Column(Column::new(Some(scan.table_name.clone()), name));
        let mut value = case(column("name"));
        let Some(state) = self.session.state() else { return Ok(LogicalPlan::TableScan(scan.clone())) };
        let names = ["datafusion.runtime.memory_limit", "datafusion.runtime.max_temp_directory_size"];
        for (name, limit) in names.into_iter().zip(in_force(state.runtime_env())) {
            if let Some(limit) = limit {
                value = value.when(lit(name), lit(Size(limit).exact()));
            }
        }
        let value = value.otherwise(column("value"))?;
        let columns = scan.projected_schema.fields().iter().map(|field| match field.name().as_str() {
            "value" => value.clone().alias_qualified(Some(scan.table_name.clone()), "value"),
            name => column(name),
        });
        LogicalPlanBuilder::from(LogicalPlan::TableScan(scan.clone())).project(columns.collect::<Vec<_>>())?.build()
    }
}

impl AnalyzerRule for ExactLimits {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let replaced = plan.transform_up_with_subqueries(|node| match &node {
            LogicalPlan::TableScan(scan)
                if scan.table_name.schema() == Some("information_schema")
                    && scan.table_name.table() == "df_settings" =>
            {
                self.replaced(scan).map(Transformed::yes)
            }
            _ => Ok(Transformed::no(node)),
        });
        Ok(replaced?.data)
    }

    fn name(&self) -> &str {
        "exact_limits"
    }
}
