//! `CREATE INDEX`, `DROP INDEX` and `SHOW INDEXES` do what they say, or say why not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use overspill::sql;

use super::{metric, refusal, run};
use crate::harness::session::{Engine, Memory, Session, Settings};

const TABLES: [&str; 2] = [
    "CREATE TABLE r AS SELECT (value * 7) % 20011 AS k, value AS p, 'x' AS t, value * 0.5 AS f FROM generate_series(1, 20000)",
    "CREATE TABLE s AS SELECT value AS k FROM generate_series(1, 20)",
];

const JOIN: &str = "SELECT count(*) AS n FROM s JOIN r ON s.k = r.k";

async fn session(memory: Memory) -> Session {
    let session = Session::open(Engine::Overspill, &Settings::default(), memory).unwrap();
    for table in TABLES {
        run(&session.ctx, table).await.unwrap();
    }
    session
}

/// The answer of the join, and how many rows were looked up for it.
async fn join(ctx: &SessionContext) -> (String, usize) {
    let plan = sql::sql(ctx, JOIN).await.unwrap().create_physical_plan().await.unwrap();
    let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
    let text = arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
    (text.lines().nth(3).unwrap().trim_matches(['|', ' ']).to_owned(), metric(&plan, "index_rows"))
}

#[tokio::test]
async fn joins_look_up_until_the_index_is_dropped_or_stale() {
    let session = session(Memory::Ample).await;
    let ctx = &session.ctx;
    assert_eq!(join(ctx).await, ("20".to_owned(), 0));
    run(ctx, "CREATE INDEX i ON r USING btree (k)").await.unwrap();
    assert_eq!(join(ctx).await, ("20".to_owned(), 20));
    run(ctx, "SET overspill.indexes = never").await.unwrap();
    assert_eq!(join(ctx).await, ("20".to_owned(), 0));
    run(ctx, "SET overspill.indexes = auto").await.unwrap();
    // Rows that come later are found as well, those of other partitions too.
    for value in 1..=5 {
        run(ctx, &format!("INSERT INTO r VALUES ({value}, 0, 'y', 1.5), (-1, 0, 'z', 1.5)")).await.unwrap();
    }
    assert_eq!(join(ctx).await, ("25".to_owned(), 25));
    let listed = run(ctx, "SHOW INDEXES").await.unwrap();
    assert!(
        listed.contains("| i    | r     | k      |          | btree | 20010 |") && listed.contains("| fresh |"),
        "{listed}"
    );
    run(ctx, "UPDATE r SET p = 1 WHERE k = 3").await.unwrap();
    assert_eq!(join(ctx).await, ("25".to_owned(), 0));
    let explained = run(ctx, &format!("EXPLAIN {JOIN}")).await.unwrap();
    assert!(explained.contains("index i is stale: rows were changed or deleted"), "{explained}");
    let listed = run(ctx, "SHOW INDEXES").await.unwrap();
    assert!(listed.contains("stale: rows were changed or deleted"), "{listed}");
    run(ctx, "DROP INDEX i").await.unwrap();
    run(ctx, "CREATE INDEX IF NOT EXISTS i ON r (k) USING radix_spline").await.unwrap();
    assert_eq!(join(ctx).await, ("25".to_owned(), 25));
    run(ctx, "CREATE INDEX IF NOT EXISTS i ON s (k)").await.unwrap();
    run(ctx, "DROP INDEX i").await.unwrap();
    run(ctx, "DROP INDEX IF EXISTS i").await.unwrap();
    assert_eq!(join(ctx).await, ("25".to_owned(), 0));
    assert!(!run(ctx, "SHOW INDEXES").await.unwrap().contains("| i "));
}

/// A cell of the only row of an answer.
async fn only(ctx: &SessionContext, query: &str) -> String {
    run(ctx, query).await.unwrap().lines().nth(3).unwrap().trim_matches(['|', ' ']).to_owned()
}

#[tokio::test]
async fn scans_that_are_kept_follow_every_change() {
    let session = session(Memory::Ample).await;
    let ctx = &session.ctx;
    let queries = [
        "SELECT count(*) || ' ' || sum(p) FROM r",
        "SELECT count(DISTINCT k) || ' ' || max(t) FROM r",
        "SELECT sum(p) || ' ' || min(t) FROM s JOIN r ON s.k = r.k",
        "SELECT sum(f) FROM r WHERE k < 50",
    ];
    let changes = [
        "INSERT INTO r VALUES (3, 100, 'a', 0.5)",
        "UPDATE r SET p = p + 1 WHERE k < 10",
        "REINDEX i",
        "INSERT INTO r SELECT k + 1, p, t, f FROM r WHERE k < 30",
        "DELETE FROM r WHERE k = 4",
        "DROP INDEX i",
        "UPDATE r SET t = 'b' WHERE k = 5",
        "CREATE INDEX i ON r USING harmonia (k)",
        "INSERT OVERWRITE INTO r SELECT value, value + 1, 'c', 1.0 FROM generate_series(1, 40)",
        "CREATE INDEX j ON r USING btree (p)",
        "TRUNCATE TABLE r",
    ];
    // The same statements, without an index.
    let plain = self::session(Memory::Ample).await;
    run(ctx, "CREATE INDEX i ON r (k)").await.unwrap();
    for change in changes {
        run(ctx, change).await.unwrap_or_else(|error| panic!("{change}: {error}"));
        if !change.contains("INDEX") {
            run(&plain.ctx, change).await.unwrap();
        }
        // The second answer comes from scans that the first one left.
        for query in queries.into_iter().chain(queries) {
            assert_eq!(only(ctx, query).await, only(&plain.ctx, query).await, "{query} after {change}");
        }
    }
}

