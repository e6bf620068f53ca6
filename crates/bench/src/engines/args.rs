//! Arguments shared by the experiments that compare engines.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill_experiments::Figure;
use serde_json::Value;

use super::{Engine, Missing, Terms};
use crate::datagen::{create_directory, thread_count};
use crate::report::{failed, tell, write_file};

/// The arguments about the processes of engines.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// The number of threads of each engine [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// A Python interpreter that has the other engines; engines that it lacks are skipped
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,

    /// A setting of Overspill, as in overspill.strategy=radix; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,

    /// The directory of the generated tables, which later runs use again
    #[arg(long, default_value = "overspill-bench-data", value_name = "DIR")]
    pub dir: PathBuf,

    /// The time limit of an engine's process
    #[arg(long, default_value = "1800", value_name = "SECONDS")]
    pub timeout: NonZeroUsize,

    /// The overspill program to measure [default: this one]
    #[arg(long, value_name = "PATH", hide = true)]
    pub program: Option<PathBuf>,
}

impl EngineArgs {
    /// The terms of every process. Creates the directory that they name.
    pub(crate) fn terms(&self) -> Result<Terms<'_>> {
        create_directory(&self.dir)?;
        Ok(Terms {
            threads: thread_count(self.threads),
            patience: Duration::from_secs(self.timeout.get() as u64),
            dir: &self.dir,
        })
    }

    /// The available other engines, and the missing ones.
    pub(crate) fn peers(&self, terms: &Terms) -> (Vec<Engine>, Vec<Missing>) {
        tell("looking for the other engines");
        let found = Engine::peers(self.python.as_deref(), terms).into_iter();
        let (peers, missing): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
        (peers.into_iter().flatten().collect(), missing.into_iter().filter_map(Result::err).collect())
    }
}

/// The arguments that experiments with other engines have in common.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// The number of runs of each query and engine; the tables show medians
    #[arg(long, default_value = "5", value_name = "N")]
    pub runs: NonZeroUsize,

    /// Their processes.
    #[command(flatten)]
    pub engines: EngineArgs,

    /// Write all numbers to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figures to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Measure nothing, and draw the figures of this file that --json has written
    #[arg(long, value_name = "FILE", requires = "svg", conflicts_with_all = ["json", "check"])]
    pub from: Option<PathBuf>,

    /// Fail when a target is missed
    #[arg(long)]
    pub check: bool,
}

impl CompareArgs {
    /// Writes the requested files. `figure` makes the picture's figure of the JSON.
    pub(crate) fn write(&self, json: &Value, figure: impl FnOnce(&Value) -> Figure) -> Result<()> {
        if let Some(path) = &self.json {
            write_file(path, &format!("{json:#}\n"))?;
        }
        if let Some(path) = &self.svg {
            let svg = figure(json).to_svg().map_err(failed)?;
            write_file(path, &svg)?;
        }
        Ok(())
    }

    /// The JSON of an experiment in the file of `--from`, if it was given.
    pub(crate) fn measured(&self, experiment: &str) -> Result<Option<Value>> {
        let Some(path) = &self.from else { return Ok(None) };
        let text = std::fs::read_to_string(path)
            .map_err(|error| exec_datafusion_err!("The file '{}' cannot be read: {error}", path.display()))?;
        match serde_json::from_str(&text) {
            Ok(json @ Value::Object(_)) if json["experiment"] == experiment => Ok(Some(json)),
            _ => exec_err!("The file '{}' is not one that bench {experiment} --json has written.", path.display()),
        }
    }
}
