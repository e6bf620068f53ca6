//! `COPY`, and `INSERT` into folders: all files or none, and nothing else.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::{column, refusal, run, session, stock, try_run};

/// All files below a folder, also hidden ones, with their bytes. Folders are there without bytes.
pub fn files_below(folder: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    try_files_below(folder).unwrap()
}

/// The same; an error if some go meanwhile.
pub fn try_files_below(folder: &Path) -> io::Result<BTreeMap<String, Option<Vec<u8>>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            files.extend(try_files_below(&path)?.into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
            files.insert(name + "/", None);
        } else {
            files.insert(name, Some(fs::read(path)?));
        }
    }
    Ok(files)
}

/// A query of 100 rows that fails at its 60th.
const FAILS: &str = "(SELECT value AS k, value % 3 AS p, 1 / (60 - value) AS q FROM range(100))";

/// A query of 100 rows.
const SUCCEEDS: &str = "(SELECT value AS k, value % 3 AS p FROM range(100))";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.0.path().display())
    }

    fn names(&self) -> Vec<String> {
        files_below(self.0.path()).into_keys().collect()
    }
}

#[tokio::test]
async fn a_copy_that_fails_leaves_what_was_there() {
    let (session, folder) = (session(), Folder::new());
    fs::create_dir(folder.path("empty")).unwrap();
    for (target, storage) in [
        ("x.csv", ""),
        ("x.parquet", ""),
        ("x.json", ""),
        ("x.arrow", ""),
        ("new/folders/x.csv", ""),
        ("out/", "STORED AS PARQUET"),
        ("empty/", "STORED AS CSV"),
        ("parts/", "STORED AS CSV PARTITIONED BY (p)"),
        ("out/", "STORED AS PARQUET OPTIONS (overwrite true)"),
        ("parts/", "STORED AS CSV PARTITIONED BY (p) OPTIONS (overwrite true)"),
    ] {
        let target = folder.path(target);
        let before = files_below(folder.0.path());
        let error = refusal(&session, &format!("COPY {FAILS} TO '{target}' {storage}")).await;
        assert!(error.contains("Divide by zero"), "{error}");
        assert!(files_below(folder.0.path()) == before, "{target}: {:?}", folder.names());
        // Of what is there now, nothing may change the next time either.
        run(&session, &format!("COPY {SUCCEEDS} TO '{target}' {storage}")).await;
        let before = files_below(folder.0.path());
        refusal(&session, &format!("COPY {FAILS} TO '{target}' {storage}")).await;
        assert!(files_below(folder.0.path()) == before, "{target}: {:?}", folder.names());
    }
}

#[tokio::test]
async fn stock_copies_leave_parts() {
    let folder = Folder::new();
    fs::write(folder.path("x.csv"), "before").unwrap();
    let copy = format!("COPY {FAILS} TO '{}'", folder.path("x.csv"));
    stock().sql(&copy).await.unwrap().collect().await.unwrap_err();
    assert_ne!(fs::read(folder.path("x.csv")).unwrap(), b"before", "DataFusion no longer writes in place");
}

#[tokio::test]
async fn a_copy_may_read_what_it_replaces() {
    let (session, folder) = (session(), Folder::new());
    let (file, out) = (folder.path("x.parquet"), folder.path("out/"));
    run(
        &session,
        &format!(
            "COPY {SUCCEEDS} TO '{file}'; CREATE EXTERNAL TABLE x STORED AS PARQUET LOCATION '{file}'; \
             COPY (SELECT k FROM x WHERE k < 10) TO '{file}'; \
             COPY {SUCCEEDS} TO '{out}' STORED AS PARQUET; CREATE EXTERNAL TABLE o STORED AS PARQUET LOCATION '{out}'"
        ),
    )
    .await;
    assert_eq!(column(&session, "SELECT count(*) FROM x").await, [10]);
    for left in [50, 25] {
        run(
            &session,
            &format!("COPY (SELECT * FROM o WHERE k < {left}) TO '{out}' STORED AS PARQUET OPTIONS (overwrite true)"),
        )
        .await;
        assert_eq!(column(&session, "SELECT count(*) FROM o").await, [left]);
    }
    assert!(folder.names().iter().all(|name| name == "x.parquet" || name.starts_with("out/")), "{:?}", folder.names());
}

