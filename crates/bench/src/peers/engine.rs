//! The engines that are compared, and how each is started.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use datafusion::common::{Result, exec_datafusion_err, exec_err};

use super::session::Session;
use super::workload::Workload;
use crate::datagen::TablePair;
use crate::process::{no_python, skipped};

/// Runs an engine of Python's as the command line of Overspill runs Overspill.
const SCRIPT: &str = include_str!("engine.py");

/// The peer whose memory Overspill's is compared with, as its joins are those that Overspill replaces.
pub(super) const HOST: &str = "DataFusion";

/// An engine, ready to be measured.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    pub(super) name: &'static str,
    pub(super) version: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Overspill { program: PathBuf, settings: Vec<String> },
    Python { python: PathBuf, module: &'static str },
}

/// An engine of Python's, by the name of its module.
const PEERS: [(&str, &str); 3] = [("DuckDB", "duckdb"), ("Polars", "polars"), (HOST, "datafusion")];

/// An engine that is left out, and in a sentence why.
#[derive(Debug, Clone)]
pub(super) struct Missing {
    pub(super) name: &'static str,
    pub(super) reason: String,
}

/// What every process is given.
#[derive(Debug, Clone)]
pub(super) struct Terms<'a> {
    pub(super) threads: usize,
    /// How long a process may live.
    pub(super) patience: Duration,
    /// Where there is a place for temporary files.
    pub(super) dir: &'a Path,
}

/// A run of a workload in a process of its own.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Of the second of two runs of the query.
    pub(super) seconds: f64,
    /// From after loading on, in bytes, where the system tells.
    pub(super) peak_memory: Option<u64>,
    /// Whether loading counts as well, because the system does not forget it.
    pub(super) peak_of_loading: bool,
    pub(super) answer: String,
    /// Of reading, adding and summing both tables without a join; of Overspill alone.
    pub(super) scan_seconds: Option<f64>,
}

impl Engine {
    /// Overspill, with settings of the form `key=value`.
    pub(super) fn overspill(program: PathBuf, settings: &[String]) -> Self {
        Self {
            name: "Overspill",
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kind: Kind::Overspill { program, settings: settings.to_vec() },
        }
    }

    /// The other engines, or why they are not there.
    pub(super) fn peers(python: Option<&Path>, terms: &Terms) -> Vec<Result<Self, Missing>> {
        let find = |(name, module)| {
            let missing = |reason| Missing { name, reason };
            let python = python.ok_or_else(|| missing(no_python(name, "--python")))?.to_owned();
            let mut engine = Self { name, version: String::new(), kind: Kind::Python { python, module } };
            let version = engine.start(terms).and_then(|(session, version)| session.end().map(|()| version));
            engine.version = version.map_err(|error| missing(skipped(name, &error)))?;
            Ok(engine)
        };
        PEERS.into_iter().map(find).collect()
    }

    pub(super) fn is_overspill(&self) -> bool {
        matches!(self.kind, Kind::Overspill { .. })
    }

    /// The name with the version.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// Starts a process of it, and learns its version.
    fn start(&self, terms: &Terms) -> Result<(Session, String)> {
        let temp = tempfile::Builder::new()
            .prefix("temp-")
            .tempdir_in(terms.dir)
            .map_err(|error| exec_datafusion_err!("No directory can be made in '{}': {error}", terms.dir.display()))?;
        match &self.kind {
            Kind::Overspill { program, settings } => {
                let mut command = Command::new(program);
                command.args(["--format", "csv", "--timing", "--quiet", "--threads"]).arg(terms.threads.to_string());
                for setting in settings {
                    command.args(["--set", setting]);
                }
                Ok((Session::start(self.name, &mut command, temp, terms.patience)?, self.version.clone()))
            }
            Kind::Python { python, module } => {
                let mut command = Command::new(python);
                command.args(["-c", SCRIPT, module]).arg(terms.threads.to_string());
                let mut session = Session::start(self.name, &mut command, temp, terms.patience)?;
                let version = session.version()?;
                Ok((session, version))
            }
        }
    }

    /// The statement that makes a table in memory of a file.
    fn load(&self, table: &str, file: &Path) -> String {
        let file = file.display().to_string();
        match self.kind {
            Kind::Overspill { .. } => format!("CREATE TABLE {table} AS SELECT * FROM '{}'", file.replace('\'', "''")),
            Kind::Python { .. } => format!("LOAD {table} {file}"),
        }
    }

    /// Runs a workload, whose tables lie in a folder, in a new process.
    pub(super) fn run(&self, workload: &Workload, folder: &Path, terms: &Terms) -> Result<Run> {
        let (mut session, _) = self.start(terms)?;
        for table in TablePair::NAMES {
            session.execute(&self.load(table, &folder.join(format!("{table}.parquet"))))?;
        }
        let forgotten = session.forget_peak_memory();
        let query = workload.query();
        // The first run pays for memory that is fresh from the system, the second shows the engine.
        let (seconds, peak_memory, answer) = if workload.materializes {
            let create = format!("CREATE TABLE t AS {query}");
            session.execute(&create)?;
            session.execute("DROP TABLE t")?;
            let seconds = session.execute(&create)?;
            let peak_memory = session.peak_memory();
            (seconds, peak_memory, session.query(&workload.digest("t"))?.row)
        } else {
            let first = session.query(&query)?;
            let second = session.query(&query)?;
            if first.row != second.row {
                return exec_err!(
                    "{} answered {} and then {} to the same query: {query}",
                    self.name,
                    first.row,
                    second.row
                );
            }
            (second.seconds, session.peak_memory(), second.row)
        };
        let scan_seconds = if self.is_overspill() { Some(scan(&mut session, workload)?) } else { None };
        session.end()?;
        Ok(Run { seconds, peak_memory, peak_of_loading: !forgotten, answer, scan_seconds })
    }
}

/// The seconds of reading both tables without a join, the second time that it is done.
fn scan(session: &mut Session, workload: &Workload) -> Result<f64> {
    let mut seconds = 0.0;
    for table in TablePair::NAMES {
        let query = workload.scan(table);
        session.query(&query)?;
        seconds += session.query(&query)?.seconds;
    }
    Ok(seconds)
}
