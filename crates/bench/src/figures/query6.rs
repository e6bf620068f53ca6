//! TPC-H query 6 in SQL, over a table in memory (paper 2, section 7.2.4).

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Date32Type, Decimal128Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::DeviceKind;
use overspill::{OverspillConfig, OverspillSessionExt};
use overspill_experiments::{Axis, Figure, SeriesSource};
use tokio::runtime::Builder;

use super::bench::Bench;
use super::outcome::Outcome;
use crate::datagen::tpch_columns;
use crate::report::{median, tell};
use crate::tpch;

const QUERY: usize = 6;

/// The columns that the query reads.
const COLUMNS: [&str; 4] = ["l_quantity", "l_extendedprice", "l_discount", "l_shipdate"];

/// Bytes of a row of these columns.
const ROW_BYTES: u64 = 3 * 16 + 4;

/// Scale factors of the paper.
const FACTORS: [f64; 3] = [100.0, 500.0, 1000.0];

/// The approximate number of lineitem rows at scale factor 1.
const ROWS: u64 = 6_000_000;

pub(super) fn run(bench: &Bench) -> Result<Outcome> {
    let most = FACTORS[FACTORS.len() - 1] as u64 * ROWS;
    let scale = bench.scale_for(most, most * ROW_BYTES);
    let mut figure = Figure {
        name: "paper2-15",
        title: "TPC-H query 6 by SQL",
        paper: "paper 2, figure 15",
        x: Axis::linear("scale factor"),
        y: Axis::linear("million rows a second"),
        notes: vec![
            "the paper: the CPU is up to 1.67 times as fast as NVLink 2.0 and 15.8 times as PCIe 3.0, NVLink up to 9.8 times as PCIe; \
             with NVLink 2.0 branching is faster than predication, as 1.3 % of the rows are selected; no rates are stated"
                .to_owned(),
            "branching and predication apart: refused, each line is what overspill.selection = auto chooses".to_owned(),
        ],
        ..bench.figure(scale)
    };
    let gpu_memory_limit = bench.gpu(scale).map_or(0, |gpu| gpu.device().memory_limit());
    let device = match (bench.device(), bench.gpu(scale)) {
        (device @ (DeviceKind::Gpu | DeviceKind::Emulated), Ok(_)) => Some(device),
        (_, reason) => {
            figure.notes.extend(reason.err().map(|reason| format!("GPU: refused, {reason}")));
            None
        }
    };
    let runtime = Builder::new_multi_thread().worker_threads(bench.threads).enable_all().build()?;
    let (mut on_cpu, mut on_gpu, mut selected) = (vec![], vec![], vec![]);
    for factor in FACTORS {
        let scale_factor = factor * scale;
        tell(&format!("query 6, scale factor {scale_factor}"));
        let table = tpch_columns("lineitem", scale_factor, &COLUMNS, bench.threads)?;
        let rows: usize = table.iter().flatten().map(RecordBatch::num_rows).sum();
        let (count, expected) = reference(&table)?;
        selected.push(count as f64 / rows as f64 * 100.0);
        let Some(schema) = table.iter().flatten().next().map(RecordBatch::schema) else {
            return exec_err!("There are no rows for query 6 at scale factor {scale_factor}.");
        };
        let table = Arc::new(MemTable::try_new(schema, table)?);
        let time = |device| runtime.block_on(time(bench, device, gpu_memory_limit, &table, expected));
        let (_, seconds) = time(DeviceKind::Cpu)?;
        on_cpu.push((factor, rows as f64 / seconds / 1e6));
        if let Some(device) = device {
            let (rows_on_gpu, seconds) = time(device)?;
            // The CPU processes rows that the GPU cannot.
            if rows_on_gpu != rows {
                figure.notes.push(format!("GPU: refused, as it processed {rows_on_gpu} of {rows} rows at {factor}"));
            } else if bench.is_emulated() {
                figure
                    .notes
                    .push(format!("GPU: the emulated device gave the right answer at {factor}; it has no speed"));
            } else {
                on_gpu.push((factor, rows as f64 / seconds / 1e6));
            }
        }
    }
    figure.notes.dedup();
    let selected: Vec<_> = selected.iter().map(|percent| format!("{percent:.2}")).collect();
    figure.notes.push(format!("{} % of the rows are selected", selected.join(", ")));
    let bound = bench.read_rate()? / ROW_BYTES as f64 / 1e6;
    figure.add(SeriesSource::Bound, "the CPU reads the columns", FACTORS.map(|factor| (factor, bound)).into());
    figure.add(SeriesSource::Measured, "CPU", on_cpu);
    figure.add(SeriesSource::Measured, "GPU", on_gpu);
    Ok(Outcome::of(figure))
}

