//! Settings: errors that name the setting, and the exact limits.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, config_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Statement, TableScan, case, lit};
use datafusion::optimizer::AnalyzerRule;
use overspill::size::Size;

use crate::failure::{nearest, plain};

/// A setting and its new value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub value: String,
}

impl Change {
    /// The change made by a statement, if it is SET.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        match plan {
            LogicalPlan::Statement(Statement::SetVariable(set)) => {
                Some(Self { key: set.variable.clone(), value: set.value.clone() })
            }
            _ => None,
        }
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
                meant(key, &known)
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

/// The settings with the same last part as an unknown one, or else the nearest.
pub fn meant(key: &str, known: &[String]) -> Option<String> {
    let last = key.rsplit('.').next().unwrap_or(key);
    let mut alike: Vec<_> = known.iter().filter(|known| known.rsplit('.').next() == Some(last)).cloned().collect();
    alike.sort();
    if !alike.is_empty() {
        return Some(alike.join(" or "));
    }
    let name = nearest(last, known.iter().filter_map(|known| known.rsplit('.').next()))?;
    let mut alike: Vec<_> = known.iter().filter(|known| known.rsplit('.').next() == Some(name)).cloned().collect();
    alike.sort();
    Some(alike.join(" or "))
}

/// Shows the memory limit and the limit of the temporary directory exactly, in the unit they were given in. DataFusion counts
/// whole MiB, and shows 64MB as 61M.
#[derive(Debug)]
pub struct ExactLimits {
    pub runtime: Arc<RuntimeEnv>,
}

impl ExactLimits {
    fn limits(&self) -> [(&'static str, Option<Size>); 2] {
        let memory = match self.runtime.memory_pool.memory_limit() {
            MemoryLimit::Finite(bytes) => Some(Size(bytes)),
            MemoryLimit::Infinite | MemoryLimit::Unknown => None,
        };
        let disk = usize::try_from(self.runtime.disk_manager.max_temp_directory_size()).ok().map(Size);
        [("datafusion.runtime.memory_limit", memory), ("datafusion.runtime.max_temp_directory_size", disk)]
    }

    /// The table of settings with replaced values of the limits.
    fn replaced(&self, scan: &TableScan) -> Result<LogicalPlan> {
        let column = |name: &str| Expr::Column(Column::new(Some(scan.table_name.clone()), name));
        let mut value = case(column("name"));
        for (name, limit) in self.limits() {
            if let Some(limit) = limit {
                value = value.when(lit(name), lit(limit.exact()));
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
