//! Experiments on processors, memories and links. Each reproduces a figure of the papers and shows the paper's values beside
//! ours.
//!
//! They do not depend on SQL or DataFusion, so that `gpu-check` can run them on a machine that has only a GPU and its driver.

#![deny(missing_docs)]

mod bars;
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

pub use checks::{CheckEffort, KernelCheck, TableChecked};
pub use device::{DeviceArgs, Gpu, Machine, device_parser, named_parser};
pub use error::{Error, Result};
pub use experiment::{ExperimentArgs, FigureExperiment};
pub use figure::{Axis, Figure, Series, SeriesSource};
