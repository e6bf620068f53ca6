//! The compared engines, and how to start each.

mod args;
mod session;
mod target;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use datafusion::common::{Result, exec_datafusion_err};
use serde_json::{Value, json};

pub use self::args::{CompareArgs, EngineArgs};
pub(crate) use self::session::Session;
pub(crate) use self::target::Target;
use crate::process::{no_python, skipped};
use crate::report::sql_text;

/// Help text below that of the experiments that compare engines.
pub(crate) const ENVIRONMENT: &str = concat!(
    "The other engines come from a Python environment, which is named with --python environment/bin/python. To make \
     it:\n\n  python3 -m venv environment\n  environment/bin/pip install -r tests/peers-requirements.txt\n\nThat file \
     of Overspill's repository says:\n\n",
    include_str!("../../../../tests/peers-requirements.txt")
);

/// Runs a Python engine with the interface of Overspill's command line.
const SCRIPT: &str = include_str!("engine.py");

pub(crate) const OVERSPILL: &str = "Overspill";
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The engine whose memory is compared with Overspill's, as Overspill replaces its joins.
pub(crate) const HOST: &str = "DataFusion";

/// An engine that is ready to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Overspill { program: PathBuf, settings: Vec<String> },
    Python { python: PathBuf, module: &'static str },
}

/// The Python engines, with the names of their modules.
const PEERS: [(&str, &str); 3] = [("DuckDB", "duckdb"), ("Polars", "polars"), (HOST, "datafusion")];

/// An engine that is left out, and the reason in a sentence.
#[derive(Debug, Clone)]
pub(crate) struct Missing {
    pub(crate) name: &'static str,
    pub(crate) reason: String,
}

impl Missing {
    pub(crate) fn json(&self) -> Value {
        json!({ "name": self.name, "reason": self.reason })
    }
}

/// The limits and directories of every process.
#[derive(Debug, Clone)]
pub(crate) struct Terms<'a> {
    pub(crate) threads: usize,
    /// The maximum lifetime of a process.
    pub(crate) patience: Duration,
    /// The directory for temporary files.
    pub(crate) dir: &'a Path,
}

impl Engine {
    /// An Overspill program with this name and version, and settings of the form `key=value`.
    pub(crate) fn overspill(name: &'static str, version: &str, program: PathBuf, settings: &[String]) -> Self {
        Self { name, version: version.to_owned(), kind: Kind::Overspill { program, settings: settings.to_vec() } }
    }

    /// The other engines, or why they are missing.
    pub(crate) fn peers(python: Option<&Path>, terms: &Terms) -> Vec<Result<Self, Missing>> {
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

    pub(crate) fn is_overspill(&self) -> bool {
        matches!(self.kind, Kind::Overspill { .. })
    }

    /// The name with the version.
    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// Starts a process of the engine, and returns its version.
    pub(crate) fn start(&self, terms: &Terms) -> Result<(Session, String)> {
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

    /// The statement that loads a file into a table in memory.
    pub(crate) fn load(&self, table: &str, file: &Path) -> String {
        match self.kind {
            Kind::Overspill { .. } => format!("CREATE TABLE {table} AS SELECT * FROM {}", sql_text(file)),
            Kind::Python { .. } => format!("LOAD {table} {}", file.display()),
        }
    }

    /// The statement that lets queries read a table from a file.
    pub(crate) fn scan(&self, table: &str, file: &Path) -> String {
        match self.kind {
            Kind::Overspill { .. } => {
                format!("CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION {}", sql_text(file))
            }
            Kind::Python { .. } => format!("SCAN {table} {}", file.display()),
        }
    }
}
