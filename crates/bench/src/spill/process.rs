//! The measured processes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use serde_json::{Value, json};

use crate::process::{Finished, finish, no_python, skipped, time_line};

/// Runs a query in DuckDB, and prints the version, the seconds and the row as JSON.
const DUCKDB_SCRIPT: &str = r"
import json, sys, time
import duckdb
if len(sys.argv) < 2:
    print(duckdb.__version__)
    sys.exit()
task = json.loads(sys.argv[1])
connection = duckdb.connect(config=task['config'])
start = time.perf_counter()
row = connection.execute(task['sql']).fetchone()
seconds = time.perf_counter() - start
print(json.dumps({'seconds': seconds, 'row': [str(value) for value in row]}))
";

/// The measurements of a query's run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The time of the statement, without the start of the process.
    pub(super) seconds: f64,
    /// User CPU seconds of the whole process.
    pub(super) user_seconds: f64,
    /// Peak resident memory in bytes.
    pub(super) peak_memory: u64,
    /// The row that the query returned, comma separated.
    pub(super) answer: String,
}

/// The command line of Overspill.
#[derive(Debug, Clone)]
pub(super) struct Overspill {
    pub(super) program: PathBuf,
    pub(super) threads: usize,
    /// Empty between runs.
    pub(super) temp: PathBuf,
}

impl Overspill {
    /// Runs a query with settings of the form `key=value`. Without a limit, the program's default memory limit applies.
    pub(super) fn run(&self, sql: &str, memory_limit: Option<&str>, settings: &[&str]) -> Result<Run> {
        let finished = self.execute(Command::new(&self.program), sql, memory_limit, settings)?;
        Ok(Run {
            seconds: seconds(&finished.errors)?,
            user_seconds: finished.user_seconds,
            peak_memory: finished.peak_memory,
            answer: last_line(&finished.output).to_owned(),
        })
    }

    /// Runs a query by a command that ends in this program's name, and checks that it leaves no files behind.
    pub(super) fn execute(
        &self,
        mut command: Command,
        sql: &str,
        memory_limit: Option<&str>,
        settings: &[&str],
    ) -> Result<Finished> {
        command.args(["-c", sql, "--format", "csv", "--timing", "--quiet"]);
        command.arg("--threads").arg(self.threads.to_string());
        command.arg("--temp-dir").arg(&self.temp);
        if let Some(limit) = memory_limit {
            command.args(["--memory-limit", limit]);
        }
        for setting in settings {
            command.args(["--set", setting]);
        }
        let finished = finish(&mut command)?;
        let left: Vec<String> = std::fs::read_dir(&self.temp)?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        if !left.is_empty() {
            return exec_err!("A run left files in '{}': {}", self.temp.display(), left.join(", "));
        }
        Ok(finished)
    }

    /// The bytes that a query spills under a limit, from its operators' metrics.
    pub(super) fn spilled_bytes(&self, sql: &str, memory_limit: &str) -> Result<u64> {
        let sql = format!("EXPLAIN ANALYZE {sql}");
        let plan = self.execute(Command::new(&self.program), &sql, Some(memory_limit), &[])?.output;
        if !plan.contains("HybridJoinExec") {
            return exec_err!("The query did not run on Overspill's join. Its plan is:\n{plan}");
        }
        Ok(spilled_in_plan(&plan))
    }
}

/// The sum of the `spilled_bytes` metrics in an annotated plan.
pub(super) fn spilled_in_plan(plan: &str) -> u64 {
    plan.split("spilled_bytes=").skip(1).map(leading_size).sum()
}

/// A size such as `1.5 MB`, in units of 1024, at the start of a text.
fn leading_size(text: &str) -> u64 {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    let unit: String = rest.trim_start_matches(' ').chars().take_while(char::is_ascii_alphabetic).collect();
    let factor = match unit.as_str() {
        "KB" | "K" => 1u64 << 10,
        "MB" | "M" => 1 << 20,
        "GB" | "G" => 1 << 30,
        "TB" | "T" => 1 << 40,
        _ => 1,
    };
    (number.parse::<f64>().unwrap_or(0.0) * factor as f64) as u64
}

/// The time in the last line `time N SECONDS`.
fn seconds(errors: &str) -> Result<f64> {
    let last = errors.lines().rev().find_map(time_line);
    last.map(|(_, seconds)| seconds)
        .ok_or_else(|| exec_datafusion_err!("A run did not print its time. It printed: {errors}"))
}

fn last_line(output: &str) -> &str {
    output.trim_end().lines().next_back().unwrap_or_default()
}

/// DuckDB in the user's Python.
#[derive(Debug, Clone)]
pub(super) struct DuckDb {
    python: PathBuf,
    threads: usize,
    temp: PathBuf,
    pub(super) version: String,
}

impl DuckDb {
    /// Finds DuckDB, or returns a sentence why it is missing.
    pub(super) fn find(python: Option<&Path>, threads: usize, temp: &Path) -> Result<Self, String> {
        let Some(python) = python else {
            return Err(no_python("DuckDB", "--duckdb-python"));
        };
        match finish(&mut script(python)) {
            Ok(finished) => Ok(Self {
                python: python.to_owned(),
                threads,
                temp: temp.to_owned(),
                version: finished.output.trim().to_owned(),
            }),
            Err(error) => Err(skipped("DuckDB", &error)),
        }
    }

    /// Runs a query under a limit.
    pub(super) fn run(&self, sql: &str, memory_limit: &str) -> Result<Run> {
        let temp = tempfile::Builder::new().prefix("duckdb-").tempdir_in(&self.temp)?;
        let task = json!({
            "sql": sql,
            "config": {
                "threads": self.threads,
                "memory_limit": memory_limit,
                "temp_directory": temp.path().to_string_lossy(),
            },
        });
        let finished = finish(script(&self.python).arg(task.to_string()))?;
        let printed: Value = serde_json::from_str(last_line(&finished.output))
            .map_err(|error| exec_datafusion_err!("DuckDB printed {:?}: {error}", finished.output))?;
        let row: Vec<&str> = printed["row"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        Ok(Run {
            seconds: printed["seconds"].as_f64().unwrap_or(f64::NAN),
            user_seconds: finished.user_seconds,
            peak_memory: finished.peak_memory,
            answer: row.join(","),
        })
    }
}

fn script(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args([OsStr::new("-c"), OsStr::new(DUCKDB_SCRIPT)]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spilled_bytes_are_summed_over_the_plan() {
        let plan = "HybridJoinExec: metrics=[spill_count=3, spilled_bytes=1.5 MB, spilled_rows=7]\n\
                    SortExec, metrics=[spilled_bytes=512.0 B, x=1]\nAggregate [spilled_bytes=0.0 B]";
        assert_eq!(spilled_in_plan(plan), 1_572_864 + 512);
        assert_eq!(spilled_in_plan("spilled_bytes=3"), 3);
        assert_eq!(spilled_in_plan("nothing"), 0);
    }

    #[test]
    fn the_time_of_the_last_statement_counts() {
        assert_eq!(seconds("a warning\ntime 1 0.5\ntime 2 1.25\n").unwrap(), 1.25);
        assert!(seconds("time flies").unwrap_err().to_string().contains("did not print its time"));
    }

    #[test]
    fn a_missing_duckdb_is_a_sentence() {
        let reason = |python: Option<&str>| DuckDb::find(python.map(Path::new), 1, Path::new("/tmp")).unwrap_err();
        assert!(reason(None).contains("--duckdb-python"));
        assert!(reason(Some("/nowhere/python")).contains("could not be run"));
    }
}
