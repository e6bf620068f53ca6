//! Files that DataFusion 55 reads or writes wrongly.
//!
//! Each test also asserts that DataFusion does so: where one no longer holds, its part of `overspill::files` can go.

use std::fmt::Write;
use std::path::Path;

use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::{OverspillConfig, OverspillSessionExt};
use tempfile::TempDir;

const ROWS: usize = 5_000;

/// A session that cuts files of any size for several threads.
fn session(ours: bool) -> SessionContext {
    let mut config = SessionConfig::new().with_target_partitions(4);
    config.options_mut().optimizer.repartition_file_min_size = 1;
    let mut state = SessionStateBuilder::new_with_default_features().with_config(config).build();
    if ours {
        overspill::files::register(&mut state).unwrap();
    }
    SessionContext::new_with_state(state)
}

/// The answer to a query over an external table of all of a folder, as text.
async fn answer(ours: bool, folder: &Path, format: &str, options: &str, sql: &str) -> Result<String> {
    let context = session(ours);
    let location = folder.display();
    let table = format!("CREATE EXTERNAL TABLE t STORED AS {format} LOCATION '{location}/' {options}");
    context.sql(&table).await?.collect().await?;
    let batches = context.sql(sql).await?.collect().await?;
    Ok(arrow::util::pretty::pretty_format_batches(&batches)?.to_string())
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Asserts that a query has an answer that begins its row so, and that DataFusion's is another or an error.
async fn assert_needed(folder: &TempDir, format: &str, options: &str, sql: &str, row: &str) {
    let ours = answer(true, folder.path(), format, options, sql).await.unwrap();
    assert!(ours.contains(row), "{ours}");
    if let Ok(stock) = answer(false, folder.path(), format, "", sql).await {
        assert!(!stock.contains(row), "DataFusion answers this rightly by now:\n{stock}");
    }
}

#[tokio::test]
async fn line_breaks_in_quotes_end_no_record() {
    let mut text = "id,t\n".to_string();
    (0..ROWS).for_each(|row| writeln!(text, "{row},\"a\nb\n{row}\"").unwrap());
    let folder = folder(&[("x.csv", &text)]);
    assert_needed(&folder, "CSV", "", "SELECT count(*), sum(id + 0) FROM t", "| 5000     | 12497500 ").await;
}

#[tokio::test]
async fn columns_are_found_by_name() {
    let folder = folder(&[("1.csv", "a,b\n1,2\n"), ("2.csv", "b,a\n20,10\n")]);
    assert_needed(&folder, "CSV", "", "SELECT sum(a), sum(b) FROM t", "| 11       | 22 ").await;
}

#[tokio::test]
async fn a_column_without_early_values_is_read() {
    let mut text = "id,late\n".to_string();
    (0..30_000).for_each(|row| writeln!(text, "{row},").unwrap());
    text.push_str("1,x\n");
    let folder = folder(&[("x.csv", &text)]);
    assert_needed(&folder, "CSV", "", "SELECT count(late) FROM t", "| 1 ").await;
}

#[tokio::test]
async fn an_empty_text_is_not_null() {
    let folder = folder(&[("x.csv", "k,v\n1,\"\"\n2,\n3,x\n")]);
    assert_needed(&folder, "CSV", "", "SELECT count(v) FROM t", "| 2 ").await;
}

#[tokio::test]
async fn arrays_of_any_size_are_read() {
    let values: Vec<_> = (0..ROWS).map(|row| format!("{{\"k\": {row}}}")).collect();
    let folder = folder(&[("x.json", &format!("[{}]\n", values.join(",\n")))]);
    let stock = "OPTIONS ('format.newline_delimited' 'false')";
    assert!(answer(false, folder.path(), "JSON", stock, "SELECT sum(k) FROM t").await.is_err());
    assert_needed(&folder, "JSON", "", "SELECT sum(k) FROM t", "| 12497500 ").await;
}

#[tokio::test]
async fn damaged_arrow_files_are_named() {
    let folder = folder(&[]);
    let path = folder.path().join("x.arrow");
    let copy = format!("COPY (SELECT value AS k FROM range(10000)) TO '{}'", path.display());
    session(true).sql(&copy).await.unwrap().collect().await.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
    for ours in [true, false] {
        let error = answer(ours, folder.path(), "ARROW", "", "SELECT sum(k) FROM t").await.unwrap_err().to_string();
        assert_eq!(error.contains("x.arrow"), ours, "{error}");
    }
}

#[tokio::test]
async fn rows_of_a_null_partition_have_a_folder_of_their_own() {
    for ours in [true, false] {
        let folder = folder(&[]);
        let mut state = SessionStateBuilder::new_with_default_features();
        if ours {
            state = state.with_overspill(OverspillConfig::default());
        }
        let context = SessionContext::new_with_state(state.build());
        let target = folder.path().display();
        let sql = format!(
            "COPY (SELECT * FROM (VALUES (1, 5, 'x'), (2, NULL, NULL), (3, 0, '')) t(k, p, q)) TO '{target}/' \
             STORED AS CSV PARTITIONED BY (p, q)"
        );
        context.sql(&sql).await.unwrap().collect().await.unwrap();
        let mut folders: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        folders.sort();
        let all = ["p=0", "p=5", "p=__HIVE_DEFAULT_PARTITION__"];
        assert_eq!(folders == all, ours, "{folders:?}");
    }
}
