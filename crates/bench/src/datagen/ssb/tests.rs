use clap::Parser;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

use super::tables::Table as _;
use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: TablesArgs,
}

async fn lines(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    crate::suite::answer::lines(&batches).unwrap()
}

#[tokio::test]
async fn tables_have_their_rows_and_keys_match() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["test", "--scale", "0.05", "--dir", dir.path().to_str().unwrap()];
    generate(&Cli::try_parse_from(words).unwrap().args, &mut std::io::sink()).unwrap();
    let ctx = SessionContext::new();
    for table in names() {
        let path = dir.path().join(format!("{table}.parquet"));
        ctx.register_parquet(&table, path.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    }
    for (sql, expected) in [
        (
            "SELECT count(*), min(d_datekey), max(d_datekey), sum(d_lastdayinmonthfl) FROM date",
            "2557,19920101,19981231,84",
        ),
        // What the calendar says.
        (
            "SELECT d_date, d_dayofweek, d_yearmonth, d_daynuminyear, d_weeknuminyear, d_weekdayfl FROM date WHERE d_datekey = 19960301",
            "March 1, 1996,Friday,Mar1996,61,9,1",
        ),
        ("SELECT count(*), count(DISTINCT c_nation), count(DISTINCT c_region) FROM customer", "1500,25,5"),
        ("SELECT count(*), count(DISTINCT s_region) FROM supplier", "100,5"),
        (
            "SELECT count(*), count(DISTINCT p_mfgr), count(DISTINCT p_category), count(DISTINCT p_brand1) FROM part",
            "10000,5,25,1000",
        ),
        (
            "SELECT count(*) FROM part WHERE starts_with(p_category, p_mfgr) AND starts_with(p_brand1, p_category)",
            "10000",
        ),
        (
            "SELECT count(*) FROM lineorder WHERE lo_revenue * 100 > lo_extendedprice * (100 - lo_discount) OR lo_discount > 10",
            "0",
        ),
        ("SELECT min(lo_quantity), max(lo_quantity), min(lo_discount), max(lo_discount) FROM lineorder", "1,50,0,10"),
        (
            "SELECT count(*) = (SELECT count(*) FROM lineorder) FROM lineorder, customer, supplier, part, date \
             WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_partkey = p_partkey AND lo_orderdate = d_datekey",
            "true",
        ),
        // The orders of TPC-H at this scale factor, and the sum of their lines.
        ("SELECT count(DISTINCT lo_orderkey) FROM lineorder", "75000"),
    ] {
        assert_eq!(lines(&ctx, sql).await, [expected], "{sql}");
    }
}

#[test]
fn lines_have_their_orders() {
    let scale = 0.001;
    let orders = OrderGenerator::new(scale, 1, 1).into_iter();
    let orders: std::collections::HashMap<_, _> = orders.map(|order| (order.o_orderkey, order.o_custkey)).collect();
    let lines: Vec<OrderLine> = (1..=3).flat_map(|part| order_lines(scale, part, 3)).collect();
    assert_eq!(lines.len(), LineItemGenerator::new(scale, 1, 1).into_iter().count());
    for (order, line) in lines {
        assert_eq!(order.o_orderkey, line.l_orderkey);
        assert_eq!(orders[&line.l_orderkey], order.o_custkey);
    }
}

#[test]
fn parts_grow_with_the_logarithm_of_the_scale_factor() {
    for (scale, parts) in [(0.1, 20_000), (1.0, 200_000), (3.9, 400_000), (4.0, 600_000), (100.0, 1_400_000)] {
        assert_eq!(Table::Part.rows(scale), parts, "{scale}");
    }
}
