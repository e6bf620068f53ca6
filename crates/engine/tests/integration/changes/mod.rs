//! Statements that change tables and files do what they say, or nothing.

mod copy;
mod keys;
mod random_copies;
mod random_rows;
mod rows;

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::memory::execute_logical_plan;
use overspill::{OverspillConfig, OverspillSessionExt};

/// Numbers of a result, row by row.
type Numbers = Vec<Vec<Option<i64>>>;

fn session() -> SessionContext {
    session_over(Arc::new(GreedyMemoryPool::new(256 << 20)))
}

fn session_over(pool: Arc<dyn MemoryPool>) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
    let config = SessionConfig::new().with_target_partitions(3).with_batch_size(10);
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_overspill(OverspillConfig::default())
        .build();
    SessionContext::new_with_state(state)
}

/// DataFusion as it is: tests that it still needs a rule fail when it does not.
fn stock() -> SessionContext {
    SessionContext::new_with_config(SessionConfig::new().with_target_partitions(3).with_batch_size(10))
}

async fn try_run(session: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    let plan = session.state().create_logical_plan(sql).await?;
    execute_logical_plan(session, plan).await?.collect().await
}

/// Runs statements, all of which must succeed, and gives the result of the last.
async fn run(session: &SessionContext, statements: &str) -> Numbers {
    let mut last = vec![];
    for sql in statements.split(';').filter(|sql| !sql.trim().is_empty()) {
        last = try_run(session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    numbers(&last)
}

/// The error of a statement that must fail.
async fn refusal(session: &SessionContext, sql: &str) -> String {
    match try_run(session, sql).await {
        Ok(batches) => panic!("{sql} gave {:?}", numbers(&batches)),
        Err(error) => error.strip_backtrace(),
    }
}

fn numbers(batches: &[RecordBatch]) -> Numbers {
    let rows = |batch: &RecordBatch| -> Numbers {
        let columns: Vec<_> = batch.columns().iter().map(|column| cast(column, &DataType::Int64).unwrap()).collect();
        let value = |column: usize, row| {
            let column = columns[column].as_primitive::<Int64Type>();
            arrow::array::Array::is_valid(column, row).then(|| column.value(row))
        };
        (0..batch.num_rows()).map(|row| (0..columns.len()).map(|column| value(column, row)).collect()).collect()
    };
    batches.iter().flat_map(rows).collect()
}

/// The numbers of a result's only column.
async fn column(session: &SessionContext, sql: &str) -> Vec<i64> {
    run(session, sql).await.into_iter().map(|row| row[0].expect("no null")).collect()
}
