//! Functions shared by the reports of the experiments.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::Path;

use clap::ValueEnum;
use datafusion::common::{Result, exec_datafusion_err, human_readable_size};
use datafusion::error::DataFusionError;
use overspill_machine::topology::Topology;
use serde_json::Value;

/// The median. With an even number of values, the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some((lower + upper) / 2.0)
}

/// The error of another layer, in its own words.
pub(crate) fn failed(error: impl Display) -> DataFusionError {
    exec_datafusion_err!("{error}")
}

/// Formats bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    human_readable_size(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The name of a value on the command line.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The elements of a list of an experiment's JSON.
pub(crate) fn list(json: &Value) -> impl Iterator<Item = &Value> {
    json.as_array().into_iter().flatten()
}

/// A text of an experiment's JSON.
pub(crate) fn text(json: &Value) -> &str {
    json.as_str().unwrap_or_default()
}

/// A path as a text in SQL.
pub(crate) fn sql_text(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "''"))
}

/// Describes the machine on one line.
pub(crate) fn machine(topology: &Topology) -> String {
    let model = topology.cpu.model.as_deref().unwrap_or("a processor of unknown model");
    format!("{model}, {} processors", topology.cpu.threads)
}

/// A note if this build of the program is slower than an optimized one.
pub(crate) fn slow_build() -> Option<&'static str> {
    cfg!(debug_assertions).then_some("This program was built with debug assertions, which cost time.")
}

/// Reports progress of a slow step, if standard error is a terminal.
pub(crate) fn tell(what: &str) {
    if std::io::stderr().is_terminal() {
        _ = writeln!(std::io::stderr(), "{what} …");
    }
}

/// Writes a file that the user requested.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| not_written(path, &error))
}

/// The error of a file that the user requested.
pub(crate) fn not_written(path: &Path, error: &std::io::Error) -> DataFusionError {
    exec_datafusion_err!("The file '{}' cannot be written: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
