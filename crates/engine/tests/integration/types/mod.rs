//! What names stand for and how values of different types meet. Expected answers are those of DuckDB and PostgreSQL.
//!
//! Each test also holds stock DataFusion against them: where it has become right, the rule that mends it can go.

mod comparisons;
mod floats;
mod local_time;
mod overflow;
mod prepared;
mod subqueries;
mod using_columns;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result;
use datafusion::prelude::SessionContext;

use crate::harness::session::{Engine, Memory, Session, Settings};

/// A session with these tables.
async fn session(engine: Engine, setup: &[&str]) -> Session {
    let session = Session::open(engine, &Settings::default(), Memory::Ample).unwrap();
    for statement in setup {
        run(&session.ctx, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    session
}

/// The rows of a query, sorted: values of a row are parted by spaces, rows by commas.
async fn run(ctx: &SessionContext, sql: &str) -> Result<String> {
    let batches = ctx.sql(sql).await?.collect().await?;
    let mut rows: Vec<String> = batches.iter().flat_map(shown).collect();
    rows.sort();
    Ok(rows.join(", "))
}

fn shown(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(" ");
    (0..batch.num_rows()).map(row).collect()
}

/// A query, its right answer, and whether stock DataFusion gives it.
struct Case {
    sql: &'static str,
    right: &'static str,
    stock: Stock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stock {
    Right,
    /// It gives another answer or an error.
    Wrong,
}

/// Asserts that Overspill gives the right answers and that stock DataFusion gives those that it is said to.
async fn check(setup: &[&str], cases: &[Case]) {
    let ours = session(Engine::Overspill, setup).await;
    let stock = session(Engine::Stock, setup).await;
    let mut complaints = vec![];
    for Case { sql, right, stock: expected } in cases {
        let answer = run(&ours.ctx, sql).await.unwrap_or_else(|error| error.to_string());
        if answer != *right {
            complaints.push(format!("{sql}: {answer}, not {right}"));
        }
        let is_right = run(&stock.ctx, sql).await.is_ok_and(|answer| answer == *right);
        let found = if is_right { Stock::Right } else { Stock::Wrong };
        if found != *expected {
            complaints.push(format!("{sql}: stock DataFusion is {found:?}, not {expected:?}"));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Asserts that Overspill refuses a query with an error that says this, where stock DataFusion answers.
async fn check_refused(setup: &[&str], refused: &[(&str, &str)]) {
    let ours = session(Engine::Overspill, setup).await;
    let stock = session(Engine::Stock, setup).await;
    for (sql, reason) in refused {
        let error = run(&ours.ctx, sql).await.expect_err(sql).to_string();
        assert!(error.contains(reason), "{sql}: {error}");
        assert!(run(&stock.ctx, sql).await.is_ok(), "stock DataFusion refuses it, too: {sql}");
    }
}

fn mended(sql: &'static str, right: &'static str) -> Case {
    Case { sql, right, stock: Stock::Wrong }
}

fn as_stock(sql: &'static str, right: &'static str) -> Case {
    Case { sql, right, stock: Stock::Right }
}
