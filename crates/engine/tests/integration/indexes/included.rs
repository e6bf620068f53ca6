//! Indexes of files that include columns.

use std::fs;
use std::sync::Arc;

use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{collect, execute_stream};
use futures::TryStreamExt;
use overspill::sql;

use super::files::{Folder, names};
use super::{metric, run};

/// Whether the index `i` is read in place of the files of this query.
async fn is_index_only(folder: &Folder, query: &str) -> bool {
    let explained = folder.run(&format!("EXPLAIN {query}")).await;
    assert!(explained.contains("index=i, column=k"), "{query}: {explained}");
    explained.contains("index_only=true")
}

#[tokio::test]
async fn queries_of_included_columns_read_the_index_alone() {
    let folder = Folder::with(&["a.parquet", "b.parquet", "c.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    let join = "SELECT sum(p), count(*) FROM s JOIN r ON s.k = r.k";
    let (joined, _) = folder.found(join).await;
    folder.run("CREATE INDEX i ON r (k) INCLUDE (p)").await;
    assert!(is_index_only(&folder, join).await);
    let (found, rows) = folder.found(join).await;
    assert!(found == joined && rows > 10, "{rows}: {found}, {joined}");
    assert_eq!(folder.point("r").await, ("2".to_owned(), true));
    // All rows of a range of keys are read in place of a scan, as they lie together.
    folder.run("SET overspill.indexes = auto").await;
    let range = "SELECT count(*) FROM r WHERE k BETWEEN 100 AND 2099";
    assert!(is_index_only(&folder, range).await);
    let (count, rows) = folder.found(range).await;
    assert_eq!(count, rows.to_string());
    for pushdown in [true, false] {
        folder.run(&format!("SET datafusion.execution.parquet.pushdown_filters = {pushdown}")).await;
        let filtered = "SELECT count(*) FROM r WHERE k BETWEEN 100 AND 2099 AND p % 3 = 1 AND p > 40";
        folder.run("SET overspill.indexes = never").await;
        let scanned = folder.found(filtered).await;
        folder.run("SET overspill.indexes = always").await;
        let (found, rows) = folder.found(filtered).await;
        assert_eq!((found, rows > 0, scanned.1), (scanned.0, true, 0));
    }
    // Some of the files alone are read themselves.
    folder.run("CREATE EXTERNAL TABLE one STORED AS PARQUET LOCATION '{}/a.parquet'").await;
    assert!(!is_index_only(&folder, "SELECT sum(p) FROM one WHERE k = 14").await);
    assert_eq!(folder.point("one").await, ("2".to_owned(), true));
    let listed = folder.run("SHOW INDEXES").await;
    assert!(listed.contains("| k      | p        | radix_spline | 15000 |"), "{listed}");
    assert_eq!(names(&folder.path(".overspill")), ["i.overspill-index"]);
}

#[tokio::test]
async fn columns_that_are_not_included_are_read_from_the_files() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("COPY (SELECT k, p, p % 7 AS q, [p, k] AS l FROM r) TO '{}/t/t.parquet'").await;
    folder.run("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}/t/'").await;
    folder.run("CREATE INDEX i ON t (k) INCLUDE (q, l)").await;
    for (query, expected) in [
        ("SELECT sum(q) FROM t WHERE k = 14", true),
        ("SELECT count(*) FROM t WHERE k = 14", true),
        ("SELECT sum(l[1]) FROM t WHERE k = 14 AND q = 2", true),
        ("SELECT sum(p) FROM t WHERE k = 14", false),
        ("SELECT sum(q) FROM t WHERE k = 14 AND p = 2", false),
        ("SELECT sum(q) FROM t WHERE k = 14 AND input_file_name() IS NOT NULL", false),
        ("SELECT max(file_row_index()) FROM t WHERE k = 14", false),
    ] {
        assert_eq!(is_index_only(&folder, query).await, expected, "{query}");
        let (found, rows) = folder.found(query).await;
        folder.run("SET overspill.indexes = never").await;
        assert_eq!((folder.found(query).await.0, rows), (found, 1), "{query}");
        folder.run("SET overspill.indexes = always").await;
    }
    // Of two indexes the one that has all columns.
    folder.run("CREATE INDEX j ON t (k) INCLUDE (p)").await;
    let explained = folder.run("EXPLAIN SELECT sum(p) FROM t WHERE k = 14").await;
    assert!(explained.contains("index=j") && explained.contains("index_only=true"), "{explained}");
    // A table may read the same files as other types.
    folder.run("CREATE EXTERNAL TABLE u (k BIGINT, q VARCHAR, l BIGINT[]) STORED AS PARQUET LOCATION '{}/t/'").await;
    assert!(!is_index_only(&folder, "SELECT max(q) FROM u WHERE k = 14").await);
    assert_eq!(folder.found("SELECT max(q) FROM u WHERE k = 14").await, ("2".to_owned(), 1));
}

#[tokio::test]
async fn rows_come_in_the_order_of_the_files() {
    let folder = Folder::with(&["a.parquet"]).await;
    for part in 0..2 {
        folder
            .run(&format!("COPY (SELECT k, p FROM r WHERE p % 2 = {part} ORDER BY p) TO '{{}}/o/{part}.parquet'"))
            .await;
    }
    folder.run("CREATE EXTERNAL TABLE o STORED AS PARQUET WITH ORDER (p) LOCATION '{}/o/'").await;
    folder.run("CREATE INDEX i ON o (k) INCLUDE (p)").await;
    for query in
        ["SELECT p FROM o WHERE k < 3000 ORDER BY p", "SELECT p, count(*) FROM o WHERE k < 3000 GROUP BY p ORDER BY p"]
    {
        folder.run("SET overspill.indexes = never").await;
        let explained = folder.run(&format!("EXPLAIN {query}")).await;
        assert!(!explained.contains("SortExec"), "{explained}");
        let scanned = folder.run(query).await;
        folder.run("SET overspill.indexes = always").await;
        assert!(is_index_only(&folder, query).await);
        let found = folder.run(query).await;
        assert!(found.lines().count() > 500 && found == scanned, "{query}: {found}");
    }
    // Of one that is of two orders at once only the files are.
    folder.run("CREATE EXTERNAL TABLE t STORED AS PARQUET WITH ORDER (p) WITH ORDER (k) LOCATION '{}/o/'").await;
    assert!(!is_index_only(&folder, "SELECT p FROM t WHERE k < 3000 ORDER BY p").await);
}

#[tokio::test]
async fn columns_of_all_types_and_nulls_are_included() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    let columns = [
        ("text", "CASE WHEN p % 3 = 0 THEN NULL ELSE 'text number ' || CAST(p AS VARCHAR) END"),
        ("bytes", "arrow_cast('b' || CAST(p AS VARCHAR), 'Binary')"),
        ("many", "arrow_cast('category ' || CAST(p % 5 AS VARCHAR), 'Dictionary(Int32, Utf8)')"),
        ("price", "CAST(p AS DECIMAL(30, 4)) / 7"),
        ("at", "arrow_cast(p * 1000003, 'Timestamp(Microsecond, Some(\"+02:00\"))')"),
        ("span", "arrow_cast(p, 'Duration(Second)')"),
        ("half", "arrow_cast(p / 3.0, 'Float32')"),
        ("pair", "named_struct('a', p, 'b', [p, NULL])"),
        ("yes", "p % 2 = 0"),
        ("none", "arrow_cast(NULL, 'Int16')"),
    ];
    // DataFusion writes no Arrow files of several batches with dictionaries.
    let in_arrow = |made: &str| made.replace("Dictionary(Int32, Utf8)", "LargeUtf8");
    let made: Vec<_> = columns.iter().map(|(name, made)| format!("{made} AS \"{name}\"")).collect();
    let rows = format!("SELECT CASE WHEN p % 11 = 0 THEN NULL ELSE k % 1000 END AS k, {} FROM r", made.join(", "));
    let names: Vec<_> = columns.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    for (name, format) in [("p", "parquet"), ("f", "arrow")] {
        let rows = if format == "arrow" { in_arrow(&rows) } else { rows.clone() };
        folder.run(&format!("COPY ({rows}) TO '{{}}/{name}/t.{format}' STORED AS {format}")).await;
        folder.run(&format!("CREATE EXTERNAL TABLE {name} STORED AS {format} LOCATION '{{}}/{name}/'")).await;
        folder.run(&format!("CREATE INDEX i ON {name} (k) INCLUDE ({})", names.join(", "))).await;
        let query =
            format!("SELECT * FROM {name} WHERE k IN (3, 14, 500, 999) OR k BETWEEN 40 AND 60 ORDER BY k, text, bytes");
        assert!(is_index_only(&folder, &query).await);
        let found = folder.run(&query).await;
        folder.run("SET overspill.indexes = never").await;
        let scanned = folder.run(&query).await;
        folder.run("SET overspill.indexes = always").await;
        assert!(found.lines().count() > 80 && found == scanned, "{found}\n{scanned}");
    }
}

