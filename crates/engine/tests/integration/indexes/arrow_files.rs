//! Indexes of Arrow files.

use std::fs::{self, File, FileTimes};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::ipc::writer::StreamWriter;

use super::files::Folder;

const TABLE: &str = "CREATE EXTERNAL TABLE r STORED AS ARROW LOCATION '{}/'";

const JOIN: &str = "SELECT sum(p) FROM s JOIN r ON s.k = r.k";

const POINT: &str = "SELECT sum(p) FROM r WHERE k = 14";

/// A folder with two files of batches of 100 rows, and a table `r` over both.
async fn folder() -> Folder {
    let folder = Folder::with(&[]).await;
    overspill::files::register(&mut folder.ctx().state_ref().write()).unwrap();
    folder.run("SET datafusion.execution.batch_size = 100").await;
    folder.write("a.arrow", 0).await;
    folder.write("b.arrow", 5000).await;
    folder.run(TABLE).await;
    folder.run("SET overspill.indexes = always").await;
    folder
}

#[tokio::test]
async fn filters_and_joins_read_the_batches_that_have_their_rows() {
    let folder = folder().await;
    let (sum, none) = folder.found(JOIN).await;
    assert_eq!((folder.found(POINT).await, none), (("2".to_owned(), 0), 0));
    folder.run("CREATE INDEX i ON r (k)").await;
    assert_eq!(folder.found(POINT).await, ("2".to_owned(), 1));
    let (same, rows) = folder.found(JOIN).await;
    assert!(rows > 5 && same == sum, "{rows}: {same}, {sum}");
    let explained = folder.run(&format!("EXPLAIN {POINT}")).await;
    assert!(explained.contains("IndexScanExec: index=i, column=k, kind=radix_spline, ranges=1"), "{explained}");
    let analyzed = folder.run(&format!("EXPLAIN ANALYZE {POINT}")).await;
    // Of the batch with the row, and of no other.
    assert!(analyzed.contains("index_pages=1,") || analyzed.contains("index_pages=1]"), "{analyzed}");
    assert!(analyzed.contains("output_rows=100,"), "{analyzed}");
    folder.run("CREATE EXTERNAL TABLE one STORED AS ARROW LOCATION '{}/b.arrow'").await;
    folder.run("SET overspill.indexes = never").await;
    let of_one = folder.found("SELECT sum(p) FROM s JOIN one ON s.k = one.k").await;
    folder.run("SET overspill.indexes = always").await;
    let (same, rows) = folder.found("SELECT sum(p) FROM s JOIN one ON s.k = one.k").await;
    assert!(same == of_one.0 && rows > 0, "{rows}: {same}, {of_one:?}");
}

#[tokio::test]
async fn an_index_of_changed_files_is_stale() {
    let folder = folder().await;
    folder.run("CREATE INDEX i ON r (k)").await;
    let path = folder.path("a.arrow");
    let (before, time) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
    // Other rows in as many bytes, at the same time.
    folder.write("c.arrow", 20_000).await;
    let other = fs::read(folder.path("c.arrow")).unwrap();
    assert_eq!(before.len(), other.len());
    fs::remove_file(folder.path("c.arrow")).unwrap();
    fs::write(&path, &other).unwrap();
    File::options().write(true).open(&path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    let explained = folder.run(&format!("EXPLAIN {POINT}")).await;
    assert!(explained.contains("index=i, column=k, stale:") && explained.contains("was changed"), "{explained}");
    assert_eq!(folder.found(POINT).await.1, 0);
    folder.run("REINDEX i").await;
    let (sum, rows) = folder.found(JOIN).await;
    folder.run("SET overspill.indexes = never").await;
    assert!(rows > 0 && folder.found(JOIN).await.0 == sum, "{rows}");
}

#[tokio::test]
async fn a_file_that_is_cut_short_is_refused_in_words() {
    let folder = folder().await;
    folder.run("CREATE INDEX i ON r (k)").await;
    let path = folder.path("a.arrow");
    let whole = fs::metadata(&path).unwrap().len();
    // With fewer bytes it would be taken for a stream, and all files with it.
    for length in [whole / 2, 11] {
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let error = folder.refusal(JOIN).await;
        assert!(error.contains("a.arrow"), "{length}: {error}");
        let error = folder.refusal("REINDEX i").await;
        assert!(error.contains("a.arrow"), "{length}: {error}");
    }
}

#[tokio::test]
async fn streams_have_no_index() {
    let folder = folder().await;
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
    let rows = RecordBatch::try_from_iter([("k", keys)]).unwrap();
    fs::create_dir(folder.path("stream")).unwrap();
    let file = File::create(folder.path("stream/a.arrow")).unwrap();
    let mut writer = StreamWriter::try_new(file, &rows.schema()).unwrap();
    writer.write(&rows).unwrap();
    writer.finish().unwrap();
    folder.run("CREATE EXTERNAL TABLE t STORED AS ARROW LOCATION '{}/stream/'").await;
    let error = folder.refusal("CREATE INDEX i ON t (k)").await;
    assert!(error.contains("files of Parquet and Arrow have indexes"), "{error}");
}
