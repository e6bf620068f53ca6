//! The tables of TPC-H.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use clap::ValueEnum;
use datafusion::common::{Result, exec_err};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use super::tables::{self, Batches, Table as _, TablesArgs, check_scale};
use crate::report::value_name;
use crate::threads::on_each;

/// The average number of lines of an order.
pub(super) const LINES_PER_ORDER: u64 = 4;

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

impl tables::Table for Table {
    const BENCHMARK: &str = "tpch";

    fn name(self) -> String {
        value_name(&self)
    }

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

    fn batches(self, scale: f64, part: usize, parts: usize) -> Batches {
        // The largest scale has fewer than 2^31 parts.
        let number = |part: usize| i32::try_from(part).unwrap_or(i32::MAX);
        let (part, parts) = (number(part), number(parts));
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
    on_each((1..=threads).collect(), |part| {
        let batches = table.batches(scale, part, threads);
        batches.map(|batch| Ok(batch?.project(&places)?)).collect()
    })
}

pub(crate) fn generate(args: &TablesArgs, out: &mut dyn Write) -> Result<()> {
    tables::generate(Table::value_variants(), args, out)
}

#[cfg(test)]
mod tests;