#[tokio::test]
async fn reindex_includes_the_same_columns() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("CREATE INDEX i ON r (k) INCLUDE (p)").await;
    folder.write("a.parquet", 5000).await;
    assert_eq!(folder.point("r").await, (String::new(), false));
    folder.run("REINDEX i").await;
    let query = "SELECT sum(p) FROM r WHERE k = (5001 * 7) % 20011";
    assert!(is_index_only(&folder, query).await);
    assert_eq!(folder.found(query).await, ("5001".to_owned(), 1));
}

#[tokio::test]
async fn a_query_goes_on_with_an_index_that_is_dropped() {
    let folder = Folder::with(&["a.parquet", "b.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("SET datafusion.execution.batch_size = 50").await;
    folder.run("CREATE INDEX i ON r (k) INCLUDE (p)").await;
    let query = "SELECT p FROM r WHERE k < 15000";
    let plan = sql::sql(folder.ctx(), query).await.unwrap().create_physical_plan().await.unwrap();
    let mut rows = execute_stream(Arc::clone(&plan), folder.ctx().task_ctx()).unwrap();
    let first = rows.try_next().await.unwrap().unwrap();
    folder.run("DROP INDEX i").await;
    let rest: Vec<_> = rows.try_collect().await.unwrap();
    let count: usize = first.num_rows() + rest.iter().map(|batch| batch.num_rows()).sum::<usize>();
    folder.run("SET overspill.indexes = never").await;
    let (expected, _) = folder.found("SELECT count(*) FROM r WHERE k < 15000").await;
    assert_eq!(count.to_string(), expected);
    // One that was planned before finds no index any more, and scans.
    let plan = reset_plan_states(plan).unwrap();
    collect(Arc::clone(&plan), folder.ctx().task_ctx()).await.unwrap();
    assert_eq!(metric(&plan, "index_rows"), 0);
}

#[tokio::test]
async fn damaged_columns_are_refused() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("CREATE INDEX i ON r (k) INCLUDE (p)").await;
    let path = folder.path(".overspill/i.overspill-index");
    let intact = fs::read(&path).unwrap();
    let query = "SELECT sum(p) FROM r WHERE k < 20000";
    let (sum, _) = folder.found(query).await;
    // Blocks of 12 bytes a row and their directory come first.
    let first = 16 + 5000 * 12 + 10 * 16;
    let (mut scanned, mut refused) = (0, 0);
    for place in (first..intact.len()).step_by(499) {
        let mut bytes = intact.clone();
        bytes[place] ^= 4;
        fs::write(&path, bytes).unwrap();
        match run(folder.ctx(), query).await {
            Ok(found) => {
                assert!(found.contains(&sum), "{place}: {found}");
                scanned += 1;
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("it is damaged") && error.contains("Drop the index"), "{place}: {error}");
                refused += 1;
            }
        }
    }
    assert!(scanned > 0 && scanned + refused > 40, "{scanned} scanned, {refused} refused");
    // Cut off while it is in use.
    fs::write(&path, &intact).unwrap();
    let plan = sql::sql(folder.ctx(), query).await.unwrap().create_physical_plan().await.unwrap();
    fs::write(&path, &intact[..first + 1000]).unwrap();
    collect(Arc::clone(&plan), folder.ctx().task_ctx()).await.unwrap();
    assert_eq!((metric(&plan, "index_rows"), metric(&plan, "index_refusals")), (0, 1));
}

