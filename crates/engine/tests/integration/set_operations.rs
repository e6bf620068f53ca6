//! EXCEPT ALL and INTERSECT ALL count duplicates, in SQL and in the DataFrame API, also where the joins spill.

use arrow::util::pretty::pretty_format_batches;
use datafusion::common::{JoinType, NullEquality};
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::prelude::{DataFrame, Expr, SessionContext};

use crate::harness::run::Run;
use crate::harness::session::{Engine, Memory, Session, Settings};

async fn rows(ctx: &SessionContext, sql: &str) -> String {
    let frame = ctx.sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    rows_of(frame).await
}

/// The rows, in their order as text.
async fn rows_of(frame: DataFrame) -> String {
    let table = pretty_format_batches(&frame.collect().await.unwrap()).unwrap().to_string();
    let row = |line: &str| line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(" ");
    let mut rows: Vec<String> = table.lines().filter(|line| line.starts_with('|')).skip(1).map(row).collect();
    rows.sort_unstable();
    rows.join(", ")
}

fn session(engine: Engine) -> Session {
    Session::open(engine, &Settings::default(), Memory::Ample).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_are_counted() {
    let ctx = session(Engine::Overspill).ctx;
    for (sql, expected) in [
        ("VALUES (1), (2), (2), (3), (3), (3) EXCEPT ALL VALUES (1), (3)", "2, 2, 3, 3"),
        ("VALUES (2), (2), (2) INTERSECT ALL VALUES (2), (2)", "2, 2"),
        ("VALUES (1), (2), (2), (3), (3), (3) EXCEPT VALUES (1), (3)", "2"),
        ("VALUES (2), (2), (2) INTERSECT VALUES (2), (2)", "2"),
        ("VALUES (1, NULL), (1, NULL), (NULL, NULL) EXCEPT ALL VALUES (1, NULL), (NULL, 1)", ", 1"),
        ("VALUES (1), (1), (1) EXCEPT ALL SELECT 1 WHERE false", "1, 1, 1"),
        ("SELECT 1 WHERE false INTERSECT ALL VALUES (1)", ""),
        // Both zeros are one value, and so are all NaN.
        (
            "SELECT abs(x) FROM (VALUES (0.0::double), (-0.0::double), ('NaN'::double), ('NaN'::double)) t(x) EXCEPT ALL \
          VALUES (-0.0::double), (-'NaN'::double)",
            "0.0, NaN",
        ),
        // Types are brought together before rows are counted, and the left names and types stay.
        (
            "SELECT arrow_typeof(x), x FROM (SELECT x FROM (VALUES (1), (1), (2)) t(x) EXCEPT ALL VALUES (1.0), (2.5)) s",
            "Int64 1, Int64 2",
        ),
        (
            "SELECT x FROM (VALUES (9007199254740992), (9007199254740993)) t(x) EXCEPT ALL VALUES (9007199254740992.0::double)",
            "9007199254740993",
        ),
        // Nested, in FROM, in EXISTS, in IN and in views.
        (
            "(VALUES (1), (1), (1) EXCEPT ALL VALUES (1)) INTERSECT ALL (VALUES (1), (1), (1), (1) EXCEPT ALL VALUES (2))",
            "1, 1",
        ),
        ("VALUES (1), (1), (1) EXCEPT ALL (VALUES (1), (1) EXCEPT ALL VALUES (1))", "1, 1"),
        ("SELECT 'yes' WHERE EXISTS (VALUES (1), (1) EXCEPT ALL VALUES (1))", "yes"),
        ("SELECT 'yes' WHERE 1 IN (VALUES (1), (1) EXCEPT ALL VALUES (1))", "yes"),
        (
            "SELECT s.x, t.x FROM (VALUES (1), (1) EXCEPT ALL VALUES (1)) s(x) JOIN (VALUES (1), (2)) t(x) ON s.x = t.x",
            "1 1",
        ),
        // Values that can be grouped and not sorted by a single column of their own.
        ("SELECT x FROM (VALUES (struct(1, 2)), (struct(1, 2))) t(x) EXCEPT ALL SELECT struct(1, 2)", "{c0: 1, c1: 2}"),
        ("SELECT x FROM (VALUES ([1, 2]), ([1, 2]), ([3])) t(x) INTERSECT ALL SELECT [1, 2]", "[1, 2]"),
    ] {
        assert_eq!(rows(&ctx, sql).await, expected, "{sql}");
    }
    ctx.sql("CREATE VIEW v AS VALUES (1), (1), (2) EXCEPT ALL VALUES (1.0)").await.unwrap();
    assert_eq!(rows(&ctx, "SELECT * FROM v").await, "1, 2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_count_duplicates_too() {
    let ctx = session(Engine::Overspill).ctx;
    let left = || ctx.sql("SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (1, 'a'), (NULL, 'b'), (NULL, 'b')) t(x, s)");
    let right = || ctx.sql("SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (NULL, 'b')) u(x, s)");
    let frames = async || (left().await.unwrap(), right().await.unwrap());
    let (a, b) = frames().await;
    assert_eq!(rows_of(a.except(b).unwrap()).await, "1 a, b");
    let (a, b) = frames().await;
    assert_eq!(rows_of(a.intersect(b).unwrap()).await, "1 a, 1 a, b");
    let (a, b) = frames().await;
    assert_eq!(rows_of(a.except_distinct(b).unwrap()).await, "");
    let (a, b) = frames().await;
    assert_eq!(rows_of(a.intersect_distinct(b).unwrap()).await, "1 a, b");

    // DataFusion knows no join without a key, and so no operation on rows without columns.
    let (a, b) = frames().await;
    let none = Vec::<Expr>::new();
    let error = a.select(none.clone()).unwrap().except(b.select(none).unwrap()).unwrap_err().to_string();
    assert!(error.contains("join condition should not be empty"), "{error}");
}

/// What only looks like a set operation keeps its meaning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn semi_joins_stay_semi_joins() {
    let ctx = session(Engine::Overspill).ctx;
    for table in ["CREATE TABLE a AS VALUES (1), (1), (NULL), (NULL)", "CREATE TABLE b AS VALUES (1), (NULL)"] {
        ctx.sql(table).await.unwrap().collect().await.unwrap();
    }
    let sql = "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.column1 IS NOT DISTINCT FROM b.column1)";
    assert_eq!(rows(&ctx, sql).await, ", , 1, 1");
    let semi = "SELECT * FROM a LEFT SEMI JOIN b ON a.column1 IS NOT DISTINCT FROM b.column1";
    assert_eq!(rows(&ctx, semi).await, ", , 1, 1");
    // A plan that has been optimized is analyzed again when it is run.
    for sql in [sql, semi] {
        let (state, plan) = ctx.sql(sql).await.unwrap().into_parts();
        let optimized = state.optimize(&plan).unwrap();
        assert!(format!("{optimized}").contains("LeftSemi Join: a.column1 = "), "{optimized}");
        assert_eq!(rows_of(DataFrame::new(state, optimized)).await, ", , 1, 1", "{sql}");
    }
    // One that counted before counts as often.
    let (state, plan) = ctx.sql("SELECT * FROM a EXCEPT ALL SELECT * FROM b").await.unwrap().into_parts();
    let optimized = state.optimize(&plan).unwrap();
    assert_eq!(rows_of(DataFrame::new(state.clone(), optimized)).await, ", 1");
    // Not all columns are keys.
    let left = ctx.sql("SELECT column1 AS x, 7 AS y FROM a").await.unwrap().into_unoptimized_plan();
    let right = ctx.sql("SELECT column1 AS x FROM b").await.unwrap().into_unoptimized_plan();
    let plan = LogicalPlanBuilder::from(left)
        .join_detailed(right, JoinType::LeftSemi, (vec!["x"], vec!["x"]), None, NullEquality::NullEqualsNull)
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(rows_of(DataFrame::new(state, plan)).await, "1 7, 1 7, 7, 7");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_that_depend_on_outer_rows_are_refused() {
    let ctx = session(Engine::Overspill).ctx;
    ctx.sql("CREATE TABLE t AS VALUES (1), (2)").await.unwrap().collect().await.unwrap();
    let sql = "SELECT * FROM t o WHERE EXISTS (SELECT 1 FROM t i WHERE i.column1 = o.column1 EXCEPT ALL SELECT 1)";
    let error = ctx.sql(sql).await.unwrap().collect().await.unwrap_err().to_string();
    assert!(error.contains("EXCEPT ALL whose queries refer to columns of the outer query is not supported"), "{error}");
}

/// Hot rows and rows that are there once, in less memory than either side takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_are_counted_by_joins_that_spill() {
    // 0 is there 20 000 times on the left and 12 000 times on the right, others once on the left and up to once on the right.
    let left = "SELECT CASE WHEN value <= 20000 THEN 0 ELSE value END AS x, repeat('x', 40) AS s FROM generate_series(1, 50000)";
    let right = "SELECT CASE WHEN value <= 12000 THEN 0 ELSE value END AS x, repeat('x', 40) AS s FROM generate_series(1, 30000)";
    for (word, expected) in [("EXCEPT", "28000 8000 800010000"), ("INTERSECT", "22000 12000 250005000")] {
        let sql = format!("SELECT count(*), count(*) FILTER (WHERE x = 0), sum(x) FROM ({left} {word} ALL {right}) t");
        for memory in [Memory::Ample, Memory::JoinLimit(1 << 20)] {
            let session = Session::open(Engine::Overspill, &Settings::default(), memory).unwrap();
            let run = Run::of(&session.ctx, session.ctx.sql(&sql).await).await;
            assert_eq!(run.report.foreign_joins, Vec::<String>::new());
            assert_eq!(run.report.spilled(), memory != Memory::Ample, "{memory:?}");
            assert_eq!(rows(&session.ctx, &sql).await, expected, "{sql} in {memory:?}");
        }
    }
}

/// The rule can go when this fails.
#[tokio::test]
async fn datafusion_still_does_not_count_duplicates() {
    let ctx = session(Engine::Stock).ctx;
    assert_eq!(rows(&ctx, "VALUES (1), (2), (2), (3), (3), (3) EXCEPT ALL VALUES (1), (3)").await, "2, 2");
    assert_eq!(rows(&ctx, "VALUES (2), (2), (2) INTERSECT ALL VALUES (2), (2)").await, "2, 2, 2");
}