#[tokio::test]
async fn a_folder_with_files_is_replaced_only_if_that_is_said() {
    let (session, folder) = (session(), Folder::new());
    let out = folder.path("out/");
    let copy = |storage: &str| format!("COPY {SUCCEEDS} TO '{out}' {storage}");
    run(&session, &copy("STORED AS CSV")).await;
    let before = files_below(folder.0.path());
    for storage in ["STORED AS CSV", "STORED AS CSV PARTITIONED BY (p)", "STORED AS CSV OPTIONS (overwrite false)"] {
        let error = refusal(&session, &copy(storage)).await;
        assert!(error.contains("OPTIONS (overwrite true)"), "{error}");
    }
    // Files of another kind are kept, as a user does not expect COPY to remove them.
    let error = refusal(&session, &copy("STORED AS PARQUET OPTIONS (overwrite true)")).await;
    assert!(error.contains("is no file that ends in .parquet"), "{error}");
    assert!(files_below(folder.0.path()) == before);
    refusal(&session, &copy("STORED AS CSV OPTIONS (overwrite maybe)")).await;

    run(&session, &copy("STORED AS CSV PARTITIONED BY (p) OPTIONS ('overwrite' 'true')")).await;
    let names = folder.names();
    assert!(names.iter().all(|name| name == "out/" || name.starts_with("out/p=")), "{names:?}");
    assert_eq!(names.len(), 1 + 3 + 3, "{names:?}");
}

#[tokio::test]
async fn hidden_files_stay_in_a_folder_that_is_overwritten() {
    let (session, folder) = (session(), Folder::new());
    fs::create_dir(folder.path("out")).unwrap();
    fs::write(folder.path("out/.keep"), "").unwrap();
    let copy = format!("COPY {SUCCEEDS} TO '{}' STORED AS CSV PARTITIONED BY (p)", folder.path("out"));
    run(&session, &copy).await;
    let before = folder.names();
    run(&session, &format!("{copy} OPTIONS (overwrite true)")).await;
    let names = folder.names();
    assert_eq!((before.len(), names.len()), (8, 8), "{names:?}");
    assert!(before != names && names.contains(&"out/.keep".to_owned()), "{names:?}");
}

#[tokio::test]
async fn hidden_files_below_a_folder_are_not_overwritten() {
    let (session, folder) = (session(), Folder::new());
    let copy = format!("COPY {SUCCEEDS} TO '{}' STORED AS CSV PARTITIONED BY (p)", folder.path("out"));
    run(&session, &copy).await;
    for hidden in ["out/p=0/.keep", "out/p=7/.git/config"] {
        let hidden = folder.path(hidden);
        fs::create_dir_all(Path::new(&hidden).parent().unwrap()).unwrap();
        fs::write(&hidden, "x").unwrap();
        let before = files_below(folder.0.path());
        let error = refusal(&session, &format!("{copy} OPTIONS (overwrite true)")).await;
        assert!(error.contains("/p=") && error.contains("/.") && error.contains("is not overwritten"), "{error}");
        assert!(files_below(folder.0.path()) == before, "{:?}", folder.names());
        fs::remove_file(hidden).unwrap();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn an_empty_folder_stays_the_folder_that_it_is() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (session, folder) = (session(), Folder::new());
    for (name, storage) in [
        ("a", "STORED AS CSV"),
        ("b", "STORED AS CSV PARTITIONED BY (p)"),
        ("c", "STORED AS PARQUET OPTIONS (overwrite true)"),
        ("d", "STORED AS PARQUET PARTITIONED BY (p) OPTIONS (overwrite true)"),
    ] {
        let out = folder.path(name);
        // A folder without files may have folders, also one that is to have files.
        fs::create_dir_all(format!("{out}/p=0")).unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o2751)).unwrap();
        let before = fs::metadata(&out).unwrap();
        // As for a process that works there.
        let inside = fs::File::open(&out).unwrap();
        run(&session, &format!("COPY {SUCCEEDS} TO '{out}/' {storage}")).await;
        let after = fs::metadata(&out).unwrap();
        assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()), "{name}");
        assert_eq!(inside.metadata().unwrap().nlink(), after.nlink(), "{name}");
        let names = files_below(Path::new(&out));
        let names: Vec<_> = names.into_keys().collect();
        assert!(names.iter().any(|name| name.ends_with("csv") || name.ends_with("parquet")), "{names:?}");
        assert!(names.iter().all(|name| !name.contains(".overspill")), "{names:?}");
    }
}

