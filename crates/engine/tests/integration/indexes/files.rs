//! Indexes of Parquet files: where they are, when they are used, and when not.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use overspill::sql;
use tempfile::TempDir;

use super::{metric, refusal, run};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// A session, and a folder of files.
pub(super) struct Folder {
    session: Session,
    path: TempDir,
}

impl Folder {
    /// With these files of 5,000 rows each, and a table `r` over all of them.
    pub(super) async fn with(files: &[&str]) -> Self {
        let folder = Self {
            session: Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap(),
            path: tempfile::tempdir().unwrap(),
        };
        folder.run("SET datafusion.execution.parquet.max_row_group_size = 1000").await;
        for (number, file) in files.iter().enumerate() {
            folder.write(file, number * 5000).await;
        }
        if files.iter().any(|file| !file.contains('/') || file.contains('=')) {
            folder.run(TABLE).await;
        }
        folder.run("CREATE TABLE s AS SELECT value AS k FROM generate_series(1, 20)").await;
        folder
    }

    pub(super) fn ctx(&self) -> &SessionContext {
        &self.session.ctx
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.path.path().join(file)
    }

    /// Runs a statement in which `{}` is the folder.
    pub(super) async fn run(&self, statement: &str) -> String {
        run(self.ctx(), &self.text(statement)).await.unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    pub(super) async fn refusal(&self, statement: &str) -> String {
        refusal(self.ctx(), &self.text(statement)).await
    }

    fn text(&self, statement: &str) -> String {
        statement.replace("{}", self.path.path().to_str().unwrap())
    }

    /// Writes a file of rows that begin with this number.
    pub(super) async fn write(&self, file: &str, first: usize) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        let rows =
            format!("SELECT (value * 7) % 20011 AS k, value AS p FROM generate_series({first}, {})", first + 4999);
        self.run(&format!("COPY ({rows}) TO '{{}}/{file}'")).await;
    }

    /// The number that a query returns, and the rows that an index has found for it.
    pub(super) async fn found(&self, query: &str) -> (String, usize) {
        let plan = sql::sql(self.ctx(), &self.text(query)).await.unwrap().create_physical_plan().await.unwrap();
        let rows = collect(Arc::clone(&plan), self.ctx().task_ctx()).await.unwrap();
        let text = arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        (text.lines().nth(3).unwrap().trim_matches(['|', ' ']).to_owned(), metric(&plan, "index_rows"))
    }

    /// The sum of `p` where `k = 14`, and whether an index has found the row.
    pub(super) async fn point(&self, table: &str) -> (String, bool) {
        let (sum, rows) = self.found(&format!("SELECT sum(p) FROM {table} WHERE k = 14")).await;
        (sum, rows > 0)
    }
}

const TABLE: &str = "CREATE EXTERNAL TABLE r STORED AS PARQUET LOCATION '{}/'";

const POINT: &str = "SELECT sum(p) FROM r WHERE k = 14";

