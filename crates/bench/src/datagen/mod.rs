//! Generators of the data for the examples and experiments.

mod columns;
mod correlated;
mod join;
mod keys;
mod ssb;
mod table_file;
mod tables;
mod tpcds;
mod tpch;

pub(crate) use correlated::{
    generate as generate_correlated, names as correlated_tables, queries as correlated_queries,
};
pub(crate) use join::TablePair;
pub use join::{JoinArgs, JoinOutput, Workload};
pub(crate) use keys::{Permutation, SPARSE_BITS};
pub(crate) use ssb::{generate as generate_ssb, names as ssb_tables};
pub use table_file::{Compression, Format};
pub use tables::TablesArgs;
pub(crate) use tpcds::{generate as generate_tpcds, names as tpcds_tables};
pub(crate) use tpch::{columns as tpch_columns, generate as generate_tpch, names as tpch_tables, table as tpch_table};

use std::num::NonZeroUsize;
use std::path::Path;

use clap::{Args, Subcommand};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use indicatif::{ProgressBar, ProgressStyle};

/// The arguments of `overspill datagen`.
#[derive(Debug, Clone, Args)]
pub struct DatagenArgs {
    /// What to generate.
    #[command(subcommand)]
    pub data: Data,
}

/// A data set.
#[derive(Debug, Clone, Subcommand)]
pub enum Data {
    /// The eight tables of TPC-H, a Parquet file each
    Tpch(TablesArgs),
    /// The 24 tables of TPC-DS, a Parquet file each
    Tpcds(TablesArgs),
    /// The five tables of the Star Schema Benchmark, a Parquet file each
    Ssb(TablesArgs),
    /// Twelve tables about films, whose columns depend on each other across joins, a Parquet file each
    Correlated(TablesArgs),
    /// Two tables to join, r and s, with the workloads of the papers
    Join(JoinArgs),
}

/// Generates a data set and prints a line for every file on standard output.
///
/// Files appear under their names only when they are complete. Files that are there already, made with the same
/// arguments, are kept.
///
/// # Errors
/// When an argument is out of range, a file cannot be written, or a file of the same name was made with other
/// arguments and `--force` is not given.
pub fn run(args: &DatagenArgs) -> Result<()> {
    match &args.data {
        Data::Tpch(args) => tpch::generate(args, &mut std::io::stdout()),
        Data::Tpcds(args) => tpcds::generate(args, &mut std::io::stdout()),
        Data::Ssb(args) => ssb::generate(args, &mut std::io::stdout()),
        Data::Correlated(args) => correlated::generate(args, &mut std::io::stdout()),
        Data::Join(args) => join::generate(args, &mut std::io::stdout()),
    }
}

/// The number of threads to use: `asked`, or the number of processors.
pub(crate) fn thread_count(asked: Option<NonZeroUsize>) -> usize {
    asked.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
}

/// The largest allowed scale of an experiment's tables.
pub(crate) const MOST_SCALE: f64 = 100.0;

/// Refuses a scale that is not positive or exceeds `most`.
pub(crate) fn check_scale(scale: f64, most: f64) -> Result<()> {
    if scale > 0.0 && scale <= most {
        return Ok(());
    }
    exec_err!("The scale must be above 0 and at most {most}, not {scale}.")
}

/// Rows of a table at a scale, at least one.
pub(crate) fn scaled(rows: u64, scale: f64) -> u64 {
    ((rows as f64 * scale).round() as u64).max(1)
}

/// Creates the directory of the files, with its parents.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path)
        .map_err(|error| exec_datafusion_err!("The directory '{}' cannot be created: {error}", path.display()))
}

/// A progress bar over `rows` rows on standard error, visible only on a terminal.
fn progress_bar(rows: u64) -> ProgressBar {
    let bar = ProgressBar::new(rows);
    if let Ok(style) = ProgressStyle::with_template("{msg:10} {wide_bar} {human_pos}/{human_len} rows, {eta} left") {
        bar.set_style(style);
    }
    bar
}
