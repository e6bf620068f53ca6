//! The tables of the Star Schema Benchmark, made of the rows of TPC-H: orders and their lines are one table of facts, and
//! customers and suppliers have the names of their nations and regions.

mod dates;

use std::io::Write;
use std::sync::Arc;

use arrow::array::Int64Array;
use arrow::datatypes::SchemaRef;
use clap::ValueEnum;
use datafusion::common::Result;
use tpchgen::generators::{
    Customer, CustomerGenerator, LineItem, LineItemGenerator, NationGenerator, Order, OrderGenerator, Part,
    PartGenerator, RegionGenerator, Supplier, SupplierGenerator,
};

use super::columns::{Columns, batches, numbers, schema, texts};
use super::tables::{self, Batches, TablesArgs};
use super::tpch::LINES_PER_ORDER;
use crate::report::value_name;

/// TPC-H has this many times as many customers, and as many suppliers.
const FEWER: f64 = 5.0;

/// Brands of a category of parts.
const BRANDS: i64 = 40;

/// Cities of a nation. The name of a city is the beginning of that of its nation, and a digit.
const CITIES: i64 = 10;
const NATION_LETTERS: usize = 9;

/// A table. The small tables come first, so that output starts soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum Table {
    Date,
    Supplier,
    Customer,
    Part,
    LineOrder,
}

/// An order, and one of its lines.
type OrderLine = (Order<'static>, LineItem<'static>);

impl tables::Table for Table {
    const BENCHMARK: &str = "ssb";

    fn name(self) -> String {
        value_name(&self)
    }

    fn schema(self) -> SchemaRef {
        let places = Places::new();
        schema(&match self {
            Self::Date => dates::columns(&[]),
            Self::Supplier => supplier(&[], &places),
            Self::Customer => customer(&[], &places),
            Self::Part => part(&[]),
            Self::LineOrder => line_order(&[], &Keys::new(1.0)),
        })
    }

    /// The number of rows, which is approximate for lineorder.
    fn rows(self, scale: f64) -> u64 {
        match self {
            Self::Date => dates::DAYS as u64,
            Self::Supplier => Keys::new(scale).suppliers as u64,
            Self::Customer => Keys::new(scale).customers as u64,
            Self::Part => Keys::new(scale).parts as u64,
            Self::LineOrder => OrderGenerator::calculate_row_count(scale, 1, 1) as u64 * LINES_PER_ORDER,
        }
    }

    fn batches(self, scale: f64, part_number: usize, parts: usize) -> Batches {
        // The largest scale has fewer than 2^31 parts.
        let number = |part: usize| i32::try_from(part).unwrap_or(i32::MAX);
        let (number, parts) = (number(part_number), number(parts));
        let places = Places::new();
        match self {
            Self::Date => batches(dates::all(), dates::columns),
            Self::Supplier => {
                let rows = SupplierGenerator::new(scale / FEWER, number, parts).into_iter();
                batches(rows, move |rows| supplier(rows, &places))
            }
            Self::Customer => {
                let rows = CustomerGenerator::new(scale / FEWER, number, parts).into_iter();
                batches(rows, move |rows| customer(rows, &places))
            }
            Self::Part => batches(PartGenerator::new(part_scale(scale), number, parts).into_iter(), part),
            Self::LineOrder => {
                let keys = Keys::new(scale);
                batches(order_lines(scale, number, parts), move |rows| line_order(rows, &keys))
            }
        }
    }
}

/// The scale factor at which TPC-H has the parts of a scale factor: they grow by its logarithm.
fn part_scale(scale: f64) -> f64 {
    if scale < 1.0 { scale } else { (1.0 + scale.log2()).floor() }
}

/// Each line of a part of the orders, with its order.
fn order_lines(scale: f64, part: i32, parts: i32) -> impl Iterator<Item = OrderLine> {
    let mut orders = OrderGenerator::new(scale, part, parts).into_iter().peekable();
    // Both tables are in the order of their keys, and each order has lines.
    LineItemGenerator::new(scale, part, parts).into_iter().filter_map(move |line| {
        while orders.next_if(|order| order.o_orderkey < line.l_orderkey).is_some() {}
        orders.peek().map(|order| (order.clone(), line))
    })
}

/// How many rows there are that lines refer to.
struct Keys {
    customers: i64,
    suppliers: i64,
    parts: i64,
}

impl Keys {
    fn new(scale: f64) -> Self {
        Self {
            customers: CustomerGenerator::calculate_row_count(scale / FEWER, 1, 1).max(1),
            suppliers: SupplierGenerator::calculate_row_count(scale / FEWER, 1, 1).max(1),
            parts: PartGenerator::calculate_row_count(part_scale(scale), 1, 1).max(1),
        }
    }
}

/// One of `rows` keys from 1 for a key of TPC-H, which has more of them.
fn key_among(rows: i64, key: i64) -> i32 {
    ((key - 1) % rows + 1) as i32
}

/// The names of nations and of their regions, by the key of the nation.
struct Places(Vec<(&'static str, &'static str)>);

impl Places {
    fn new() -> Self {
        let regions: Vec<_> = RegionGenerator::new(1.0, 1, 1).into_iter().map(|region| region.r_name).collect();
        let nations = NationGenerator::new(1.0, 1, 1).into_iter();
        Self(nations.map(|nation| (nation.n_name, regions[nation.n_regionkey as usize])).collect())
    }