#[tokio::test]
async fn what_is_inserted_is_named_as_the_files_that_are_there() {
    let (session, folder) = (session(), Folder::new());
    for (format, columns, name, text, options) in [
        ("CSV", "(k BIGINT)", "1.tsv", "k\n1\n", "OPTIONS ('format.has_header' 'true')"),
        ("CSV", "", "1.v2.csv", "k\n1\n", ""),
        ("JSON", "(k BIGINT)", "1.ndjson", "{\"k\":1}\n", ""),
    ] {
        let out = folder.path(name);
        fs::create_dir(&out).unwrap();
        fs::write(format!("{out}/{name}"), text).unwrap();
        let table = format!("CREATE EXTERNAL TABLE t {columns} STORED AS {format} LOCATION '{out}/' {options}");
        run(&session, &format!("{table}; INSERT INTO t VALUES (2), (3)")).await;
        assert_eq!(column(&session, "SELECT sum(k) FROM t").await, [6], "{name}");
        run(&session, "DROP TABLE t").await;
        let end = name.rsplit('.').next().unwrap();
        let names = files_below(Path::new(&out));
        assert!(names.len() == 2 && names.keys().all(|name| name.ends_with(end)), "{names:?}");
    }
}

#[tokio::test]
async fn inserts_into_a_folder_add_all_files_or_none() {
    let (session, folder) = (session(), Folder::new());
    let (out, parts) = (folder.path("out/"), folder.path("parts/"));
    run(
        &session,
        &format!(
            "CREATE EXTERNAL TABLE o (k BIGINT, p BIGINT) STORED AS PARQUET LOCATION '{out}'; \
             CREATE EXTERNAL TABLE q (k BIGINT, p BIGINT) STORED AS CSV PARTITIONED BY (p) LOCATION '{parts}'"
        ),
    )
    .await;
    for table in ["o", "q"] {
        for rows in [100, 200] {
            let before = files_below(folder.0.path());
            refusal(&session, &format!("INSERT INTO {table} SELECT q, p FROM {FAILS}")).await;
            assert!(files_below(folder.0.path()) == before, "{:?}", folder.names());
            run(&session, &format!("INSERT INTO {table} SELECT * FROM {SUCCEEDS}")).await;
            assert_eq!(column(&session, &format!("SELECT count(*) FROM {table}")).await, [rows]);
        }
        run(&session, &format!("INSERT INTO {table} SELECT * FROM {table}")).await;
        assert_eq!(column(&session, &format!("SELECT count(*) FROM {table}")).await, [400]);
    }
    assert!(folder.names().iter().all(|name| !name.contains("/.")), "{:?}", folder.names());
    for sql in ["INSERT OVERWRITE o SELECT * FROM o", "DELETE FROM o", "UPDATE o SET k = 1", "TRUNCATE TABLE o"] {
        refusal(&session, sql).await;
    }
    assert_eq!(column(&session, "SELECT count(*) FROM o").await, [400]);
}