#[tokio::test]
async fn filters_and_joins_read_the_pages_that_have_their_rows() {
    let folder = Folder::with(&["a.parquet", "b.parquet", "c d.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    let join = "SELECT sum(p) FROM s JOIN r ON s.k = r.k";
    let (sum, none) = folder.found(join).await;
    assert_eq!((folder.point("r").await, none), (("2".to_owned(), false), 0));
    folder.run("CREATE INDEX i ON r USING harmonia (k)").await;
    assert_eq!(folder.point("r").await, ("2".to_owned(), true));
    let (same, rows) = folder.found(join).await;
    assert!(rows > 10 && same == sum, "{rows}: {same}, {sum}");
    let explained = folder.run(&format!("EXPLAIN {POINT}")).await;
    assert!(explained.contains("IndexScanExec: index=i, column=k, kind=harmonia, ranges=1"), "{explained}");
    let explained = folder.run(&format!("EXPLAIN {join}")).await;
    assert!(explained.contains("IndexLookupExec: index=i, column=k, kind=harmonia"), "{explained}");
    // The same files by other names, and each by itself.
    let pattern = "SELECT sum(p) FROM r2 WHERE k = 14";
    folder.run("CREATE EXTERNAL TABLE r2 STORED AS PARQUET LOCATION '{}/a.parquet'").await;
    assert_eq!(folder.found(pattern).await, ("2".to_owned(), 1));
    folder.run("SET overspill.indexes = never").await;
    assert!(!folder.point("r").await.1);
    let listed = folder.run("SHOW INDEXES").await;
    assert!(
        listed.contains("| i    | r     | k      |          | harmonia | 15000 |") && listed.contains("| fresh |"),
        "{listed}"
    );
    let read = metric_of_bytes(&folder, "never").await;
    assert!(metric_of_bytes(&folder, "always").await * 5 < read, "{read}");
    assert_eq!(names(&folder.path(".overspill")), ["i.overspill-index"]);
    folder.run("DROP INDEX i").await;
    assert!(names(&folder.path(".overspill")).is_empty());
    folder.run("SET overspill.indexes = always").await;
    assert!(!folder.point("r").await.1);
}

/// The bytes that a join of few keys reads.
async fn metric_of_bytes(folder: &Folder, indexes: &str) -> usize {
    folder.run(&format!("SET overspill.indexes = {indexes}")).await;
    let query = "SELECT sum(p) FROM (VALUES (14)) s(k) JOIN r ON s.k = r.k";
    let plan = sql::sql(folder.ctx(), query).await.unwrap().create_physical_plan().await.unwrap();
    collect(Arc::clone(&plan), folder.ctx().task_ctx()).await.unwrap();
    metric(&plan, "bytes_scanned")
}

/// The names in a folder, in order.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_index_of_changed_files_is_stale() {
    let folder = Folder::with(&["a.parquet", "b.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("CREATE INDEX i ON r (k)").await;
    assert!(folder.point("r").await.1);
    // A file of equal size and time of change at the same place.
    let path = folder.path("b.parquet");
    let (bytes, times) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap());
    fs::write(&path, &bytes).unwrap();
    let modified = FileTimes::new().set_modified(times.modified().unwrap());
    File::options().write(true).open(&path).unwrap().set_times(modified).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), times.modified().unwrap());
    assert_eq!(folder.point("r").await, ("2".to_owned(), false));
    let explained = folder.run(&format!("EXPLAIN {POINT}")).await;
    assert!(
        explained.contains("index=i, column=k, stale: ") && explained.contains("b.parquet was changed"),
        "{explained}"
    );
    let explained = folder.run("EXPLAIN SELECT * FROM s JOIN r ON s.k = r.k").await;
    assert!(explained.contains("IndexLookupExec: index=i, column=k, stale: "), "{explained}");
    let listed = folder.run("SHOW INDEXES").await;
    assert!(listed.contains("stale: ") && listed.contains("b.parquet was changed"), "{listed}");
    let taken = folder.refusal("CREATE INDEX i ON r (k)").await;
    assert!(taken.contains("Index 'i' already exists"), "{taken}");
    folder.run("CREATE INDEX j ON r (k)").await;
    assert_eq!(folder.point("r").await, ("2".to_owned(), true));
    // One that is gone, and one that is new.
    fs::remove_file(&path).unwrap();
    folder.run("DROP TABLE r").await;
    folder.run(TABLE).await;
    assert_eq!(folder.point("r").await, ("2".to_owned(), true));
    let listed = folder.run("SHOW INDEXES").await;
    assert!(listed.contains("b.parquet was removed"), "{listed}");
    folder.write("c.parquet", 10_000).await;
    folder.run("DROP TABLE r").await;
    folder.run(TABLE).await;
    assert_eq!(folder.point("r").await, ("2".to_owned(), false));
    let explained = folder.run(&format!("EXPLAIN {POINT}")).await;
    assert!(explained.contains("c.parquet is not in it"), "{explained}");
}

