//! What the names of files in `COPY … TO` and `CREATE EXTERNAL TABLE` say about their format.

use std::path::Path;

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::sqlparser::ast::Value;
use datafusion::sql::parser::Statement;

use super::format::{KNOWN_NAMES, NamedFormat};
use crate::output::distinct_names;

/// The formats that `STORED AS` may name, and what DataFusion calls them.
const FORMATS: [(&str, &str); 6] = [
    ("parquet", "parquet"),
    ("csv", "csv"),
    ("json", "json"),
    ("ndjson", "json"),
    ("jsonl", "json"),
    ("arrow", "arrow"),
];

/// Adds the format, delimiter and compression that the names of files say to a statement that does not say them.
///
/// # Errors
///
/// Refuses to write a file whose name or statement says no format that is known.
pub fn read_names(statement: &mut Statement) -> Result<()> {
    match statement {
        Statement::CopyTo(copy) => {
            let named = NamedFormat::of(&copy.target);
            let format = match (&copy.stored_as, &named) {
                (Some(format), _) => known(format)?,
                (None, Some(named)) => named.known_as,
                // A folder, whose format DataFusion asks for.
                (None, None) if Path::new(&copy.target).extension().is_none() => return Ok(()),
                (None, None) => {
                    return plan_err!(
                        "the name '{}' tells no format that files are written in ({KNOWN_NAMES}): give one with STORED AS",
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

/// Refuses to write columns of one name to files.
pub fn refuse_equal_names(plan: &LogicalPlan) -> Result<()> {
    match plan {
        LogicalPlan::Copy(copy) => {
            match distinct_names(copy.input.schema().fields().iter().map(|field| field.name())) {
                Ok(()) => Ok(()),
                Err(sentence) => plan_err!("{sentence}"),
            }
        }
        _ => Ok(()),
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
