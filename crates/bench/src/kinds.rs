//! The arguments of experiments that compare kinds of one thing in one figure.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use datafusion::common::Result;
use overspill_experiments::Figure;
use overspill_machine::topology::Topology;

use crate::report::failed;

/// How each kind is run, and where the figure goes besides standard output.
#[derive(Debug, Clone, Args)]
pub struct KindsArgs {
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// How often each kind is run; the table shows medians
    #[arg(long, default_value = "5", value_name = "N")]
    pub runs: NonZeroUsize,

    /// Write the figure's numbers to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figure to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl KindsArgs {
    /// The number of threads on this machine.
    pub(crate) fn threads(&self, topology: &Topology) -> usize {
        self.threads.map_or(topology.cpu.threads.max(1), NonZeroUsize::get)
    }

    /// Writes the figure to the files that were asked for.
    pub(crate) fn write(&self, figure: &Figure) -> Result<()> {
        figure.write(self.json.as_deref(), self.svg.as_deref()).map_err(failed)
    }

    /// One run on two threads.
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        Self { threads: NonZeroUsize::new(2), runs: NonZeroUsize::MIN, json: None, svg: None }
    }
}