#[cfg(unix)]
#[tokio::test]
async fn links_are_written_through_and_devices_are_refused() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    let (session, folder) = (session(), Folder::new());
    fs::write(folder.path("real.csv"), "before").unwrap();
    fs::set_permissions(folder.path("real.csv"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("real.csv", folder.path("link.csv")).unwrap();
    run(&session, &format!("COPY (SELECT 1 AS k) TO '{}'", folder.path("link.csv"))).await;
    assert_eq!(fs::read_to_string(folder.path("real.csv")).unwrap(), "k\n1\n");
    assert_eq!(fs::metadata(folder.path("real.csv")).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(folder.path("link.csv")).unwrap().is_symlink());

    fs::create_dir(folder.path("real")).unwrap();
    symlink("real", folder.path("link")).unwrap();
    for _ in 0..2 {
        let link = folder.path("link/");
        run(&session, &format!("COPY (SELECT 1 AS k) TO '{link}' STORED AS CSV OPTIONS (overwrite true)")).await;
        assert_eq!(fs::read_dir(folder.path("real")).unwrap().count(), 1);
    }
    assert!(fs::symlink_metadata(folder.path("link")).unwrap().is_symlink());

    refusal(&session, "COPY (SELECT 1 AS k) TO '/dev/null' STORED AS CSV").await;
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    symlink("/dev/null", folder.path("null.csv")).unwrap();
    let error = refusal(&session, &format!("COPY (SELECT 1 AS k) TO '{}'", folder.path("null.csv"))).await;
    assert!(error.contains("it is a device or a pipe"), "{error}");
    let error = refusal(&session, &format!("COPY (SELECT 1 AS k) TO '{}'", folder.path("*.csv"))).await;
    assert!(error.contains("no part of a name that is written"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_copies_at_the_same_time_one_is_there_and_whole() {
    let (session, folder) = (session(), Folder::new());
    fs::create_dir(folder.path("empty")).unwrap();
    fs::create_dir(folder.path("also")).unwrap();
    for (target, storage) in [
        ("x.csv", ""),
        ("out/", "STORED AS CSV"),
        ("out/", "STORED AS CSV OPTIONS (overwrite true)"),
        ("empty/", "STORED AS CSV"),
        ("also/", "STORED AS CSV OPTIONS (overwrite true)"),
    ] {
        let copies = (1..=8).map(|number| {
            let rows = format!("(SELECT {number} AS k FROM range(1000))");
            let (session, sql) = (session.clone(), format!("COPY {rows} TO '{}' {storage}", folder.path(target)));
            tokio::spawn(async move { try_run(&session, &sql).await.is_ok() })
        });
        let copies: Vec<_> = copies.collect();
        let mut done = 0;
        for copy in copies {
            done += i32::from(copy.await.unwrap());
        }
        assert!(done >= 1, "{target} {storage}");
        let sql = format!("CREATE EXTERNAL TABLE r STORED AS CSV LOCATION '{}'", folder.path(target));
        run(&session, &sql).await;
        let rows = run(&session, "SELECT count(*), count(DISTINCT k) FROM r").await;
        assert_eq!(rows, [[Some(1000), Some(1)]], "{target} {storage}");
        run(&session, "DROP TABLE r").await;
    }
    assert!(folder.names().iter().all(|name| !name.starts_with('.')), "{:?}", folder.names());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_waits_for_who_moves_files_and_finds_the_folder_that_is_there_then() {
    let (session, folder) = (session(), Folder::new());
    let out = folder.path("out");
    run(&session, &format!("COPY {SUCCEEDS} TO '{out}/' STORED AS CSV")).await;
    run(&session, &format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{out}/'")).await;
    let before = files_below(Path::new(&out));
    let moving = File::open(&out).unwrap();
    moving.lock().unwrap();
    let insert = tokio::spawn({
        let session = session.clone();
        async move { try_run(&session, &format!("INSERT INTO t {SUCCEEDS}")).await.map(|_| ()) }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(files_below(Path::new(&out)), before);
    assert!(!insert.is_finished());
    // As COPY with overwrite ends.
    fs::rename(&out, folder.path("replaced")).unwrap();
    fs::create_dir(&out).unwrap();
    drop(moving);
    insert.await.unwrap().unwrap();
    assert_eq!(files_below(Path::new(&folder.path("replaced"))), before);
    assert_eq!(run(&session, "SELECT count(*), sum(k) FROM t").await, [[Some(100), Some(4950)]]);
}

#[tokio::test]
async fn what_a_killed_process_left_goes_with_the_next_copy() {
    let (session, folder) = (session(), Folder::new());
    // As a process leaves it, whose lock the operating system has taken back.
    let left = folder.path(".overspill-write-123-0123456789abcdef");
    fs::create_dir(&left).unwrap();
    fs::write(format!("{left}/.overspill.lock"), "Overspill spill directory\n123\n").unwrap();
    fs::write(format!("{left}/0.part"), "rows").unwrap();
    fs::create_dir(folder.path(".overspill-write-mine")).unwrap();
    run(&session, &format!("COPY (SELECT 1 AS k) TO '{}'", folder.path("x.csv"))).await;
    assert_eq!(folder.names(), [".overspill-write-mine/", "x.csv"]);
}
