//! Random tables.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::{ParquetReadOptions, SessionContext, col};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::key_types::KeyType;
use crate::harness::rows::write_parquet_file;

/// How the keys of a table are spread over their domain.
#[derive(Clone, Copy, Debug)]
pub enum Spread {
    Unique,
    Uniform(i64),
    Zipf(i64),
    /// This share of the rows has one key, the rest is uniform.
    Hot(f64, i64),
    AllEqual,
}

/// Where a session finds the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    Memory,
    /// In memory, declared as sorted by the row number.
    SortedMemory,
    Parquet,
    /// Parquet files, declared as sorted by the row number.
    SortedParquet,
}

/// A table `a`, `b` or `c`. All its columns begin with its name: `a_id` numbers the rows, `a_k0` … are keys, `a_v` is
/// a small number for residual filters, `a_s` a text, `a_p0` … are payload of any type.
pub struct Table {
    pub name: char,
    pub keys: Vec<KeyType>,
    pub payload: Vec<KeyType>,
    pub storage: Storage,
    spread: Vec<Spread>,
    nulls: f64,
    /// The number behind each key, per key column and row: what the key columns were filled from.
    numbers: Vec<Vec<Option<i64>>>,
    pub schema: SchemaRef,
    partitions: Vec<Vec<RecordBatch>>,
}

/// What tables of a case have in common.
pub struct Shape {
    pub keys: Vec<(KeyType, KeyType)>,
    pub domain: i64,
    pub wide_payload: bool,
    /// Whether DuckDB shall know all columns.
    pub for_duckdb: bool,
    /// The share of keys and small numbers that are NULL, where it is not drawn.
    pub nulls: Option<f64>,
    /// How many small numbers there are.
    pub small: i32,
}

