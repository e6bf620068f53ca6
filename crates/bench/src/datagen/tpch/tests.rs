use std::fs;

use clap::Parser;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: TablesArgs,
}

fn generate_with(dir: &std::path::Path, options: &str) -> Result<()> {
    let dir = dir.to_str().unwrap();
    let words = ["test", "--dir", dir].into_iter().chain(options.split_whitespace());
    generate(&Cli::try_parse_from(words).unwrap().args, &mut std::io::sink())
}

async fn count(ctx: &SessionContext, sql: &str) -> i64 {
    let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(rows[0].column(0)).value(0)
}

#[tokio::test]
async fn tables_have_their_rows_and_keys_match() {
    let dir = tempfile::tempdir().unwrap();
    generate_with(dir.path(), "--scale 0.1").unwrap();
    let ctx = SessionContext::new();
    for table in names() {
        let path = dir.path().join(format!("{table}.parquet"));
        ctx.register_parquet(table, path.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    }
    for (table, rows) in [
        ("region", 5),
        ("nation", 25),
        ("supplier", 1000),
        ("customer", 15_000),
        ("part", 20_000),
        ("partsupp", 80_000),
        ("orders", 150_000),
        // The row count of a reference data set of this scale.
        ("lineitem", 600_572),
    ] {
        assert_eq!(count(&ctx, &format!("SELECT count(*) FROM {table}")).await, rows, "{table}");
    }
    let orphans = "SELECT count(*) FROM lineitem WHERE l_orderkey NOT IN (SELECT o_orderkey FROM orders)";
    assert_eq!(count(&ctx, orphans).await, 0);
    // Two row groups without duplicate lines.
    assert_eq!(Table::LineItem.parts(0.1), 2);
    assert_eq!(
        count(&ctx, "SELECT count(*) FROM (SELECT DISTINCT l_orderkey, l_linenumber FROM lineitem)").await,
        600_572
    );
}

#[test]
fn an_interrupted_run_is_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".nation.parquet.partial"), vec![7; 100_000]).unwrap();
    generate_with(dir.path(), "--scale 0.001 --compression zstd").unwrap();
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 8, "{names:?}");
    let nation = fs::read(dir.path().join("nation.parquet")).unwrap();
    assert!(nation.len() < 10_000 && nation.ends_with(b"PAR1"));
}

#[test]
fn a_second_process_waits_its_turn_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let busy = fs::File::create(dir.path().join(".region.parquet.partial")).unwrap();
    busy.lock().unwrap();
    let message = generate_with(dir.path(), "--scale 0.001").unwrap_err().to_string();
    assert!(message.contains("Another process is writing"), "{message}");
}

#[test]
fn doubtful_arguments_are_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    for scale in ["0", "-1", "NaN", "inf", "1e9"] {
        let message = generate_with(dir.path(), &format!("--scale={scale}")).unwrap_err().to_string();
        assert!(message.contains("scale factor"), "{message}");
    }
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let message = generate_with(&file.join("below"), "--scale 0.001").unwrap_err().to_string();
    assert!(message.contains("cannot be created"), "{message}");
}