#[tokio::test]
async fn reindex_makes_stale_indexes_fresh() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("CREATE INDEX i ON r USING btree (k)").await;
    folder.run("CREATE INDEX j ON r (p)").await;
    for statement in ["REINDEX INDEX i", "REINDEX TABLE r", "reindex r"] {
        // Other rows, at the same place.
        folder.write("a.parquet", 0).await;
        assert_eq!(folder.point("r").await, ("2".to_owned(), false), "{statement}");
        folder.run(statement).await;
        assert_eq!(folder.point("r").await, ("2".to_owned(), true), "{statement}");
    }
    let listed = folder.run("SHOW INDEXES FROM r").await;
    assert!(listed.contains("| btree ") && !listed.contains("stale"), "{listed}");
    // In memory.
    folder.run("CREATE TABLE m AS SELECT value AS k, value AS p FROM generate_series(1, 1000)").await;
    folder.run("CREATE INDEX of_m ON m (k)").await;
    folder.run("UPDATE m SET p = 7 WHERE k = 14").await;
    assert_eq!(folder.point("m").await, ("7".to_owned(), false));
    folder.run("REINDEX of_m").await;
    assert_eq!(folder.point("m").await, ("7".to_owned(), true));
    for (statement, reason) in [
        ("REINDEX INDEX nothing", "There is neither an index nor a table 'nothing' that has indexes"),
        ("VACUUM FULL REINDEX r", "REINDEX takes the name of an index or of a table"),
    ] {
        let error = folder.refusal(statement).await;
        assert!(error.contains(reason), "{statement}: {error}");
    }
    fs::write(folder.path(".overspill/i.overspill-index"), "damaged").unwrap();
    let error = folder.refusal("REINDEX i").await;
    assert!(error.contains("Drop the index, and create it again"), "{error}");
}

