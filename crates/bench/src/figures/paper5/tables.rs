//! The tables of the experiments.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Int32Array, RecordBatch};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use overspill_join::parallel::in_parallel;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use crate::datagen::{self, Compression, TablesArgs, scaled};

/// The tables of the micro-benchmark: their names and rows (table 2), and the one that joins look up (section 6.3).
pub(super) const SIZES: [(&str, u64); 3] = [("t28m", 28_000_000), ("t70m", 70_000_000), ("t112m", 112_000_000)];
const LOOKED_UP: (&str, u64) = ("t100k", 100_000);

/// Values are 1 to this.
const MOST_VALUE: i32 = 10_000_000;

/// Bytes of a row: an id and a value.
pub(super) const ROW_BYTES: u64 = 8;

const BATCH: usize = 1 << 16;

/// Tables that sessions read.
pub(super) enum Tables {
    /// Of ids and values, in memory.
    Values(Vec<(&'static str, Arc<MemTable>)>),
    /// Of TPC-H, in files.
    Tpch(TempDir),
}

impl Tables {
    /// The tables of the micro-benchmark, a part of their rows.
    pub fn values(scale: f64, threads: usize) -> Result<Self> {
        let tables = SIZES.into_iter().chain([LOOKED_UP]).enumerate().map(|(number, (name, rows))| {
            let rows = usize::try_from(scaled(rows, scale)).unwrap_or(usize::MAX);
            Ok((name, Arc::new(table(rows, threads, number as u64)?)))
        });
        tables.collect::<Result<_>>().map(Self::Values)
    }

    /// The tables of TPC-H.
    pub fn tpch(scale: f64) -> Result<Self> {
        let folder = TempDir::new()?;
        let args = TablesArgs {
            scale,
            dir: folder.path().to_owned(),
            compression: Compression::Snappy,
            force: false,
            threads: None,
        };
        datagen::generate_tpch(&args, &mut std::io::sink())?;
        Ok(Self::Tpch(folder))
    }

    pub async fn register(&self, session: &SessionContext) -> Result<()> {
        match self {
            Self::Values(tables) => {
                for (name, table) in tables {
                    session.register_table(*name, Arc::clone(table) as _)?;
                }
            }
            Self::Tpch(folder) => {
                for name in datagen::tpch_tables() {
                    let path = Path::join(folder.path(), format!("{name}.parquet"));
                    session.register_parquet(name, path.to_string_lossy(), ParquetReadOptions::default()).await?;
                }
            }
        }
        Ok(())
    }
}

/// Ids that ascend, and random values.
fn table(rows: usize, threads: usize, seed: u64) -> Result<MemTable> {
    let starts: Vec<usize> = (0..rows).step_by(BATCH).collect();
    let batches = in_parallel(threads, starts, |start| {
        let mut random = ChaCha8Rng::seed_from_u64(seed << 32 | start as u64);
        let count = BATCH.min(rows - start);
        let ids = Int32Array::from_iter_values((start..start + count).map(|id| id as i32));
        let values = Int32Array::from_iter_values((0..count).map(|_| random.random_range(1..=MOST_VALUE)));
        RecordBatch::try_from_iter([("id", Arc::new(ids) as _), ("value", Arc::new(values) as _)])
    });
    let batches = batches.into_iter().collect::<Result<Vec<_>, _>>()?;
    let schema = batches[0].schema();
    let mut parts = vec![vec![]; threads];
    for (number, batch) in batches.into_iter().enumerate() {
        parts[number % threads].push(batch);
    }
    MemTable::try_new(schema, parts)
}
