//! Runs an experiment from the command line.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::device::{DeviceArgs, Machine};
use crate::figure::Figure;
use crate::locality::{self, Moved};
use crate::{Error, Result, granularity, hash_table, partition, prefix_sum, transfer, translation};

/// An experiment that gives a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureExperiment {
    /// Each transfer method, over a relation that a kernel sums (paper 2, fig. 3 and 12).
    Transfer,
    /// Random access of 4 to 512 bytes, aligned and not (paper 1, fig. 6).
    Granularity,
    /// Latency by the range that is touched (paper 1, fig. 7).
    Translation,
    /// The four partitioners by fanout (paper 1, fig. 4 and 18).
    Partition,
    /// Histograms and their prefix sum, CPU and GPU (paper 1, fig. 20).
    PrefixSum,
    /// A join by the memory of its relations (paper 2, fig. 13).
    RelationLocality,
    /// A join by the memory of its hash table (paper 2, fig. 14).
    TableLocality,
    /// Build and probe rates of hash tables in GPU memory, by their size (paper 2, section 6).
    HashTable,
}

/// The arguments of an experiment.
#[derive(Debug, Clone, Args)]
pub struct ExperimentArgs {
    /// Where it runs.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Shrinks or grows the data [default: 1, on the emulated device a small part]
    #[arg(long, value_name = "F")]
    pub scale: Option<f64>,

    /// Write the figure's numbers to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figure, with the paper's figures in grey, to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// The largest scale. A thousand times the experiments' data exceeds any memory.
const MOST_SCALE: f64 = 1000.0;

impl FigureExperiment {
    /// All experiments, the most informative first.
    pub const ALL: [Self; 8] = [
        Self::Transfer,
        Self::Partition,
        Self::Granularity,
        Self::PrefixSum,
        Self::Translation,
        Self::RelationLocality,
        Self::TableLocality,
        Self::HashTable,
    ];

    /// The name, which `overspill bench figure` takes as well.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transfer => "transfer",
            Self::Granularity => "granularity",
            Self::Translation => "translation",
            Self::Partition => "partition",
            Self::PrefixSum => "prefix-sum",
            Self::RelationLocality => "paper2-13",
            Self::TableLocality => "paper2-14",
            Self::HashTable => "hash-table",
        }
    }

    /// Runs the experiment. `asked` scales the data.
    ///
    /// # Errors
    /// If there is no memory for it, the device fails, or an answer is wrong.
    pub fn run(self, machine: &Machine, asked: Option<f64>) -> Result<Figure> {
        let scale = machine.scale(asked);
        if !(scale > 0.0 && scale <= MOST_SCALE) {
            return Err(Error::Scale { scale, most: MOST_SCALE });
        }
        match self {
            // The CPU runs at the requested scale, even if the GPU is emulated.
            Self::Transfer => transfer::run(machine, scale, asked.unwrap_or(1.0)),
            Self::Granularity => granularity::run(machine, scale),
            Self::Translation => translation::run(machine, scale),
            Self::Partition => partition::run(machine, scale),
            Self::PrefixSum => prefix_sum::run(machine, scale),
            Self::RelationLocality => locality::run(machine, scale, Moved::Relations),
            Self::TableLocality => locality::run(machine, scale, Moved::Table),
            Self::HashTable => hash_table::run(machine, scale),
        }
    }

    /// Runs the experiment with the given arguments, and writes the requested files.
    ///
    /// # Errors
    /// As [`FigureExperiment::run`], or if a file cannot be written.
    pub fn run_with(self, arguments: &ExperimentArgs) -> Result<Figure> {
        let figure = self.run(&arguments.device.open()?, arguments.scale)?;
        figure.write(arguments.json.as_deref(), arguments.svg.as_deref())?;
        Ok(figure)
    }
}

impl Figure {
    /// Writes the figure's numbers and plot to the given files.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, json: Option<&Path>, svg: Option<&Path>) -> Result<()> {
        if let Some(path) = json {
            let json = serde_json::to_string_pretty(self)
                .map_err(|error| Error::Write { path: path.to_owned(), reason: error.to_string() })?;
            write(path, &(json + "\n"))?;
        }
        if let Some(path) = svg {
            write(path, &self.to_svg()?)?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::Write { path: path.to_owned(), reason: error.to_string() })
}
