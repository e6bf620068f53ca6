//! What joins cannot compute.

use super::{register, rows, session};
use crate::harness::session::Engine;

#[tokio::test]
async fn what_joins_cannot_compute_is_refused_in_a_sentence() {
    let session = session(Engine::Overspill);
    register(&session.ctx, "t", &["id", "x"], &[vec![Some(1), Some(1)], vec![Some(2), None]]);
    register(&session.ctx, "u", &["k", "v"], &[vec![Some(1), Some(1)], vec![Some(2), None]]);
    for (sql, words) in [
        (
            "SELECT id FROM t WHERE x IN (SELECT v FROM u WHERE u.k = t.id LIMIT 1)",
            "with LIMIT or OFFSET is not supported",
        ),
        (
            "SELECT id FROM t WHERE x IN (SELECT v FROM u WHERE u.k = t.id ORDER BY v LIMIT 1)",
            "with LIMIT or OFFSET is not supported",
        ),
        (
            "SELECT id, x IN (SELECT max(v) OVER () FROM u WHERE u.k = t.id) AS m FROM t",
            "with a window function is not supported",
        ),
        (
            "SELECT id FROM t WHERE x NOT IN (SELECT v FROM u WHERE u.k = t.id UNION ALL SELECT k FROM u)",
            "with UNION is not supported",
        ),
        (
            "SELECT id FROM t WHERE x IN (SELECT max(v) FROM u WHERE u.k < t.id GROUP BY v)",
            "that is not an equality, is not supported",
        ),
        (
            "SELECT id FROM t WHERE x IN (SELECT count(*) FROM u WHERE u.k = t.id HAVING count(*) > 0)",
            "an aggregate without GROUP BY below other clauses",
        ),
        (
            "SELECT id FROM t WHERE x IN (SELECT v + t.id FROM u WHERE u.k = t.id)",
            "in its SELECT list is not supported",
        ),
        (
            "SELECT id FROM t WHERE x IN (SELECT u.v FROM u LEFT JOIN (SELECT * FROM u WHERE k = t.id) w ON w.k = u.k)",
            "on the inner side of an outer join",
        ),
        (
            "SELECT id FROM t WHERE (x IN (SELECT v FROM u WHERE u.k = t.id AND random() >= 0)) IS NULL",
            "LIMIT or with random values is not supported",
        ),
        (
            "SELECT t.id FROM t LEFT JOIN u ON t.id + u.k IN (SELECT v FROM u)",
            "in the ON clause of an outer join if it reads columns of both sides",
        ),
        ("SELECT count(*) FROM t GROUP BY ROLLUP (x IN (SELECT v FROM u))", "in GROUPING SETS, ROLLUP or CUBE"),
        (
            "SELECT id FROM t WHERE (x IN (SELECT v FROM u WHERE EXISTS (SELECT 1 FROM u w WHERE w.k = t.id))) IS NULL",
            "a subquery which refers to t.id, of the query around both, is not supported",
        ),
        (
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE t.x IN (SELECT v FROM u) OR u.k = 1)",
            "is not supported where the value is of a query further out",
        ),
        (
            "SELECT id FROM t WHERE (id, x) IN (SELECT k, v FROM u)",
            "Too many columns! The subquery should only return one column",
        ),
    ] {
        let error = match rows(&session.ctx, sql).await {
            Ok(answer) => panic!("{sql} gives {answer:?}"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(words), "{sql}: {error}");
    }
}
