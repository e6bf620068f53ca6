//! What DataFusion 55 answers wrongly, or not. A test that fails since stock DataFusion is right says that it has learned
//! it, and that `membership_to_mark_join` may leave it to DataFusion.

use super::{Value, register, rows, session};
use crate::harness::session::{Engine, Session};

fn tables(engine: Engine) -> Session {
    let session = session(engine);
    let rows = |rows: &[(Value, Value)]| rows.iter().map(|(x, y)| vec![*x, *y]).collect::<Vec<_>>();
    let t = rows(&[(Some(1), Some(10)), (Some(2), Some(20)), (Some(3), Some(30)), (None, Some(40))]);
    let u = rows(&[(Some(1), Some(5)), (None, Some(50)), (Some(5), Some(10)), (None, Some(20))]);
    register(&session.ctx, "t", &["i", "z"], &t);
    register(&session.ctx, "u", &["v", "k"], &u);
    session
}

/// Checks that stock DataFusion has another answer, or none, and Overspill these rows.
async fn mended(sql: &str, expected: &[Value]) {
    let mut expected: Vec<_> = expected.iter().map(|value| vec![*value]).collect();
    expected.sort();
    if let Ok(answer) = rows(&tables(Engine::Stock).ctx, sql).await {
        assert_ne!(answer, expected, "stock DataFusion has learned it: {sql}");
    }
    assert_eq!(rows(&tables(Engine::Overspill).ctx, sql).await.unwrap(), expected, "{sql}");
}

/// apache/datafusion issue 8241.
#[tokio::test]
async fn issue_8241_not_in_below_or() {
    mended("SELECT i FROM t WHERE i NOT IN (SELECT v FROM u) OR i = 3", &[Some(3)]).await;
}

/// Issue 21309, of marks that are never unknown.
#[tokio::test]
async fn issue_21309_in_is_null() {
    mended("SELECT i FROM t WHERE (4 IN (SELECT i FROM t)) IS NULL", &[Some(1), Some(2), Some(3), None]).await;
}

/// Issue 25336: the nulls of other groups count.
#[tokio::test]
async fn issue_25336_not_in_correlated_by_an_inequality() {
    mended("SELECT i FROM t WHERE i NOT IN (SELECT v FROM u WHERE u.k < t.z)", &[Some(2)]).await;
}

/// Issue 25347: the nulls of the own group do not count.
#[tokio::test]
async fn issue_25347_a_constant_not_in_a_correlated_subquery() {
    mended("SELECT i FROM t WHERE 3 NOT IN (SELECT v FROM u WHERE u.k = t.z)", &[Some(1), Some(3), None]).await;
}

/// Issue 25474: DataFusion plans none of these.
#[tokio::test]
async fn issue_25474_correlated_not_in() {
    mended("SELECT i FROM t WHERE i NOT IN (SELECT v FROM u WHERE u.k = t.z)", &[Some(1), Some(3), None]).await;
}

/// Issue 25480: the correlation is lost.
#[tokio::test]
async fn issue_25480_not_in_correlated_by_the_value() {
    mended("SELECT i FROM t WHERE i NOT IN (SELECT v FROM u WHERE u.v = t.i)", &[Some(2), Some(3), None]).await;
}

/// Issue 24960: the one row of an aggregate over no rows is lost.
#[tokio::test]
async fn issue_24960_in_a_correlated_aggregate() {
    mended("SELECT i FROM t WHERE 0 IN (SELECT count(*) FROM u WHERE u.k = t.z)", &[Some(3), None]).await;
    mended("SELECT i FROM t WHERE i NOT IN (SELECT max(v) FROM u WHERE u.k = t.z)", &[Some(1)]).await;
    // Several values of `k` are in one group.
    mended("SELECT i FROM t WHERE 2 IN (SELECT count(*) FROM u WHERE u.k / 20 = t.z / 20)", &[Some(1)]).await;
    let sql = "SELECT i FROM t WHERE (0 IN (SELECT coalesce(sum(v), count(*)) FROM u WHERE u.k = t.z)) IS TRUE";
    mended(sql, &[Some(3), None]).await;
}

/// A correlated condition is pulled above what numbers or limits the rows.
#[tokio::test]
async fn rows_that_are_numbered_are_not_those_of_all_groups() {
    let sql = "SELECT i FROM t WHERE 2 IN (SELECT row_number() OVER (ORDER BY v) FROM u WHERE u.k <> t.z)";
    let stock = rows(&tables(Engine::Stock).ctx, sql).await;
    assert_ne!(stock.ok(), Some(vec![vec![None], vec![Some(1)], vec![Some(2)], vec![Some(3)]]), "{sql}");
    let error = rows(&tables(Engine::Overspill).ctx, sql).await.unwrap_err().to_string();
    assert!(error.contains("IN over a correlated subquery with a window function is not supported"), "{error}");
}

#[tokio::test]
async fn select_lists_and_on_clauses() {
    mended("SELECT i IN (SELECT v FROM u) AS m FROM t", &[Some(1), None, None, None]).await;
    mended(
        "SELECT t.i FROM t LEFT JOIN u ON u.k = 10 AND t.i IN (SELECT v FROM u)",
        &[Some(1), Some(2), Some(3), None],
    )
    .await;
}