impl Table {
    pub fn random(rng: &mut impl Rng, name: char, shape: &Shape, rows: usize, storage: Storage) -> Self {
        // The first table has the left types of each key, the others the right ones.
        let keys: Vec<KeyType> = shape.keys.iter().map(|pair| if name == 'a' { pair.0 } else { pair.1 }).collect();
        // Both sides of a coerced key must agree on which numbers there are.
        let domains: Vec<i64> = shape.keys.iter().map(|pair| pair.0.domain().min(pair.1.domain())).collect();
        let nulls = *[0.0, 0.0, 0.02, 0.1, 0.5, 1.0].choose(rng).unwrap();
        let nulls = if nulls == 1.0 && rng.random_bool(0.7) { 0.3 } else { nulls };
        let nulls = shape.nulls.unwrap_or(nulls);
        let mut spread = vec![];
        let mut numbers = vec![];
        for (column, domain) in domains.iter().enumerate() {
            // Only the first key may be skewed to the last row; the others then still tell rows apart.
            let of_column =
                if column == 0 { random_spread(rng, shape.domain) } else { Spread::Uniform(1 + shape.domain / 4) };
            numbers.push(draw(rng, of_column, rows, nulls, *domain));
            spread.push(of_column);
        }
        let payload_columns = if shape.wide_payload { 40 } else { *[0, 1, 2, 4].choose(rng).unwrap() };
        let payload: Vec<KeyType> = (0..payload_columns).map(|_| KeyType::random(rng, shape.for_duckdb)).collect();

        let storable = keys.iter().chain(&payload).all(|column| column.known_to_parquet());
        let storage = if storable { storage } else { Storage::Memory };

        let mut columns: Vec<(String, ArrayRef)> =
            vec![(format!("{name}_id"), Arc::new(Int64Array::from_iter_values(0..rows as i64)))];
        for (number, (key, numbers)) in keys.iter().zip(&numbers).enumerate() {
            columns.push((format!("{name}_k{number}"), key.array(numbers)));
        }
        let small: Int32Array = (0..rows)
            .map(|_| rng.random_bool(1.0 - shape.nulls.unwrap_or(0.05)).then(|| rng.random_range(0..shape.small)))
            .collect();
        columns.push((format!("{name}_v"), Arc::new(small)));
        columns.push((format!("{name}_s"), texts(rng, rows)));
        for (number, payload) in payload.iter().enumerate() {
            let numbers = draw(rng, Spread::Uniform(1000), rows, 0.1, payload.domain());
            columns.push((format!("{name}_p{number}"), payload.array(&numbers)));
        }
        let fields: Vec<Field> =
            columns.iter().map(|(name, array)| Field::new(name, array.data_type().clone(), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let all = RecordBatch::try_new(Arc::clone(&schema), columns.into_iter().map(|(_, array)| array).collect())
            .expect("columns of one length");
        let partitions = cut(rng, &all);
        Self { name, keys, payload, storage, spread, nulls, numbers, schema, partitions }
    }

    pub fn rows(&self) -> usize {
        self.numbers[0].len()
    }

    pub fn known_to_duckdb(&self) -> bool {
        self.keys.iter().chain(&self.payload).all(|column| column.known_to_duckdb())
    }

    /// The rows of all partitions.
    pub fn batches(&self) -> Vec<RecordBatch> {
        self.partitions.concat()
    }

    /// How many rows have each value of the first `columns` keys; those with a NULL among them only with `nulls`.
    pub fn key_counts(&self, columns: usize, nulls: bool) -> HashMap<Vec<Option<i64>>, usize> {
        let mut counts = HashMap::new();
        for row in 0..self.rows() {
            let key: Vec<_> = self.numbers[..columns].iter().map(|column| column[row]).collect();
            if nulls || !key.contains(&None) {
                *counts.entry(key).or_default() += 1;
            }
        }
        counts
    }

    pub fn describe(&self) -> String {
        let partitions: Vec<String> = self
            .partitions
            .iter()
            .map(|batches| {
                format!(
                    "{} rows in {} batches",
                    batches.iter().map(RecordBatch::num_rows).sum::<usize>(),
                    batches.len()
                )
            })
            .collect();
        format!(
            "{}: {:?} {partitions:?}, keys {:?} spread {:?} with {} nulls, payload {:?}",
            self.name, self.storage, self.keys, self.spread, self.nulls, self.payload
        )
    }

    /// Writes one Parquet file per partition to `directory`/NAME.
    pub fn write_parquet(&self, directory: &Path) -> Result<()> {
        let folder = directory.join(self.name.to_string());
        std::fs::create_dir_all(&folder)?;
        for (number, batches) in self.partitions.iter().enumerate() {
            write_parquet_file(&folder.join(format!("{number}.parquet")), &self.schema, batches)?;
        }
        Ok(())
    }

    /// Makes the table known to a session; Parquet tables lie in `directory`.
    pub async fn register(&self, ctx: &SessionContext, directory: &Path) -> Result<()> {
        let name = self.name.to_string();
        let order = vec![vec![col(format!("{name}_id")).sort(true, false)]];
        match self.storage {
            Storage::Memory | Storage::SortedMemory => {
                let table = MemTable::try_new(Arc::clone(&self.schema), self.partitions.clone())?;
                let sorted = self.storage == Storage::SortedMemory;
                let table = if sorted { table.with_sort_order(order) } else { table };
                ctx.register_table(name, Arc::new(table))?;
            }
            Storage::Parquet | Storage::SortedParquet => {
                let sorted = self.storage == Storage::SortedParquet;
                let options = ParquetReadOptions::default().schema(&self.schema);
                let options = if sorted { options.file_sort_order(order) } else { options };
                let folder = directory.join(&name);
                ctx.register_parquet(name, folder.to_str().expect("a temporary path in UTF-8"), options).await?;
            }
        }
        Ok(())
    }
}

fn random_spread(rng: &mut impl Rng, domain: i64) -> Spread {
    match rng.random_range(0..10) {
        0..3 => Spread::Unique,
        3..6 => Spread::Uniform(domain),
        6..8 => Spread::Zipf(domain),
        8 => Spread::Hot(rng.random_range(0.05..0.9), domain),
        _ if rng.random_bool(0.5) => Spread::AllEqual,
        _ => Spread::Uniform(1 + domain / 10),
    }
}

fn draw(rng: &mut impl Rng, spread: Spread, rows: usize, nulls: f64, domain: i64) -> Vec<Option<i64>> {
    let shift = rng.random_range(0..1 + rows as i64 / 10);
    (0..rows as i64)
        .map(|row| {
            let number = match spread {
                // An odd factor walks through a whole power of two: unique, and not in the order of the rows.
                Spread::Unique => ((row * 40_503) & 0xFFFF) + shift,
                Spread::Uniform(domain) => rng.random_range(0..domain.max(1)),
                // The inverse of a continuous power law, close enough to Zipf's for skew.
                Spread::Zipf(domain) => (domain.max(2) as f64).powf(rng.random::<f64>()) as i64,
                Spread::Hot(share, _) if rng.random_bool(share) => 7,
                Spread::Hot(_, domain) => rng.random_range(0..domain.max(1)),
                Spread::AllEqual => 7,
            };
            (!rng.random_bool(nulls)).then_some(number % domain)
        })
        .collect()
}

fn texts(rng: &mut impl Rng, rows: usize) -> ArrayRef {
    let texts: StringArray = (0..rows)
        .map(|row| match rng.random_range(0..20) {
            0 => None,
            1..12 => Some(format!("t{}", row % 50)),
            12..19 => Some(format!("text {row} that is longer than what fits into a view")),
            _ => Some(format!("{row}").repeat(rng.random_range(1..60))),
        })
        .collect();
    if rng.random_bool(0.5) {
        cast(&texts, &DataType::Utf8View).expect("strings become views")
    } else {
        Arc::new(texts)
    }
}

/// Cuts a table into partitions and batches: slices of one large batch, copies of such slices, and empty batches.
/// Row numbers keep rising within each partition.
fn cut(rng: &mut impl Rng, all: &RecordBatch) -> Vec<Vec<RecordBatch>> {
    let partitions = rng.random_range(1..=4);
    let largest = *[1, 50, 700, 3000, 8192].choose(rng).unwrap();
    let largest = if all.num_rows() > 300 { largest.max(200) } else { largest };
    let mut cut = vec![vec![]; partitions];
    let mut start = 0;
    while start < all.num_rows() {
        let length = rng.random_range(1..=largest).min(all.num_rows() - start);
        let slice = all.slice(start, length);
        let batch = if rng.random_bool(0.5) {
            slice
        } else {
            let rows = arrow::array::UInt32Array::from_iter_values(0..length as u32);
            take_record_batch(&slice, &rows).expect("rows that exist")
        };
        cut[rng.random_range(0..partitions)].push(batch);
        if rng.random_bool(0.02) {
            cut[rng.random_range(0..partitions)].push(all.slice(start, 0));
        }
        start += length;
    }
    cut
}
