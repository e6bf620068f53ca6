//! Experiments on processors, memories and links: one a figure of the papers, with the paper's own figures beside ours.
//!
//! They know nothing of SQL or DataFusion, so that `gpu-check` can carry them to a machine that has a GPU and nothing else.

#![deny(missing_docs)]

mod checks;
mod device;
mod error;
mod experiment;
mod figure;
mod granularity;
mod hash_table;
mod locality;
mod partition;
mod plot;
mod prefix_sum;
mod transfer;
mod translation;

pub use checks::{CheckEffort, CheckOutcome, check_kernels};
pub use device::{DeviceArgs, DeviceChoice, Gpu, Machine};
pub use error::{Error, Result};
pub use experiment::{ExperimentArgs, FigureExperiment};
pub use figure::{Axis, Figure, Series, SeriesSource};
pub use hash_table::hash_table;