    fn nation(&self, key: i64) -> &'static str {
        self.0[key as usize].0
    }

    fn region(&self, key: i64) -> &'static str {
        self.0[key as usize].1
    }

    /// A city of a nation, chosen by a key.
    fn city(&self, nation: i64, key: i64) -> String {
        let name: String = self.nation(nation).chars().take(NATION_LETTERS).collect();
        format!("{name:NATION_LETTERS$}{}", key % CITIES)
    }
}

fn supplier(rows: &[Supplier], places: &Places) -> Columns {
    vec![
        ("s_suppkey", numbers(rows, |row| row.s_suppkey as i32)),
        ("s_name", texts(rows, |row| row.s_name.to_string())),
        ("s_address", texts(rows, |row| row.s_address.to_string())),
        ("s_city", texts(rows, |row| places.city(row.s_nationkey, row.s_suppkey))),
        ("s_nation", texts(rows, |row| places.nation(row.s_nationkey))),
        ("s_region", texts(rows, |row| places.region(row.s_nationkey))),
        ("s_phone", texts(rows, |row| row.s_phone.to_string())),
    ]
}

fn customer(rows: &[Customer<'static>], places: &Places) -> Columns {
    vec![
        ("c_custkey", numbers(rows, |row| row.c_custkey as i32)),
        ("c_name", texts(rows, |row| row.c_name.to_string())),
        ("c_address", texts(rows, |row| row.c_address.to_string())),
        ("c_city", texts(rows, |row| places.city(row.c_nationkey, row.c_custkey))),
        ("c_nation", texts(rows, |row| places.nation(row.c_nationkey))),
        ("c_region", texts(rows, |row| places.region(row.c_nationkey))),
        ("c_phone", texts(rows, |row| row.c_phone.to_string())),
        ("c_mktsegment", texts(rows, |row| row.c_mktsegment)),
    ]
}

fn part(rows: &[Part<'static>]) -> Columns {
    // The words of a name of TPC-H are colors. Its brand has the digits of a manufacturer and of a category.
    let words = |row: &Part, words: std::ops::Range<usize>| -> String {
        let name = row.p_name.to_string();
        name.split(' ').skip(words.start).take(words.len()).collect::<Vec<_>>().join(" ")
    };
    let number = |text: String| text.split_once('#').map_or_else(String::new, |(_, number)| format!("MFGR#{number}"));
    vec![
        ("p_partkey", numbers(rows, |row| row.p_partkey as i32)),
        ("p_name", texts(rows, |row| words(row, 1..3))),
        ("p_mfgr", texts(rows, |row| number(row.p_mfgr.to_string()))),
        ("p_category", texts(rows, |row| number(row.p_brand.to_string()))),
        ("p_brand1", texts(rows, |row| format!("{}{}", number(row.p_brand.to_string()), row.p_partkey % BRANDS + 1))),
        ("p_color", texts(rows, |row| words(row, 0..1))),
        ("p_type", texts(rows, |row| row.p_type)),
        ("p_size", numbers(rows, |row| row.p_size)),
        ("p_container", texts(rows, |row| row.p_container)),
    ]
}

/// Prices are in cents, and discounts and taxes in percent.
fn line_order(rows: &[OrderLine], keys: &Keys) -> Columns {
    let price = |line: &LineItem| line.l_extendedprice.into_inner();
    let order_keys = Int64Array::from_iter_values(rows.iter().map(|(order, _)| order.o_orderkey));
    vec![
        ("lo_orderkey", Arc::new(order_keys)),
        ("lo_linenumber", numbers(rows, |(_, line)| line.l_linenumber)),
        ("lo_custkey", numbers(rows, |(order, _)| key_among(keys.customers, order.o_custkey))),
        ("lo_partkey", numbers(rows, |(_, line)| key_among(keys.parts, line.l_partkey))),
        ("lo_suppkey", numbers(rows, |(_, line)| key_among(keys.suppliers, line.l_suppkey))),
        ("lo_orderdate", numbers(rows, |(order, _)| dates::key(order.o_orderdate))),
        ("lo_orderpriority", texts(rows, |(order, _)| order.o_orderpriority)),
        ("lo_shippriority", numbers(rows, |(order, _)| order.o_shippriority)),
        ("lo_quantity", numbers(rows, |(_, line)| line.l_quantity as i32)),
        ("lo_extendedprice", numbers(rows, |(_, line)| price(line) as i32)),
        ("lo_ordtotalprice", numbers(rows, |(order, _)| order.o_totalprice.into_inner() as i32)),
        ("lo_discount", numbers(rows, |(_, line)| line.l_discount.into_inner() as i32)),
        ("lo_revenue", numbers(rows, |(_, line)| (price(line) * (100 - line.l_discount.into_inner()) / 100) as i32)),
        // Three fifths of the price of a piece.
        ("lo_supplycost", numbers(rows, |(_, line)| (price(line) / line.l_quantity * 6 / 10) as i32)),
        ("lo_tax", numbers(rows, |(_, line)| line.l_tax.into_inner() as i32)),
        ("lo_commitdate", numbers(rows, |(_, line)| dates::key(line.l_commitdate))),
        ("lo_shipmode", texts(rows, |(_, line)| line.l_shipmode)),
    ]
}

/// The names of the tables.
pub(crate) fn names() -> impl Iterator<Item = String> {
    Table::value_variants().iter().map(value_name)
}

pub(crate) fn generate(args: &TablesArgs, out: &mut dyn Write) -> Result<()> {
    tables::generate(Table::value_variants(), args, out)
}

#[cfg(test)]
mod tests;
