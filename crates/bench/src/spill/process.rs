//! The processes that are measured.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use serde_json::{Value, json};
use wait4::Wait4;

/// How much of a failed process's error output is repeated, in bytes.
const ERROR_TAIL: usize = 2000;

/// How often the memory of a running process is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Runs a query in DuckDB; prints the version, the seconds and the row as JSON.
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

/// What a run of a query took.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Of the statement alone, without the start of the process.
    pub(super) seconds: f64,
    /// User CPU seconds of the whole process.
    pub(super) user_seconds: f64,
    /// Bytes.
    pub(super) peak_memory: u64,
    /// The row that the query returned, comma separated.
    pub(super) answer: String,
}

/// What a finished process left.
pub(super) struct Finished {
    pub(super) output: String,
    pub(super) errors: String,
    pub(super) user_seconds: f64,
    /// Bytes.
    pub(super) peak_memory: u64,
}

/// Runs a process to its end.
pub(super) fn finish(command: &mut Command) -> Result<Finished> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| exec_datafusion_err!("'{name}' could not be run: {error}");
    // Files and not pipes: nobody needs to read while the process runs.
    let (mut output, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
    let mut child = command.spawn().map_err(failed)?;
    let mut peak_memory = None;
    let ended = loop {
        peak_memory = high_water_mark(child.id()).or(peak_memory);
        match child.try_wait4().map_err(failed)? {
            Some(ended) => break ended,
            None => std::thread::sleep(POLL),
        }
    };
    let (output, errors) = (text(&mut output)?, text(&mut errors)?);
    if !ended.status.success() {
        let tail: String = errors.chars().rev().take(ERROR_TAIL).collect();
        let tail: String = tail.chars().rev().collect();
        return exec_err!("'{name}' failed ({}): {}", ended.status, tail.trim());
    }
    let peak_memory = peak_memory.unwrap_or(ended.rusage.maxrss);
    Ok(Finished { output, errors, user_seconds: ended.rusage.utime.as_secs_f64(), peak_memory })
}

/// The most memory, in bytes, that a running process has had resident.
///
/// What the system reports of an ended process is no substitute: on Linux it starts from the parent's own peak.
fn high_water_mark(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|size| size << 10)
}

fn text(file: &mut File) -> Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The command line of Overspill.
#[derive(Debug, Clone)]
pub(super) struct Overspill {
    pub(super) program: PathBuf,
    pub(super) threads: usize,
    /// Holds nothing between runs.
    pub(super) temp: PathBuf,
}

impl Overspill {
    /// Runs a query with settings of the form `key=value`; without a limit in as much memory as the program takes by
    /// itself.
    pub(super) fn run(&self, sql: &str, memory_limit: Option<&str>, settings: &[&str]) -> Result<Run> {
        let mut command = Command::new(&self.program);
        self.add_arguments(&mut command, sql, memory_limit, settings);
        let finished = self.finish(&mut command)?;
        Ok(Run {
            seconds: seconds(&finished.errors)?,
            user_seconds: finished.user_seconds,
            peak_memory: finished.peak_memory,
            answer: last_line(&finished.output).to_owned(),
        })
    }

    /// The arguments that run a query.
    pub(super) fn add_arguments(
        &self,
        command: &mut Command,
        sql: &str,
        memory_limit: Option<&str>,
        settings: &[&str],
    ) {
        command.args(["-c", sql, "--format", "csv", "--timing", "--quiet"]);
        command.arg("--threads").arg(self.threads.to_string());
        command.arg("--temp-dir").arg(&self.temp);
        if let Some(limit) = memory_limit {
            command.args(["--memory-limit", limit]);
        }
        for setting in settings {
            command.args(["--set", setting]);
        }
    }

    /// Runs a command that ends in this program, and checks that it leaves no file behind.
    pub(super) fn finish(&self, command: &mut Command) -> Result<Finished> {
        let finished = finish(command)?;
        let left: Vec<String> = std::fs::read_dir(&self.temp)?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        if !left.is_empty() {
            return exec_err!("A run left files in '{}': {}", self.temp.display(), left.join(", "));
        }
        Ok(finished)
    }

    /// The bytes that a query spills under a limit, as its operators count them.
    pub(super) fn spilled_bytes(&self, sql: &str, memory_limit: &str) -> Result<u64> {
        let mut command = Command::new(&self.program);
        self.add_arguments(&mut command, &format!("EXPLAIN ANALYZE {sql}"), Some(memory_limit), &[]);
        let plan = self.finish(&mut command)?.output;
        if !plan.contains("HybridJoinExec") {
            return exec_err!("The query did not run on Overspill's join. Its plan is:\n{plan}");
        }
        Ok(spilled_in_plan(&plan))
    }
}

/// The sum of the metrics `spilled_bytes` of an annotated plan.
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
    errors
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("time ")?.split_whitespace().nth(1)?.parse().ok())
        .ok_or_else(|| exec_datafusion_err!("A run did not print its time but: {errors}"))
}

fn last_line(output: &str) -> &str {
    output.trim_end().lines().next_back().unwrap_or_default()
}

/// DuckDB in a Python of the user's.
#[derive(Debug, Clone)]
pub(super) struct DuckDb {
    python: PathBuf,
    threads: usize,
    temp: PathBuf,
    pub(super) version: String,
}

impl DuckDb {
    /// DuckDB, or a sentence why it is not there.
    pub(super) fn find(python: Option<&Path>, threads: usize, temp: &Path) -> Result<Self, String> {
        let Some(python) = python else {
            return Err("DuckDB was skipped: name a Python that has it with --duckdb-python.".to_owned());
        };
        match finish(&mut script(python)) {
            Ok(finished) => Ok(Self {
                python: python.to_owned(),
                threads,
                temp: temp.to_owned(),
                version: finished.output.trim().to_owned(),
            }),
            Err(error) => Err(format!("DuckDB was skipped: {}", error.message().replace('\n', " "))),
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
    fn failures_repeat_what_the_process_said() {
        let message = finish(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"])).err().unwrap().to_string();
        assert!(message.contains("no luck") && message.contains("exit status: 3"), "{message}");
        let message = finish(&mut Command::new("/nowhere/at/all")).err().unwrap().to_string();
        assert!(message.contains("could not be run"), "{message}");
    }

    #[test]
    fn the_peak_memory_is_that_of_the_process() {
        let large = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 0.1; echo ok";
        let large = finish(Command::new("sh").args(["-c", large])).unwrap();
        assert_eq!(large.output, "ok\n");
        assert!(large.peak_memory > 30_000_000, "{}", large.peak_memory);
        // Memory of the parent does not count.
        let ballast = std::hint::black_box(vec![1u8; 50_000_000]);
        let small = finish(Command::new("sleep").arg("0.1")).unwrap();
        assert!(small.peak_memory < 20_000_000, "{}", small.peak_memory);
        drop(ballast);
    }

    #[test]
    fn a_missing_duckdb_is_a_sentence() {
        let reason = |python: Option<&str>| DuckDb::find(python.map(Path::new), 1, Path::new("/tmp")).unwrap_err();
        assert!(reason(None).contains("--duckdb-python"));
        assert!(reason(Some("/nowhere/python")).contains("could not be run"));
    }
}
