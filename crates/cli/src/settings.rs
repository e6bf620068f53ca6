//! Why a setting could not be made, in words that name it.

use datafusion::common::config::ConfigOptions;
use datafusion::common::config_datafusion_err;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{LogicalPlan, Statement};

use crate::failure::{nearest, plain};

/// A setting and the value that it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub value: String,
}

impl Change {
    /// What a statement sets, if it is SET.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        match plan {
            LogicalPlan::Statement(Statement::SetVariable(set)) => {
                Some(Self { key: set.variable.clone(), value: set.value.clone() })
            }
            _ => None,
        }
    }

    /// The error of making the change, with the name of the setting and what it would take.
    pub fn refused(&self, error: &DataFusionError, options: &ConfigOptions) -> DataFusionError {
        let Self { key, value } = self;
        let text = plain(error);
        let known = options.entries().into_iter().map(|entry| entry.key).collect::<Vec<_>>();
        // Those of the runtime belong to no namespace; its own error names them.
        if !known.iter().any(|known| known == key) && !key.starts_with("datafusion.runtime.") {
            return config_datafusion_err!(
                "there is no setting '{key}'{}",
                meant(key, &known).map_or(" (SHOW ALL lists them)".to_string(), |meant| format!(
                    " (did you mean {meant}?)"
                ))
            );
        }
        // DataFusion repeats what Rust says of numbers.
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

/// The settings that end like the one that is not known, or else the nearest.
pub fn meant(key: &str, known: &[String]) -> Option<String> {
    let last = key.rsplit('.').next().unwrap_or(key);
    let mut alike: Vec<_> = known.iter().filter(|known| known.rsplit('.').next() == Some(last)).cloned().collect();
    alike.sort();
    if !alike.is_empty() {
        return Some(alike.join(" or "));
    }
    nearest(key, known.iter().map(String::as_str)).map(str::to_string)
}
