//! The tables of TPC-H.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_err};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use super::table_file::{Compression, Format, TableFile};
use super::{create_directory, progress_bar, thread_count};
use crate::report::value_name;
use crate::threads::on_each;

/// Rows of a row group: enough for long column chunks, and few enough for several threads to share a table of scale factor 1.
const ROW_GROUP_ROWS: u64 = 1 << 19;

/// The average number of lines of an order.
const LINES_PER_ORDER: u64 = 4;

/// The largest scale factor. Beyond it the numbers of parts and rows exceed the generator's limits.
const MAX_SCALE: f64 = 100_000.0;

/// The arguments of `overspill datagen tpch`.
#[derive(Debug, Clone, Args)]
pub struct TpchArgs {
    /// The scale factor: 1 is about 1 GB of raw data, fractions are possible
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub scale: f64,

    /// The directory of the files lineitem.parquet, orders.parquet …
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

/// A table of TPC-H. The small tables come first, so that output starts soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum Table {
    Region,
    Nation,
    Supplier,
    Customer,
    Part,
    PartSupp,
    Orders,
    LineItem,
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

impl Table {
    fn schema(self) -> SchemaRef {
        match self {
            Self::Region => RegionArrow::schema_ref(),
            Self::Nation => NationArrow::schema_ref(),
            Self::Supplier => SupplierArrow::schema_ref(),
            Self::Customer => CustomerArrow::schema_ref(),
            Self::Part => PartArrow::schema_ref(),
            Self::PartSupp => PartSuppArrow::schema_ref(),
            Self::Orders => OrderArrow::schema_ref(),
            Self::LineItem => LineItemArrow::schema_ref(),
        }
    }

    /// The number of rows, which is approximate for lineitem.
    fn rows(self, scale: f64) -> u64 {
        let rows = match self {
            Self::Region => 5,
            Self::Nation => 25,
            Self::Supplier => SupplierGenerator::calculate_row_count(scale, 1, 1),
            Self::Customer => CustomerGenerator::calculate_row_count(scale, 1, 1),
            Self::Part => PartGenerator::calculate_row_count(scale, 1, 1),
            // Four suppliers per part; the generator counts parts.
            Self::PartSupp => 4 * PartGenerator::calculate_row_count(scale, 1, 1),
            Self::Orders | Self::LineItem => OrderGenerator::calculate_row_count(scale, 1, 1),
        };
        let rows = u64::try_from(rows).unwrap_or(0);
        if self == Self::LineItem { rows * LINES_PER_ORDER } else { rows }
    }

    fn parts(self, scale: f64) -> usize {
        usize::try_from(self.rows(scale).div_ceil(ROW_GROUP_ROWS)).unwrap_or(usize::MAX).max(1)
    }

    /// The rows of part `part` of `parts`, starting from 1.
    fn batches(self, scale: f64, part: i32, parts: i32) -> Batches {
        match self {
            Self::Region => Box::new(RegionArrow::new(RegionGenerator::new(scale, part, parts))),
            Self::Nation => Box::new(NationArrow::new(NationGenerator::new(scale, part, parts))),
            Self::Supplier => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, part, parts))),
            Self::Customer => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, part, parts))),
            Self::Part => Box::new(PartArrow::new(PartGenerator::new(scale, part, parts))),
            Self::PartSupp => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts))),
            Self::Orders => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, parts))),
            Self::LineItem => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, part, parts))),
        }
    }
}

pub(crate) fn names() -> impl Iterator<Item = String> {
    Table::value_variants().iter().map(value_name)
}

fn check_scale(scale: f64) -> Result<()> {
    if !(scale > 0.0 && scale <= MAX_SCALE) {
        return exec_err!("The scale factor must be above 0 and at most {MAX_SCALE}, not {scale}.");
    }
    Ok(())
}

fn named(name: &str) -> Result<Table> {
    match Table::value_variants().iter().find(|table| value_name(*table) == name) {
        Some(table) => Ok(*table),
        None => exec_err!("TPC-H has no table {name}"),
    }
}

/// A table by its name, in memory.
pub(crate) fn table(name: &str, scale: f64) -> Result<Vec<RecordBatch>> {
    check_scale(scale)?;
    named(name)?.batches(scale, 1, 1).map(|batch| Ok(batch?)).collect()
}

/// Columns of a table by its name, in memory, with one partition per thread. Partitions follow each other as the rows of the table do.
pub(crate) fn columns(name: &str, scale: f64, columns: &[&str], threads: usize) -> Result<Vec<Vec<RecordBatch>>> {
    check_scale(scale)?;
    let table = named(name)?;
    let schema = table.schema();
    let places = columns.iter().map(|column| schema.index_of(column)).collect::<Result<Vec<_>, _>>()?;
    let parts = i32::try_from(threads).unwrap_or(i32::MAX);
    on_each((1..=parts).collect(), |part| {
        let batches = table.batches(scale, part, parts);
        batches.map(|batch| Ok(batch?.project(&places)?)).collect()
    })
}

pub(crate) fn generate(args: &TpchArgs, out: &mut dyn Write) -> Result<()> {
    let scale = args.scale;
    check_scale(scale)?;
    create_directory(&args.dir)?;
    let threads = thread_count(args.threads);
    let bar = progress_bar(Table::value_variants().iter().map(|table| table.rows(scale)).sum());
    for table in Table::value_variants() {
        let name = value_name(table);
        bar.set_message(name.clone());
        let parts = table.parts(scale);
        let file = TableFile {
            path: args.dir.join(format!("{name}.parquet")),
            schema: table.schema(),
            format: Format::Parquet,
            compression: args.compression,
            dictionaries: true,
            parts,
            arguments: format!("tpch {name} --scale {scale}"),
        };
        // The largest scale has fewer than 2^31 parts.
        let number = |part: usize| i32::try_from(part).unwrap_or(i32::MAX);
        file.produce(args.force, threads, &bar, out, |part| table.batches(scale, number(part + 1), number(parts)))?;
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests;
