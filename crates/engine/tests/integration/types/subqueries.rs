//! Scalar subqueries without FROM, and IS TRUE and its like below groups.

use super::{check, mended};

const TABLE: [&str; 1] = ["CREATE TABLE t(i INT, y INT) AS VALUES (1, 10), (2, 20), (3, NULL)"];

#[tokio::test]
async fn a_subquery_without_from_is_its_expression() {
    check(
        &TABLE,
        &[
            mended("SELECT (SELECT i) FROM t", "1, 2, 3"),
            mended("SELECT (SELECT 1 WHERE false)", "NULL"),
            mended("SELECT i, (SELECT i + 1 WHERE i > 1) FROM t", "1 NULL, 2 3, 3 4"),
        ],
    )
    .await;
}

#[tokio::test]
async fn truth_tests_may_be_grouped() {
    check(
        &TABLE,
        &[
            mended("SELECT DISTINCT (y > 10) IS FALSE FROM t", "false, true"),
            mended("SELECT b, count(*) FROM (SELECT (y > 10) IS NOT TRUE AS b FROM t) GROUP BY b", "false 1, true 2"),
        ],
    )
    .await;
}
