//! Statements about files: derives formats from file names, and names the files in errors.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::sqlparser::ast::Value;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement;
use overspill::files::files_in_doubt;

use super::format::{KNOWN_NAMES, NamedFormat};
use crate::error::plain;

/// The formats allowed in `STORED AS`, and DataFusion's names for them.
const FORMATS: [(&str, &str); 6] = [
    ("parquet", "parquet"),
    ("csv", "csv"),
    ("json", "json"),
    ("ndjson", "json"),
    ("jsonl", "json"),
    ("arrow", "arrow"),
];

/// Adds the format, delimiter and compression given by file names to a statement that does not specify them.
///
/// # Errors
///
/// Refuses to write a file if neither its name nor the statement gives a known format.
pub fn read_names(statement: &mut Statement) -> Result<()> {
    match statement {
        Statement::CopyTo(copy) => {
            let named = NamedFormat::of(&copy.target);
            let format = match (&copy.stored_as, &named) {
                (Some(format), _) => known(format)?,
                (None, Some(named)) => named.known_as,
                // A folder, for which DataFusion requires a format.
                (None, None) if Path::new(&copy.target).extension().is_none() => return Ok(()),
                (None, None) => {
                    return plan_err!(
                        "the name '{}' has no ending of a known format ({KNOWN_NAMES}): name the format with STORED AS",
                        copy.target
                    );
                }
            };
            copy.stored_as = Some(format.to_string());
            add_options(&mut copy.options, named, format);
        }
        Statement::CreateExternalTable(table) => {
            let named = table.locations.first().and_then(|location| NamedFormat::of(location));
            add_options(&mut table.options, named, &table.file_type.to_ascii_lowercase());
        }
        Statement::Explain(explain) => read_names(&mut explain.statement)?,
        Statement::Statement(_) | Statement::Reset(_) => {}
    }
    Ok(())
}

/// Refuses to write columns with equal names to files.
pub fn refuse_equal_names(plan: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Copy(copy) = plan else { return Ok(()) };
    distinct_names(copy.input.schema().fields().iter().map(|field| field.name())).map_err(DataFusionError::Plan)
}

/// Refuses columns with equal names, which row-based files cannot distinguish.
///
/// # Errors
/// A sentence that names the column.
pub fn distinct_names<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!(
                "two columns of the result are named '{name}', which a file cannot distinguish: rename one with AS"
            ));
        }
    }
    Ok(())
}

/// Adds the files that a plan reads to an error about the content of a file that it does not name.
pub fn with_files_named(error: DataFusionError, plan: &Arc<dyn ExecutionPlan>) -> DataFusionError {
    match files_in_doubt(&error, plan) {
        Some(files) => exec_datafusion_err!("{}, {files}", plain(&error)),
        None => error,
    }
}

fn known(format: &str) -> Result<&'static str> {
    match FORMATS.iter().find(|(name, _)| format.eq_ignore_ascii_case(name)) {
        Some((_, known)) => Ok(known),
        None => plan_err!("STORED AS {format}: files are written as PARQUET, CSV, JSON or ARROW"),
    }
}

fn add_options(options: &mut Vec<(String, Value)>, named: Option<NamedFormat>, format: &str) {
    let Some(named) = named.filter(|named| named.known_as == format) else { return };
    let delimiter = named.delimiter.map(String::from).unwrap_or_default();
    for (name, value) in [("compression", named.compression.to_string()), ("delimiter", delimiter)] {
        let is_name = |key: &String| key.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case(name));
        if !value.is_empty() && !options.iter().any(|(key, _)| is_name(key)) {
            options.push((format!("format.{name}"), Value::SingleQuotedString(value)));
        }
    }
}
