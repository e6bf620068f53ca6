//! The tables of a benchmark, a Parquet file each.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use clap::Args;
use datafusion::common::{Result, exec_err};

use super::table_file::{Compression, Format, TableFile};
use super::{create_directory, progress_bar, thread_count};

/// Rows of a row group: enough for long column chunks, and few enough for several threads to share a table of scale factor 1.
const ROW_GROUP_ROWS: u64 = 1 << 19;

/// The largest scale factor. Beyond it the numbers of parts and rows exceed the limits of the generators.
const MAX_SCALE: f64 = 100_000.0;

/// The arguments of `overspill datagen tpch`, `overspill datagen tpcds`, `overspill datagen ssb` and `overspill datagen correlated`.
#[derive(Debug, Clone, Args)]
pub struct TablesArgs {
    /// The scale factor: 1 is about 1 GB of raw data, fractions are possible
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub scale: f64,

    /// The directory of the files, which have the names of the tables: lineitem.parquet, store_sales.parquet …
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// The compression of Parquet pages
    #[arg(long, value_enum, default_value_t = Compression::Snappy)]
    pub compression: Compression,

    /// Generate files again that exist
    #[arg(long)]
    pub force: bool,

    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
}

pub(super) type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

/// A table of a benchmark, whose rows a generator makes in parts.
pub(super) trait Table: Copy + Sync {
    /// The name of the benchmark on the command line.
    const BENCHMARK: &str;

    fn name(self) -> String;

    fn schema(self) -> SchemaRef;

    /// The number of rows, which may be approximate.
    fn rows(self, scale: f64) -> u64;

    /// Into how many parts the rows are cut.
    fn parts(self, scale: f64) -> usize {
        usize::try_from(self.rows(scale).div_ceil(ROW_GROUP_ROWS)).unwrap_or(usize::MAX).max(1)
    }

    /// The rows of part `part` of `parts`, starting from 1. Parts follow each other as the rows of the table do.
    fn batches(self, scale: f64, part: usize, parts: usize) -> Batches;
}

/// Generates the files of `tables`, in this order, and reports each on `out`.
pub(super) fn generate<T: Table>(tables: &[T], args: &TablesArgs, out: &mut dyn Write) -> Result<()> {
    let scale = args.scale;
    check_scale(scale)?;
    create_directory(&args.dir)?;
    let threads = thread_count(args.threads);
    let bar = progress_bar(tables.iter().map(|table| table.rows(scale)).sum());
    for table in tables {
        let name = table.name();
        bar.set_message(name.clone());
        let parts = table.parts(scale);
        let file = TableFile {
            path: args.dir.join(format!("{name}.parquet")),
            schema: table.schema(),
            format: Format::Parquet,
            compression: args.compression,
            dictionaries: true,
            parts,
            arguments: format!("{} {name} --scale {scale}", T::BENCHMARK),
        };
        file.produce(args.force, threads, &bar, out, |part| table.batches(scale, part + 1, parts))?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Refuses a scale factor that the generators cannot make.
pub(super) fn check_scale(scale: f64) -> Result<()> {
    if !(scale > 0.0 && scale <= MAX_SCALE) {
        return exec_err!("The scale factor must be above 0 and at most {MAX_SCALE}, not {scale}.");
    }
    Ok(())
}
