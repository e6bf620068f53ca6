//! Filters find their columns below joins also where names repeat.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use datafusion::common::Result;
use tempfile::TempDir;

use crate::harness::rows::Answer;
use crate::harness::run::Run;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Each table has a column `k`, and those of `a` and `b` are far apart in rows that belong together.
const TABLES: [(&str, &str); 3] = [
    ("a", "SELECT value AS k, value AS v FROM generate_series(0, 99999)"),
    ("b", "SELECT value AS v, value + 50000 AS k FROM generate_series(0, 99999)"),
    ("x", "SELECT value + 60000 AS k FROM generate_series(0, 9)"),
];

/// Queries with their count and sum. Ten rows of each have a key of `x`.
const QUERIES: [(&str, i64, i64); 4] = [
    // Two columns of the name on one side of a join.
    (
        "SELECT count(*), sum(a.k) FROM x JOIN ((a JOIN b ON a.v = b.v) LEFT JOIN x AS z ON z.k = a.k) ON x.k = b.k",
        10,
        100_045,
    ),
    // A column of the name on the other side of a semi join, which is not its key.
    (
        "SELECT count(*), sum(j.k) FROM x JOIN (SELECT k, v FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.v = a.k AND b.k > a.v)) \
         AS j ON x.k = j.k",
        10,
        600_045,
    ),
    (
        "SELECT count(*), sum(j.k) FROM x JOIN (SELECT b.k FROM a JOIN b ON a.v = b.v WHERE EXISTS (SELECT 1 FROM a AS c \
         WHERE c.v = b.k AND c.k <= b.k)) AS j ON x.k = j.k",
        10,
        600_045,
    ),
    // The names are not repeated.
    (
        "SELECT count(*), sum(j.w) FROM x JOIN (SELECT a.k AS w, b.k AS n FROM a JOIN b ON a.v = b.v) AS j ON x.k = j.n",
        10,
        100_045,
    ),
];

async fn session(engine: Engine, folder: &TempDir, settings: &Settings) -> Result<Session> {
    let session = Session::open(engine, settings, Memory::Ample)?;
    if engine == Engine::Stock {
        let state = session.ctx.state_ref();
        let mut state = state.write();
        let optimizer = &mut state.config_mut().options_mut().optimizer;
        optimizer.enable_dynamic_filter_pushdown = true;
        optimizer.enable_join_dynamic_filter_pushdown = true;
    }
    for (name, rows) in TABLES {
        let path = folder.path().join(format!("{name}.parquet")).display().to_string();
        if !std::path::Path::new(&path).exists() {
            session.ctx.sql(&format!("COPY ({rows}) TO '{path}'")).await?.collect().await?;
        }
        session.ctx.register_parquet(name, &path, Default::default()).await?;
    }
    Ok(session)
}

#[tokio::test]
async fn filters_drop_no_rows_by_another_column_of_the_same_name() {
    let folder = TempDir::new().unwrap();
    let mut wrong = 0;
    for partitioned in [false, true] {
        for join_reordering in [false, true] {
            let settings = Settings { partitioned, join_reordering, pushdown_filters: true, ..Settings::default() };
            let overspill = session(Engine::Overspill, &folder, &settings).await.unwrap();
            let stock = session(Engine::Stock, &folder, &settings).await.unwrap();
            for (sql, count, sum) in QUERIES {
                let run = Run::of(&overspill.ctx, overspill.ctx.sql(sql).await).await;
                assert_eq!(values(&run.answer.unwrap()), [count, sum], "{sql}\n{}", run.plan);
                let run = Run::of(&stock.ctx, stock.ctx.sql(sql).await).await;
                wrong += usize::from(values(&run.answer.unwrap()) != [count, sum]);
            }
        }
    }
    assert!(wrong > 0, "DataFusion finds the columns of filters by now: see FilterPushdownByName");
}

/// The values of a count and a sum, if it is not null.
fn values(answer: &Answer) -> Vec<i64> {
    let columns = answer.batches.iter().flat_map(|batch| batch.columns());
    columns.flat_map(|column| column.as_primitive::<Int64Type>().iter().flatten()).collect()
}
