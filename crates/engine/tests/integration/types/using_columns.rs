//! Columns that USING and NATURAL merge.

use crate::harness::session::Engine;

use super::{as_stock, check, check_refused, mended};

/// Keys of two types; each table has a key that the other two do not have, and a NULL.
const TABLES: [&str; 3] = [
    "CREATE TABLE a(k INT, x INT) AS VALUES (1, 10), (2, 20), (NULL, 99)",
    "CREATE TABLE b(k BIGINT, y INT) AS VALUES (2, 200), (3, 300), (NULL, 999)",
    "CREATE TABLE c(k INT, z INT) AS VALUES (1, 1000), (3, 3000), (4, 4000)",
];

#[tokio::test]
async fn a_merged_column_is_that_of_the_side_that_has_the_row() {
    check(
        &TABLES,
        &[
            mended(
                "SELECT * FROM a FULL JOIN b USING (k)",
                "1 10 NULL, 2 20 200, 3 NULL 300, NULL 99 NULL, NULL NULL 999",
            ),
            mended("SELECT * FROM a RIGHT JOIN b USING (k)", "2 20 200, 3 NULL 300, NULL NULL 999"),
            mended("SELECT * FROM a NATURAL RIGHT JOIN b", "2 20 200, 3 NULL 300, NULL NULL 999"),
            mended("SELECT k FROM b NATURAL FULL JOIN a", "1, 2, 3, NULL, NULL"),
            // `*` has the column of the table whose name comes first.
            mended("SELECT * FROM b LEFT JOIN a USING (k)", "200 2 20, 300 3 NULL, 999 NULL NULL"),
            as_stock("SELECT * FROM a LEFT JOIN b USING (k)", "1 10 NULL, 2 20 200, NULL 99 NULL"),
            as_stock("SELECT * FROM a JOIN b USING (k)", "2 20 200"),
            mended("SELECT * EXCLUDE (x) FROM a FULL JOIN b USING (k)", "1 NULL, 2 200, 3 300, NULL 999, NULL NULL"),
            mended("SELECT x, k + 1 FROM a RIGHT JOIN b USING (k)", "20 3, NULL 4, NULL NULL"),
            mended("SELECT k, count(*) FROM a FULL JOIN b USING (k) GROUP BY k HAVING k > 0", "1 1, 2 1, 3 1"),
            mended("SELECT sum(k) FILTER (WHERE k > 1) FROM a FULL JOIN b USING (k)", "5"),
            mended(
                "SELECT row_number() OVER (ORDER BY k DESC NULLS LAST), y FROM a RIGHT JOIN b USING (k)",
                "1 300, 2 200, 3 999",
            ),
            mended("SELECT y FROM a RIGHT JOIN b USING (k) ORDER BY k DESC NULLS LAST LIMIT 1", "300"),
            mended("SELECT max(k) FROM (SELECT k FROM a FULL JOIN b USING (k)) t", "3"),
            mended("WITH t AS (SELECT * FROM a RIGHT JOIN b USING (k)) SELECT k FROM t WHERE y = 300", "3"),
            mended(
                "SELECT count(*) FROM (SELECT k AS i FROM c) WHERE i IN (SELECT k FROM a FULL JOIN b USING (k))",
                "2",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn each_side_keeps_its_own_column() {
    check(
        &TABLES,
        &[
            mended(
                "SELECT k, a.k AS ak, b.k AS bk FROM a FULL JOIN b USING (k)",
                "1 1 NULL, 2 2 2, 3 NULL 3, NULL NULL NULL, NULL NULL NULL",
            ),
            as_stock("SELECT a.* FROM a RIGHT JOIN b USING (k)", "2 20, NULL NULL, NULL NULL"),
            as_stock("SELECT b.* FROM a RIGHT JOIN b USING (k)", "2 200, 3 300, NULL 999"),
            as_stock("SELECT y FROM a FULL JOIN b USING (k) WHERE a.k IS NULL", "300, 999, NULL"),
            as_stock("SELECT sum(a.k) FROM a FULL JOIN b USING (k)", "3"),
            as_stock("SELECT a.k FROM a RIGHT JOIN b USING (k) ORDER BY k", "2, NULL, NULL"),
            as_stock(
                "SELECT (SELECT max(z) FROM c WHERE c.k = a.k) FROM a FULL JOIN b USING (k)",
                "1000, NULL, NULL, NULL, NULL",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_join_compares_what_those_before_it_have_merged() {
    check(
        &TABLES,
        &[
            mended(
                "SELECT * FROM a FULL JOIN b USING (k) FULL JOIN c USING (k)",
                "1 10 NULL 1000, 2 20 200 NULL, 3 NULL 300 3000, 4 NULL NULL 4000, NULL 99 NULL NULL, NULL NULL 999 NULL",
            ),
            mended("SELECT * FROM a RIGHT JOIN b USING (k) JOIN c USING (k)", "3 NULL 300 3000"),
            mended("SELECT x, y, z FROM a RIGHT JOIN b USING (k) LEFT JOIN c USING (k) WHERE y < 999", "20 200 NULL, NULL 300 3000"),
            mended("SELECT y FROM a RIGHT JOIN b USING (k) LEFT SEMI JOIN c USING (k)", "300"),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_cannot_be_told_apart_is_refused() {
    let setup = [&TABLES[..], &["SET datafusion.sql_parser.collect_spans = false"]].concat();
    check_refused(
        &setup,
        &[
            ("SELECT k FROM a RIGHT JOIN b USING (k)", "write ON and coalesce"),
            ("SELECT y FROM a FULL JOIN b USING (k) WHERE a.k IS NULL", "datafusion.sql_parser.collect_spans"),
        ],
    )
    .await;
    // DataFusion takes both for `c.k`.
    check_refused(
        &TABLES,
        &[
            (
                "SELECT * FROM c WHERE EXISTS (SELECT 1 FROM a JOIN b USING (k) WHERE k = 2)",
                "write the join of the subquery with ON",
            ),
            (
                "SELECT * FROM c WHERE EXISTS (SELECT 1 FROM a JOIN b USING (k) WHERE c.k = 2)",
                "write the join of the subquery with ON",
            ),
        ],
    )
    .await;
    check(&setup, &[as_stock("SELECT b.k FROM a RIGHT JOIN b USING (k)", "2, 3, NULL")]).await;
}

/// What only [`overspill::sql`] mends, which sees the text: DataFusion's plans do not tell it.
#[tokio::test]
async fn statements_tell_merged_columns_from_those_of_tables() {
    let ours = super::session(Engine::Overspill, &TABLES).await;
    let stock = super::session(Engine::Stock, &TABLES).await;
    for (sql, right) in [
        ("SELECT sum(k) AS s, sum(a.k) AS of_a FROM a FULL JOIN b USING (k)", "6 3"),
        ("SELECT k, y FROM a FULL JOIN b USING (k) WHERE k > 1", "2 200, 3 300"),
        ("SELECT k, z FROM a FULL JOIN b USING (k) JOIN c USING (k)", "1 1000, 3 3000"),
        ("SELECT * FROM b LEFT JOIN a USING (k)", "2 200 20, 3 300 NULL, NULL 999 NULL"),
    ] {
        let frame = overspill::sql::sql(&ours.ctx, sql).await.unwrap();
        let mut rows: Vec<_> = frame.collect().await.unwrap().iter().flat_map(super::shown).collect();
        rows.sort();
        assert_eq!(rows.join(", "), right, "{sql}");
        let is_right = super::run(&stock.ctx, sql).await.is_ok_and(|answer| answer == right);
        assert!(!is_right, "stock DataFusion is right: {sql}");
    }
}