#[tokio::test]
async fn a_file_that_changes_after_planning_is_scanned() {
    let folder = Folder::with(&["a.parquet", "b.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("CREATE INDEX i ON r (k)").await;
    let plan = sql::sql(folder.ctx(), POINT).await.unwrap().create_physical_plan().await.unwrap();
    let path = folder.path("a.parquet");
    fs::write(&path, fs::read(&path).unwrap()).unwrap();
    collect(Arc::clone(&plan), folder.ctx().task_ctx()).await.unwrap();
    assert_eq!((metric(&plan, "index_rows"), metric(&plan, "index_refusals")), (0, 1));
}

#[tokio::test]
async fn a_damaged_index_is_not_used() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder.run("CREATE INDEX i ON r (k)").await;
    let path = folder.path(".overspill/i.overspill-index");
    let intact = fs::read(&path).unwrap();
    let damaged = |place: usize| {
        let mut bytes = intact.clone();
        bytes[place] ^= 1;
        bytes
    };
    // In a block, in the directory, in the description; cut off; of nothing.
    for bytes in
        [damaged(20), damaged(60_100), damaged(intact.len() - 100), intact[..intact.len() / 2].to_vec(), vec![]]
    {
        fs::write(&path, bytes).unwrap();
        assert_eq!(folder.point("r").await, ("2".to_owned(), false));
    }
    let listed = folder.run("SHOW INDEXES").await;
    assert!(listed.contains("i.overspill-index: it is not an index of this version, or has been cut off"), "{listed}");
    fs::write(&path, damaged(20)).unwrap();
    let explained = folder.run(&format!("EXPLAIN ANALYZE VERBOSE {POINT}")).await;
    assert!(explained.contains("it is damaged: the checksum of block 0 does not match"), "{explained}");
    fs::write(&path, intact).unwrap();
    assert_eq!(folder.point("r").await, ("2".to_owned(), true));
    // An index of another table under this name is known by its files.
    folder.run("COPY (SELECT 14 AS k, 1 AS p) TO '{}/other/o.parquet'").await;
    fs::create_dir(folder.path("other/.overspill")).unwrap();
    fs::copy(&path, folder.path("other/.overspill/i.overspill-index")).unwrap();
    folder.run("CREATE EXTERNAL TABLE o STORED AS PARQUET LOCATION '{}/other/o.parquet'").await;
    assert_eq!(folder.point("o").await, ("1".to_owned(), false));
}

#[tokio::test]
async fn folders_by_key_have_one_index() {
    let folder = Folder::with(&["y=1/m=1/a.parquet", "y=1/m=2/a.parquet", "y=2/m=1/a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    folder
        .run("CREATE EXTERNAL TABLE t (k BIGINT, p BIGINT, y INT, m INT) STORED AS PARQUET PARTITIONED BY (y, m) LOCATION '{}/'")
        .await;
    folder.run("CREATE INDEX i ON t (k)").await;
    assert_eq!(names(&folder.path(".overspill")), ["i.overspill-index"]);
    assert_eq!(folder.found("SELECT count(*) FROM t WHERE k = 7").await, ("1".to_owned(), 1));
    // Only the files of the folders that are asked for are scanned.
    assert_eq!(folder.found("SELECT count(*) FROM t WHERE k = 7 AND y = 1 AND m = 1").await, ("1".to_owned(), 1));
    assert_eq!(folder.found("SELECT count(*) FROM t WHERE k = 7 AND y = 2").await, ("0".to_owned(), 0));
}

#[tokio::test]
async fn an_index_may_be_in_a_folder_for_all() {
    let folder = Folder::with(&["d/a.parquet", "e/a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    for name in ["d", "e"] {
        folder.run(&format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{{}}/{name}/'")).await;
    }
    folder.run("SET overspill.index_dir = '{}/indexes'").await;
    folder.run("CREATE INDEX \"by k/../\" ON d (k)").await;
    assert_eq!(names(&folder.path("indexes")), ["by%20k%2F%2E%2E%2F.overspill-index"]);
    assert_eq!(folder.point("d").await, ("2".to_owned(), true));
    assert_eq!(folder.point("e").await, (String::new(), false));
    let taken = folder.refusal("CREATE INDEX \"by k/../\" ON e (k)").await;
    assert!(taken.contains("already exists"), "{taken}");
    let listed = folder.run("SHOW INDEXES").await;
    assert!(listed.contains("| by k/../ | d     | k "), "{listed}");
    folder.run("SET overspill.index_dir = ''").await;
    assert!(!folder.point("d").await.1);
    folder.run("CREATE INDEX i ON d (k)").await;
    folder.run("CREATE INDEX i ON e (k)").await;
    let several = folder.refusal("DROP INDEX i").await;
    assert!(several.contains("several indexes 'i': say which with DROP INDEX i ON its table"), "{several}");
    folder.run("DROP INDEX i ON e").await;
    assert!(folder.point("d").await.1);
    let listed = folder.run("SHOW INDEXES FROM e").await;
    assert!(!listed.contains("| i "), "{listed}");
    folder.run("DROP INDEX i").await;
    assert!(!folder.point("d").await.1);
}

#[tokio::test]
async fn what_cannot_be_indexed_or_written_is_said() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("COPY (SELECT 1 AS k) TO '{}/c/c.csv'").await;
    folder.run("CREATE EXTERNAL TABLE c STORED AS CSV LOCATION '{}/c/c.csv'").await;
    folder.run("CREATE VIEW v AS SELECT * FROM r").await;
    fs::write(folder.path("file"), "").unwrap();
    for (statement, reason) in [
        ("CREATE INDEX i ON c (k)", "'c' cannot have an index: only tables in memory"),
        ("CREATE INDEX i ON v (k)", "'v' cannot have an index"),
        ("CREATE INDEX i ON r (z)", "Table 'r' has no column 'z', but: k, p"),
        ("SHOW INDEXES FROM v", "'v' has no indexes: only tables in memory and files of Parquet and Arrow do"),
        ("SHOW INDEXES IN r", "SHOW INDEXES takes FROM and a table"),
    ] {
        let error = folder.refusal(statement).await;
        assert!(error.contains(reason), "{statement}: {error}");
    }
    folder.run("SET overspill.index_dir = '{}/file/below'").await;
    let error = folder.refusal("CREATE INDEX i ON r (k)").await;
    assert!(error.contains("Index 'i' cannot be written to ") && error.contains("SET overspill.index_dir"), "{error}");
    let left: Vec<_> = names(folder.path.path()).into_iter().filter(|name| name.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn tables_of_no_rows_and_of_nulls_have_indexes() {
    let folder = Folder::with(&["a.parquet"]).await;
    folder.run("SET overspill.indexes = always").await;
    for (name, rows) in [
        ("empty", "SELECT 1::BIGINT AS k, 1::BIGINT AS p WHERE false"),
        ("nulls", "SELECT NULL::BIGINT AS k, value AS p FROM generate_series(1, 3000)"),
        ("same", "SELECT 14::BIGINT AS k, value AS p FROM generate_series(1, 3000)"),
    ] {
        folder.run(&format!("COPY ({rows}) TO '{{}}/{name}/t.parquet'")).await;
        folder.run(&format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{{}}/{name}/t.parquet'")).await;
        folder.run(&format!("CREATE INDEX i ON {name} (k)")).await;
    }
    assert_eq!(folder.point("empty").await, (String::new(), false));
    assert_eq!(folder.point("nulls").await, (String::new(), false));
    assert_eq!(folder.point("same").await, ("4501500".to_owned(), true));
    let join = "SELECT count(*) FROM s JOIN nulls r ON s.k IS NOT DISTINCT FROM r.k";
    assert_eq!(folder.found(join).await, ("0".to_owned(), 0));
}

#[tokio::test]
async fn of_two_builders_one_is_first() {
    let folder = Folder::with(&["a.parquet"]).await;
    let [one, other] = [(); 2].map(|()| run(folder.ctx(), "CREATE INDEX i ON r (k)"));
    let (one, other) = tokio::join!(one, other);
    let failed: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].to_string().contains("Index 'i' already exists"), "{}", failed[0]);
    folder.run("SET overspill.indexes = always").await;
    assert_eq!(folder.point("r").await, ("2".to_owned(), true));
    assert_eq!(names(&folder.path(".overspill")), ["i.overspill-index"]);
}

#[tokio::test]
async fn few_rows_are_read_by_an_index_and_many_are_not() {
    let folder = Folder::with(&["a.parquet", "b.parquet", "c.parquet", "d.parquet"]).await;
    folder.run("CREATE INDEX i ON r (k)").await;
    assert_eq!(folder.point("r").await, ("2".to_owned(), true));
    let few = "SELECT count(*) FROM (VALUES (14), (21)) s(k) JOIN r ON s.k = r.k";
    assert_eq!(folder.found(few).await, ("2".to_owned(), 2));
    // There are some of them in every page.
    let keys: Vec<_> = (0..250).map(|number| (number * 80).to_string()).collect();
    let scattered = format!("SELECT count(*) FROM r WHERE k IN ({})", keys.join(", "));
    for (query, reason) in [
        (
            "SELECT count(*) FROM generate_series(1, 9000) s(k) JOIN r ON s.k = r.k",
            "more keys than are worth a lookup each",
        ),
        ("SELECT count(*) FROM r WHERE k < 9000", "more rows than are worth finding"),
        (scattered.as_str(), "rows in more pages than are worth reading"),
    ] {
        let explained = folder.run(&format!("EXPLAIN ANALYZE VERBOSE {query}")).await;
        assert!(explained.contains("index_refusals{") && explained.contains(reason), "{query}: {explained}");
    }
}