#[tokio::test]
async fn a_kept_scan_shows_its_sizes_where_the_session_wants_them() {
    let session = session(Memory::Ample).await;
    let ctx = &session.ctx;
    run(ctx, "CREATE INDEX i ON r (k)").await.unwrap();
    assert!(run(ctx, "EXPLAIN SELECT sum(p) FROM r").await.unwrap().contains("partition_sizes"));
    run(ctx, "SET datafusion.explain.show_sizes = false").await.unwrap();
    assert!(!run(ctx, "EXPLAIN SELECT sum(p) FROM r").await.unwrap().contains("partition_sizes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_follow_an_insert_see_its_rows() {
    let session = session(Memory::Ample).await;
    let ctx = &session.ctx;
    run(ctx, "CREATE INDEX i ON r (k)").await.unwrap();
    let inserted = Arc::new(AtomicUsize::new(20_000));
    let readers = (0..4).map(|_| {
        let (ctx, inserted) = (ctx.clone(), Arc::clone(&inserted));
        tokio::spawn(async move {
            while inserted.load(Ordering::SeqCst) < 20_100 {
                let before = inserted.load(Ordering::SeqCst);
                let rows: usize = only(&ctx, "SELECT count(k) FROM r").await.parse().unwrap();
                assert!(rows >= before, "{rows} rows after {before}");
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for _ in 0..100 {
        run(ctx, "INSERT INTO r VALUES (1, 2, 'x', 0.5)").await.unwrap();
        inserted.fetch_add(1, Ordering::SeqCst);
    }
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test]
async fn what_indexes_do_not_support_is_refused_by_name() {
    let session = session(Memory::Ample).await;
    let ctx = &session.ctx;
    let plain = ctx.table("s").await.unwrap().collect().await.unwrap();
    ctx.register_table("m", Arc::new(MemTable::try_new(plain[0].schema(), vec![plain]).unwrap())).unwrap();
    run(ctx, "CREATE VIEW w AS SELECT * FROM r").await.unwrap();
    run(ctx, "CREATE INDEX taken ON s (k)").await.unwrap();
    for (statement, reason) in [
        ("CREATE INDEX i ON nowhere (k)", "nowhere"),
        (
            "CREATE INDEX i ON m (k)",
            "only tables in memory, which CREATE TABLE … AS makes of any query, and files of Parquet and Arrow have",
        ),
        (
            "CREATE INDEX i ON w (k)",
            "only tables in memory, which CREATE TABLE … AS makes of any query, and files of Parquet and Arrow have",
        ),
        ("CREATE INDEX i ON r (z)", "Table 'r' has no column 'z', but: k, p, t, f"),
        ("CREATE INDEX i ON r (f)", "Column 'f' of type Float64 cannot be indexed"),
        ("CREATE INDEX taken ON r (k)", "Index 'taken' already exists"),
        ("CREATE INDEX i ON r USING hash (k)", "There is no index of kind 'hash', but: binary_search, btree"),
        ("CREATE INDEX i ON r USING btree (k) USING btree", "USING twice"),
        ("CREATE INDEX i ON r (k, p)", "over one column, and 2 are named"),
        ("CREATE INDEX i ON r (k + 1)", "not over the expression k + 1"),
        ("CREATE INDEX i ON r (k DESC)", "has no order"),
        ("CREATE UNIQUE INDEX i ON r (k)", "does not support UNIQUE"),
        ("CREATE INDEX i ON r (k) INCLUDE (p)", "INCLUDE is for indexes of files"),
        ("CREATE INDEX i ON r (k) WHERE k > 1", "does not support WHERE"),
        ("CREATE INDEX a.i ON r (k)", "has no schema"),
        ("DROP INDEX i", "Index 'i' does not exist"),
    ] {
        let error = refusal(ctx, statement).await;
        assert!(error.contains(reason), "{statement}: {error}");
    }
    assert!(run(ctx, "SHOW INDEXES").await.unwrap().contains("taken"));
}

#[tokio::test]
async fn indexes_are_counted_against_the_memory_limit() {
    let session = session(Memory::Greedy(1_500_000)).await;
    let ctx = &session.ctx;
    let before = session.pool.reserved();
    run(ctx, "CREATE INDEX i ON r (k)").await.unwrap();
    let bytes = session.pool.reserved() - before;
    assert!((12 * 20_000..14 * 20_000).contains(&bytes), "{bytes}");
    run(ctx, "DROP INDEX i").await.unwrap();
    assert_eq!(session.pool.reserved(), before);
    let session = self::session(Memory::Greedy(before + 100_000)).await;
    let error = refusal(&session.ctx, "CREATE INDEX i ON r (k)").await;
    assert!(error.contains("Index 'i' on table 'r' does not fit the memory limit"), "{error}");
    assert!(!run(&session.ctx, "SHOW INDEXES").await.unwrap().contains("| i "));
}

#[tokio::test]
async fn an_index_without_memory_for_inserted_rows_is_stale() {
    let session = session(Memory::Greedy(6_000_000)).await;
    let ctx = &session.ctx;
    run(ctx, "CREATE INDEX i ON r (k)").await.unwrap();
    let mut inserted = 0;
    // A join needs some memory as well.
    while session.pool.reserved() < 4_000_000 {
        run(ctx, "INSERT INTO r SELECT 5, value, 'x', 1.0 FROM generate_series(1, 4000)").await.unwrap();
        inserted += 4000;
        assert_eq!(join(ctx).await.0, (20 + inserted).to_string());
    }
    while run(ctx, "INSERT INTO r SELECT 5, value, 'x', 1.0 FROM generate_series(1, 4000)").await.is_ok() {
        inserted += 4000;
    }
    let listed = run(ctx, "SHOW INDEXES").await.unwrap();
    assert!(listed.contains("stale: rows were inserted, and: "), "{listed}");
    let counted = run(ctx, "SELECT count(*) FROM r").await.unwrap();
    assert!(counted.contains(&(20_000 + inserted).to_string()), "{counted}");
}

#[tokio::test]
async fn few_keys_are_looked_up_and_many_are_not() {
    let session = session(Memory::Ample).await;
    let ctx = &session.ctx;
    run(ctx, "CREATE INDEX i ON r (k)").await.unwrap();
    for (keys, looks_up, reason) in [(100, true, ""), (15_000, false, "more keys than are worth a lookup each")] {
        let table = format!("CREATE OR REPLACE TABLE s AS SELECT value AS k FROM generate_series(1, {keys})");
        run(ctx, &table).await.unwrap();
        let statement = JOIN;
        let plan = sql::sql(ctx, statement).await.unwrap().create_physical_plan().await.unwrap();
        collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        assert_eq!(metric(&plan, "index_joins") > 0, looks_up, "{statement}");
        let explained = run(ctx, &format!("EXPLAIN ANALYZE VERBOSE {statement}")).await.unwrap();
        assert!(explained.contains(reason) && explained.contains("index_refusals{") != looks_up, "{explained}");
    }
    // A few keys with very many rows.
    run(ctx, "CREATE TABLE skewed AS SELECT value % 3 AS k, value AS p FROM generate_series(1, 20000)").await.unwrap();
    run(ctx, "CREATE INDEX j ON skewed (k)").await.unwrap();
    let statement = "EXPLAIN ANALYZE VERBOSE SELECT count(*) FROM (VALUES (1), (2)) s(k) JOIN skewed r ON s.k = r.k";
    let explained = run(ctx, statement).await.unwrap();
    assert!(explained.contains("more matches than are worth fetching each"), "{explained}");
}

/// Rows of a query, in their order, and how many joins looked rows up.
async fn looked_up(ctx: &SessionContext, query: &str) -> (String, usize) {
    let plan = sql::sql(ctx, query).await.unwrap().create_physical_plan().await.unwrap();
    let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
    (arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string(), metric(&plan, "index_joins"))
}

#[tokio::test]
async fn members_are_looked_up_unless_nulls_decide() {
    let session = session(Memory::Ample).await;
    let ctx = &session.ctx;
    let (values, with_null) = ("(VALUES (1), (5), (25000))", "(VALUES (1), (5), (25000), (NULL))");
    run(ctx, "CREATE TABLE m AS SELECT value AS k FROM generate_series(1, 20000)").await.unwrap();
    run(ctx, "CREATE TABLE n AS SELECT NULLIF(value, 7) AS k FROM generate_series(1, 20000)").await.unwrap();
    for (queried, predicate) in [
        ("s.k", "s.k NOT IN (SELECT k FROM {r})"),
        ("s.k", "s.k NOT IN (SELECT k FROM {r}) OR s.k = 5"),
        ("s.k, s.k IN (SELECT k FROM {r}) AS m", "true"),
        ("s.k, s.k NOT IN (SELECT k FROM {r} WHERE k > 30000) AS m", "true"),
    ] {
        for (s, r, looks_up) in
            [(values, "m", true), (with_null, "m", false), (values, "n", false), (with_null, "n", false)]
        {
            let query = format!("SELECT {queried} FROM {s} s(k) WHERE {predicate} ORDER BY s.k").replace("{r}", r);
            run(ctx, "DROP INDEX IF EXISTS i").await.unwrap();
            let scanned = looked_up(ctx, &query).await;
            run(ctx, &format!("CREATE INDEX i ON {r} (k)")).await.unwrap();
            let found = looked_up(ctx, &query).await;
            assert_eq!((&found.0, found.1 > 0, scanned.1), (&scanned.0, looks_up, 0), "{query}");
        }
    }
}