#[tokio::test]
async fn what_cannot_be_included_is_said() {
    let folder = Folder::with(&["y=1/a.parquet", "y=2/a.parquet"]).await;
    folder
        .run("CREATE EXTERNAL TABLE t (k BIGINT, p BIGINT, y INT) STORED AS PARQUET PARTITIONED BY (y) LOCATION '{}/'")
        .await;
    for (statement, reason) in [
        ("CREATE INDEX i ON t (k) INCLUDE (y)", "Column 'y' cannot be included: it is in the names of folders"),
        ("CREATE INDEX i ON t (k) INCLUDE (p, p)", "Column 'p' is named twice"),
        ("CREATE INDEX i ON t (k) INCLUDE (k)", "Column 'k' is named twice"),
        ("CREATE INDEX i ON t (k) INCLUDE (z)", "Table 't' has no column 'z', but: k, p, y"),
        ("CREATE INDEX i ON s (k) INCLUDE (p)", "INCLUDE is for indexes of files"),
    ] {
        let error = folder.refusal(statement).await;
        assert!(error.contains(reason), "{statement}: {error}");
    }
    folder.run("COPY (SELECT 1 AS k, INTERVAL '1 month' AS v) TO '{}/v/v.arrow' STORED AS arrow").await;
    folder.run("CREATE EXTERNAL TABLE v STORED AS ARROW LOCATION '{}/v/'").await;
    let error = folder.refusal("CREATE INDEX i ON v (k) INCLUDE (v)").await;
    assert!(error.contains("Index 'i' cannot include a column of a type that Parquet does not have"), "{error}");
    assert_eq!(names(&folder.path("v")), ["v.arrow"]);
    folder.run("SET overspill.indexes = always").await;
    folder.run("CREATE INDEX i ON t (k) INCLUDE (p)").await;
    assert!(is_index_only(&folder, "SELECT sum(p) FROM t WHERE k = 14").await);
    assert_eq!(folder.point("t").await, ("2".to_owned(), true));
    for query in ["SELECT sum(y) FROM t WHERE k = 14", "SELECT sum(p) FROM t WHERE k = 14 AND y = 1"] {
        assert!(!is_index_only(&folder, query).await);
    }
}