/// Runs the query on a device. Returns the number of rows that a GPU processed, and the median time in seconds.
async fn time(
    bench: &Bench,
    device: DeviceKind,
    gpu_memory_limit: u64,
    table: &Arc<MemTable>,
    expected: Option<i128>,
) -> Result<(usize, f64)> {
    let config = SessionConfig::new().with_target_partitions(bench.threads);
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_overspill(OverspillConfig {
            device: device.into(),
            gpu_memory_limit: usize::try_from(gpu_memory_limit).unwrap_or(usize::MAX),
            ..OverspillConfig::default()
        })
        .build();
    let session = SessionContext::new_with_state(state);
    session.register_table("lineitem", Arc::clone(table) as _)?;
    let sql = tpch::SUITE.query_text(QUERY)?;
    let mut seconds = vec![];
    let mut rows_on_gpu = 0;
    let runs = bench.runs_of(device != DeviceKind::Cpu);
    for run in 0..runs {
        let plan = session.sql(&sql).await?.create_physical_plan().await?;
        let begin = Instant::now();
        let rows = collect(Arc::clone(&plan), session.task_ctx()).await?;
        if run > 0 || runs == 1 {
            seconds.push(begin.elapsed().as_secs_f64());
        }
        rows_on_gpu = gpu_rows(&plan);
        let answer = rows.iter().find(|batch| batch.num_rows() > 0).map(|batch| batch.column(0));
        let sum = answer.and_then(|column| column.as_primitive_opt::<Decimal128Type>());
        let sum = sum.filter(|sum| sum.is_valid(0)).map(|sum| sum.value(0));
        if sum != expected {
            return exec_err!("Query 6 gave {sum:?} ten-thousandths of revenue, not {expected:?}.");
        }
    }
    let seconds = median(seconds).ok_or_else(|| exec_datafusion_err!("Query 6 must run at least once."))?;
    Ok((rows_on_gpu, seconds))
}

/// The number of rows that a GPU processed in an executed plan.
fn gpu_rows(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name("gpu_rows")).map_or(0, |rows| rows.as_usize());
    own + plan.children().into_iter().map(gpu_rows).sum::<usize>()
}

/// Computes the query in a plain loop: the number of selected rows, and their revenue in ten-thousandths, `None` without
/// rows.
fn reference(table: &[Vec<RecordBatch>]) -> Result<(usize, Option<i128>)> {
    // 1994-01-01 and 1995-01-01, in days since 1970-01-01.
    const YEAR: std::ops::Range<i32> = 8766..9131;
    let mut answer = (0, None);
    for batch in table.iter().flatten() {
        let decimal = |column: usize| {
            let column = batch.column(column).as_primitive_opt::<Decimal128Type>();
            column.filter(|column| column.scale() == 2).map(|column| column.values())
        };
        let dates = batch.column(3).as_primitive_opt::<Date32Type>();
        let (Some(quantity), Some(price), Some(discount), Some(dates)) = (decimal(0), decimal(1), decimal(2), dates)
        else {
            return exec_err!("The table lineitem has other types than query 6 is checked with.");
        };
        for row in 0..batch.num_rows() {
            if YEAR.contains(&dates.value(row)) && (5..=7).contains(&discount[row]) && quantity[row] < 2400 {
                answer.0 += 1;
                *answer.1.get_or_insert(0) += price[row] * discount[row];
            }
        }
    }
    Ok(answer)
}
