//! Tables and queries to measure.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::execution::{SessionStateBuilder, SpillFile};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::TryStreamExt;
use overspill_machine::DeviceKind;
use tokio::task::JoinSet;

use crate::config::{Choice, OverspillConfig};
use crate::runtime::OverspillRuntime;
use crate::session::OverspillSessionExt;

/// Queries that together have all operators but the rare ones, on tables `r`, `s` and `f`.
pub(super) const QUERIES: [&str; 16] = [
    "SELECT sum(v) FROM r",
    "SELECT sum(k), max(v), min(g) FROM r",
    "SELECT count(*), sum(v) FROM r WHERE g < 200",
    "SELECT count(*), sum(v) FROM r WHERE g < 800",
    "SELECT g, sum(v) FROM r GROUP BY g",
    "SELECT k, sum(v) FROM r GROUP BY k",
    "SELECT g, sum(v) FROM r WHERE v % 5 = 0 GROUP BY g",
    "SELECT count(*), sum(r.v) FROM r JOIN s ON r.k = s.k",
    "SELECT r.v, s.v FROM s JOIN r ON r.k = s.k",
    "SELECT r.v, t.v FROM r JOIN r t ON r.k = t.k",
    "SELECT s.g, sum(r.v) FROM r JOIN s ON r.k = s.k GROUP BY s.g",
    "SELECT * FROM r ORDER BY v",
    "SELECT k, sum(v) OVER (PARTITION BY g ORDER BY k) FROM r",
    "SELECT sum(v) FROM f",
    "SELECT sum(k), max(v), min(g) FROM f",
    "SELECT g, sum(v) FROM f WHERE v % 5 = 0 GROUP BY g",
];

/// A join, and a filter with aggregates.
pub(super) const JOIN: &str = "SELECT count(*), sum(r.v) FROM r JOIN s ON r.k = s.k";
pub(super) const AGGREGATE: &str = "SELECT count(*), sum(v), sum(k) FROM r WHERE g < 500";

/// Rows of a batch.
const BATCH: usize = 8192;

/// Tables that all sessions share: `r` in memory, `s` with a tenth of its keys, and `f`, which is `r` in a Parquet file.
pub(super) struct Workload {
    runtime: OverspillRuntime,
    threads: usize,
    tables: Vec<(&'static str, Arc<MemTable>)>,
    file: Option<Arc<dyn SpillFile>>,
}

impl Workload {
    pub async fn new(runtime: &OverspillRuntime, threads: usize, rows: usize) -> Result<Self> {
        let tables = vec![("r", table(rows, 1, threads)?), ("s", table((rows / 10).max(1), 7, threads)?)];
        let mut workload = Self { runtime: runtime.clone(), threads, tables, file: None };
        let session = workload.session(DeviceKind::Cpu).await?;
        let file = session.runtime_env().disk_manager.create_tmp_file("measuring queries")?;
        let path = file.path().and_then(Path::to_str);
        let path = path.ok_or_else(|| exec_datafusion_err!("temporary files have no path that is text"))?;
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        session.table("r").await?.write_parquet(path, options, None).await?;
        workload.file = Some(file);
        Ok(workload)
    }

    /// A session without a scheduler.
    pub async fn session(&self, device: DeviceKind) -> Result<SessionContext> {
        let config = OverspillConfig { device: Choice(Some(device)), ..OverspillConfig::default() };
        let session =
            SessionConfig::new().with_target_partitions(self.threads).with_extension(Arc::new(self.runtime.clone()));
        let state = SessionStateBuilder::new_with_default_features().with_config(session).with_overspill(config);
        let session = SessionContext::new_with_state(state.build());
        for (name, table) in &self.tables {
            session.register_table(*name, Arc::clone(table) as _)?;
        }
        if let Some(path) = self.file.as_ref().and_then(|file| file.path()?.to_str()) {
            session.register_parquet("f", path, ParquetReadOptions::new().file_extension("")).await?;
        }
        Ok(session)
    }

    /// Seconds of some queries at the same time: the best of a few runs, after one that does not count.
    pub async fn together(&self, device: DeviceKind, queries: &[&str]) -> Result<f64> {
        let mut best = f64::INFINITY;
        for run in 0..3 {
            let mut plans = vec![];
            for query in queries {
                let session = self.session(device).await?;
                plans.push((session.sql(query).await?.create_physical_plan().await?, session));
            }
            let start = Instant::now();
            let mut running = JoinSet::new();
            plans.into_iter().for_each(|(plan, session)| drop(running.spawn(ended(plan, session))));
            while let Some(result) = running.join_next().await {
                result.map_err(|error| exec_datafusion_err!("A query stopped: {error}"))??;
            }
            if run > 0 {
                best = best.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(best)
    }
}

/// Runs a plan. Its rows are of no interest.
async fn ended(plan: Arc<dyn ExecutionPlan>, session: SessionContext) -> Result<()> {
    let mut rows = execute_stream(plan, session.task_ctx())?;
    while rows.try_next().await?.is_some() {}
    Ok(())
}

/// A table with unique keys `k`, groups `g` from 0 to 999, and values `v`, all in an order without a pattern.
fn table(rows: usize, seed: u64, partitions: usize) -> Result<Arc<MemTable>> {
    // An odd factor permutes the numbers below a power of two.
    let range = rows.next_power_of_two().max(2) as u64;
    let mixed = |row: u64, factor: u64| row.wrapping_mul(factor) & (range - 1);
    let column = |rows: std::ops::Range<u64>, of: &dyn Fn(u64) -> u64| {
        Arc::new(Int64Array::from_iter_values(rows.map(|row| of(row) as i64))) as ArrayRef
    };
    let batches = (0..rows).step_by(BATCH).map(|from| {
        let rows = from as u64..(from + BATCH).min(rows) as u64;
        RecordBatch::try_from_iter([
            ("k", column(rows.clone(), &|row| mixed(row, 0x9E37_79B9_7F4A_7C15))),
            ("g", column(rows.clone(), &|row| mixed(row, 0xC2B2_AE3D_27D4_EB4F).wrapping_mul(seed) % 1000)),
            ("v", column(rows, &|row| mixed(row, 0x1656_67B1_9E37_79F9) >> 1)),
        ])
    });
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    let mut parts = vec![vec![]; partitions.max(1)];
    batches.into_iter().enumerate().for_each(|(number, batch)| parts[number % partitions.max(1)].push(batch));
    let schema = parts.iter().flatten().next().map(RecordBatch::schema);
    let schema = schema.ok_or_else(|| exec_datafusion_err!("a table to measure has at least one row"))?;
    Ok(Arc::new(MemTable::try_new(schema, parts)?))
}
