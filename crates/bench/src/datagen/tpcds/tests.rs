use std::fs;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Int64Type};
use clap::Parser;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

use super::tables::Table as _;
use super::*;

const SCALE: f64 = 0.01;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: TablesArgs,
}

fn rows_of(table: Table, parts: usize) -> RecordBatch {
    let batches = (1..=parts).flat_map(|part| table.batches(SCALE, part, parts));
    concat_batches(&table.schema(), &batches.collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
}

async fn number(ctx: &SessionContext, sql: &str) -> i64 {
    let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    rows[0].column(0).as_primitive::<Int64Type>().value(0)
}

#[tokio::test]
async fn tables_have_their_rows_types_and_nulls() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["test", "--scale", "0.01", "--dir", dir.path().to_str().unwrap()];
    generate(&Cli::try_parse_from(words).unwrap().args, &mut std::io::sink()).unwrap();
    let ctx = SessionContext::new();
    for table in names() {
        let path = dir.path().join(format!("{table}.parquet"));
        ctx.register_parquet(&table, path.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 24);
    // The row counts of the specification, which some tables have at each scale factor.
    for (table, rows) in [("date_dim", 73_049), ("time_dim", 86_400), ("household_demographics", 7200), ("reason", 75)]
    {
        assert_eq!(number(&ctx, &format!("SELECT count(*) FROM {table}")).await, rows, "{table}");
    }
    let orphans = "SELECT count(*) FROM store_returns LEFT ANTI JOIN store_sales \
                   ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk";
    assert_eq!(number(&ctx, orphans).await, 0);
    assert!(number(&ctx, "SELECT count(*) FROM store_returns").await > 1000);
    assert!(number(&ctx, "SELECT count(*) FROM store_sales WHERE ss_customer_sk IS NULL").await > 500);
    let sales = ctx.table("store_sales").await.unwrap();
    let type_of = |column| sales.schema().field_with_unqualified_name(column).unwrap().data_type().clone();
    assert_eq!(type_of("ss_net_paid"), DataType::Decimal128(7, 2));
    assert_eq!(number(&ctx, "SELECT count(*) FROM date_dim WHERE d_date = DATE '2000-02-29'").await, 1);
    // Texts of a fixed length are not padded.
    assert_eq!(number(&ctx, "SELECT count(*) FROM customer WHERE c_salutation IN ('Mr. ', 'Mr')").await, 0);
    assert!(number(&ctx, "SELECT count(*) FROM customer WHERE c_salutation = 'Mr.'").await > 100);
}

#[test]
fn parts_are_the_whole() {
    for table in TABLES {
        let whole = rows_of(table, 1);
        let estimate = table.rows(SCALE) as f64;
        assert!((whole.num_rows() as f64 - estimate).abs() <= 0.1 * estimate, "{}: {estimate}", table.name());
        if table.kind.keeps_history() {
            // Its few rows are one part.
            assert_eq!(table.parts(100_000.0), 1, "{}", table.name());
        } else {
            assert_eq!(rows_of(table, 3), whole, "{}", table.name());
        }
    }
}
