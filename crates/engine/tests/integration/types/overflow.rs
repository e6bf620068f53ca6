//! Integers whose sums, differences and products do not fit their type.

use super::{as_stock, check, check_refused};

const EXTREMES: [&str; 1] = ["CREATE TABLE t AS SELECT * FROM (VALUES \
        (1, 9223372036854775807, 2147483647, 18446744073709551615), \
        (1, 1, 1, arrow_cast(1, 'UInt64')), \
        (2, -9223372036854775808, -2147483648, arrow_cast(0, 'UInt64')), \
        (2, NULL, NULL, NULL)) v(g, bigint, int, ubigint)"];

#[tokio::test]
async fn sums_are_exact_or_refused() {
    let sentence = "write sum(CAST(x AS DECIMAL(38, 0)))";
    check_refused(
        &EXTREMES,
        &[
            ("SELECT sum(bigint) FROM t WHERE g = 1", sentence),
            ("SELECT sum(bigint) FROM t WHERE bigint > 0", sentence),
            ("SELECT sum(bigint) FILTER (WHERE g = 1) FROM t", sentence),
            ("SELECT g, sum(bigint) FROM t GROUP BY g", sentence),
            ("SELECT sum(DISTINCT bigint) FROM t WHERE g = 1", sentence),
            ("SELECT g, sum(DISTINCT bigint), count(DISTINCT int), sum(int) FROM t GROUP BY g", sentence),
            ("SELECT sum(bigint) OVER (ORDER BY bigint DESC) FROM t WHERE g = 1", sentence),
            ("SELECT sum(bigint) OVER (ORDER BY int ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t", sentence),
            ("SELECT sum(ubigint) FROM t", "BIGINT UNSIGNED"),
            ("SELECT sum(a.bigint) FROM t a JOIN t b ON a.g = b.g WHERE b.int = 1", sentence),
        ],
    )
    .await;
    check(
        &EXTREMES,
        &[
            as_stock("SELECT sum(bigint), sum(int) FROM t", "0 0"),
            as_stock("SELECT g, sum(bigint), sum(int) FROM t WHERE int < 5 GROUP BY g", "1 1 1, 2 -9223372036854775808 -2147483648"),
            as_stock("SELECT sum(bigint) FROM t WHERE bigint IS NULL", "NULL"),
            as_stock("SELECT sum(ubigint) FROM t WHERE ubigint > 1", "18446744073709551615"),
            as_stock("SELECT sum(CAST(bigint AS DECIMAL(38, 0))) FROM t WHERE g = 1", "9223372036854775808"),
            as_stock(
                "SELECT sum(bigint) OVER (ORDER BY bigint ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t WHERE int < 5",
                "-9223372036854775807, -9223372036854775808",
            ),
            as_stock("SELECT sum(DISTINCT bigint), count(DISTINCT int), sum(int) FROM t WHERE int < 5", "-9223372036854775807 2 -2147483647"),
            as_stock("SELECT avg(int) FROM t WHERE g = 1", "1073741824.0"),
        ],
    )
    .await;
}

#[tokio::test]
async fn arithmetic_is_exact_or_refused() {
    let sentence = "is beyond the range of Int64: write CAST(x AS DECIMAL(38, 0))";
    check_refused(
        &EXTREMES,
        &[
            ("SELECT bigint + 1 FROM t", sentence),
            ("SELECT bigint - 1 FROM t", sentence),
            ("SELECT bigint * 2 FROM t", sentence),
            ("SELECT -bigint FROM t", sentence),
            ("SELECT 9223372036854775807 + 1", sentence),
            ("SELECT CAST(int AS INT) + CAST(int AS INT) FROM t", "is beyond the range of Int32"),
            ("SELECT count(*) FROM t WHERE bigint + 1 > 5", sentence),
            ("SELECT sum(bigint + 1) FROM t WHERE g = 1", sentence),
            ("SELECT sum(bigint * bigint) FROM t WHERE bigint > 0", sentence),
            ("SELECT count(*) FROM t a JOIN t b ON a.bigint * 2 = b.bigint", sentence),
        ],
    )
    .await;
    check(
        &EXTREMES,
        &[
            as_stock(
                "SELECT int + 1, int * CAST(2 AS BIGINT), 1 - int FROM t WHERE g = 1",
                "2 2 0, 2147483648 4294967294 -2147483646",
            ),
            as_stock("SELECT CAST(bigint AS DECIMAL(38, 0)) + 1 FROM t WHERE int > 1", "9223372036854775808"),
            as_stock("SELECT sum(bigint * bigint), sum(bigint + g) FROM t WHERE bigint < 5 AND bigint > 0", "1 2"),
            as_stock("SELECT bigint + 1 FROM t WHERE bigint < 5 ORDER BY bigint + 1", "-9223372036854775807, 2"),
        ],
    )
    .await;
}
