//! Numbers and durations whose sums, differences and products do not fit their type.

use super::{as_stock, check, check_refused, mended};

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
async fn sums_of_intervals_are_exact_or_refused() {
    let setup = ["CREATE TABLE t AS SELECT * FROM (VALUES (1, INTERVAL '2500000 hours', INTERVAL '1 month 2 days'), \
                  (1, INTERVAL '-2500000 hours', INTERVAL '3 days'), (2, INTERVAL '2500000 hours', INTERVAL '2000000000 days'), \
                  (2, INTERVAL '2500000 hours', INTERVAL '1 month'), (3, NULL, NULL)) v(g, h, d)"];
    let sentence = "a sum of intervals is beyond the range of INTERVAL";
    check_refused(
        &setup,
        &[
            ("SELECT sum(h) FROM t WHERE g = 2", sentence),
            ("SELECT g, sum(h) FROM t GROUP BY g", sentence),
            ("SELECT sum(d) FROM (SELECT d FROM t UNION ALL SELECT d FROM t) s", sentence),
            ("SELECT sum(h) OVER (ORDER BY h ROWS 1 PRECEDING) FROM t", sentence),
            (
                "SELECT sum(DISTINCT d), count(DISTINCT g) FROM (SELECT g, d FROM t UNION ALL SELECT g, d + INTERVAL '1 day' FROM t) s",
                sentence,
            ),
        ],
    )
    .await;
    check(
        &setup,
        &[
            as_stock("SELECT sum(h) FROM t WHERE h IS NULL", "NULL"),
            as_stock("SELECT g, sum(d) FROM t GROUP BY g", "1 1 mons 5 days, 2 1 mons 2000000000 days, 3 NULL"),
            as_stock("SELECT sum(DISTINCT h), count(DISTINCT g) FROM t", "0 secs 3"),
            as_stock("SELECT sum(h) FROM t WHERE g < 2", "0 secs"),
            as_stock("SELECT sum(extract(epoch FROM h)) FROM t", "18000000000.0"),
            as_stock("SELECT sum(d) OVER (ORDER BY d ROWS 1 PRECEDING) FROM t WHERE g = 1", "1 mons 5 days, 3 days"),
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
            ("SELECT bigint + 1 - 1 FROM t", sentence),
            ("SELECT bigint * 2 * 0 FROM t", sentence),
            ("SELECT bigint - (1 - 3) FROM t WHERE g = 1", sentence),
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
            as_stock(
                "SELECT bigint - 1 + 1, bigint - (1 + g) + g, g * 2 * 3 - g * 4 + 1, g - 1 - 2 - (3 - g) FROM t WHERE g = 1",
                "1 0 3 -4, 9223372036854775807 9223372036854775806 3 -4",
            ),
            as_stock("SELECT bigint + g + g FROM t WHERE bigint IS NULL", "NULL"),
            as_stock("SELECT CAST(bigint AS DECIMAL(38, 0)) + 1 FROM t WHERE int > 1", "9223372036854775808"),
            as_stock("SELECT sum(bigint * bigint), sum(bigint + g) FROM t WHERE bigint < 5 AND bigint > 0", "1 2"),
            as_stock("SELECT bigint + 1 FROM t WHERE bigint < 5 ORDER BY bigint + 1", "-9223372036854775807, 2"),
        ],
    )
    .await;
}

/// The greatest `DECIMAL(38, 0)` and its neighbour, the least, and the same of 76 digits.
const DECIMALS: [&str; 2] = [
    "CREATE TABLE t AS SELECT g, i, CAST(d AS DECIMAL(38, 0)) AS d, CAST(e AS DECIMAL(76, 0)) AS e FROM (VALUES \
        (1, 1, '99999999999999999999999999999999999999', \
            '9999999999999999999999999999999999999999999999999999999999999999999999999999'), \
        (1, 2, '99999999999999999999999999999999999998', \
            '9999999999999999999999999999999999999999999999999999999999999999999999999998'), \
        (2, 3, '-99999999999999999999999999999999999999', '1'), \
        (2, 4, '0', '2'), (3, 5, NULL, NULL)) v(g, i, d, e)",
    "CREATE TABLE durations AS SELECT g, arrow_cast(n, 'Duration(ns)') AS n FROM (VALUES \
        (1, 9000000000000000000), (1, 9000000000000000000), (2, -5), (3, NULL)) v(g, n)",
];

#[tokio::test]
async fn sums_of_decimals_are_exact_or_refused() {
    let sentence = "a sum is beyond the range of DECIMAL(38, 0): write sum(CAST(x AS DECIMAL(76, 0)))";
    check_refused(
        &DECIMALS,
        &[
            ("SELECT sum(d) FROM t WHERE g = 1", sentence),
            ("SELECT sum(d) FROM t WHERE d > 0", sentence),
            ("SELECT sum(d) FROM t WHERE i < 3 AND g < 5", sentence),
            ("SELECT sum(d) FILTER (WHERE g = 1) FROM t", sentence),
            ("SELECT g, sum(d) FROM t GROUP BY g", sentence),
            ("SELECT g, sum(d) FROM t GROUP BY GROUPING SETS ((g), ())", sentence),
            ("SELECT sum(DISTINCT d) FROM t WHERE g = 1", sentence),
            ("SELECT g, sum(DISTINCT d), count(DISTINCT i), sum(i) FROM t GROUP BY g", sentence),
            ("SELECT sum(d) OVER (ORDER BY i) FROM t", sentence),
            ("SELECT sum(d) OVER (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t", sentence),
            ("SELECT sum(a.d) FROM t a JOIN t b ON a.g = b.g WHERE b.i = 1", sentence),
            // They fit 256 bits, but not 76 digits.
            ("SELECT sum(e) FROM t", "no DECIMAL has more digits; write sum(CAST(x AS DOUBLE))"),
            ("SELECT g, sum(e) FROM t GROUP BY g", "a sum is beyond the range of DECIMAL(76, 0)"),
            (
                "SELECT sum(n) FROM durations",
                "beyond the range of Duration(ns): write sum(arrow_cast(x, 'Duration(s)'))",
            ),
            ("SELECT g, sum(n) FROM durations GROUP BY g", "beyond the range of Duration(ns)"),
        ],
    )
    .await;
    check(
        &DECIMALS,
        &[
            // The sum of the first two is beyond the range, that of all is not.
            as_stock("SELECT sum(d) FROM t", "99999999999999999999999999999999999998"),
            as_stock("SELECT g, sum(d), sum(i) FROM t WHERE i <> 2 GROUP BY g", "1 99999999999999999999999999999999999999 1, 2 -99999999999999999999999999999999999999 7, 3 NULL 5"),
            as_stock("SELECT sum(d) FROM t WHERE d IS NULL", "NULL"),
            as_stock("SELECT sum(CAST(d AS DECIMAL(76, 0))) FROM t WHERE g = 1", "199999999999999999999999999999999999997"),
            as_stock(
                "SELECT sum(d) OVER (ORDER BY i DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t WHERE i > 1",
                "-1, -99999999999999999999999999999999999999, 0, NULL",
            ),
            mended(
                "SELECT sum(DISTINCT d) OVER (ORDER BY i DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t WHERE i > 1",
                "-1, -99999999999999999999999999999999999999, 0, NULL",
            ),
            as_stock("SELECT sum(DISTINCT d), count(DISTINCT g) FROM t", "99999999999999999999999999999999999998 3"),
            as_stock("SELECT avg(CAST(d AS DECIMAL(76, 0))) FROM t WHERE g = 2", "-49999999999999999999999999999999999999.5000"),
            mended("SELECT avg(n) FROM durations WHERE g = 1", "PT9000000000S"),
            mended("SELECT g, avg(n) FROM durations GROUP BY g", "1 PT9000000000S, 2 -PT0.000000005S, 3 NULL"),
            as_stock("SELECT sum(arrow_cast(n, 'Duration(s)')) FROM durations", "PT18000000000S"),
        ],
    )
    .await;
}

/// Each partition's sum of a group is far beyond the range, and leaves with its carry.
#[tokio::test]
async fn partial_sums_may_be_beyond_the_range() {
    let setup = ["CREATE TABLE r AS SELECT value AS v, value % 3 AS g, \
            CASE WHEN value <= 6000 THEN 9223372036854775807 ELSE -9223372036854775807 END AS n, \
            CASE WHEN value <= 6000 THEN CAST('99999999999999999999999999999999999999' AS DECIMAL(38, 0)) \
                ELSE CAST('-99999999999999999999999999999999999999' AS DECIMAL(38, 0)) END AS d \
            FROM range(1, 12001)"];
    check(
        &setup,
        &[
            as_stock("SELECT g, sum(n), sum(d), sum(v) FROM r GROUP BY g", "0 0 0 24006000, 1 0 0 23998000, 2 0 0 24002000"),
            as_stock("SELECT sum(n), sum(d) FROM r", "0 0"),
            as_stock("SELECT count(*), min(s), max(t) FROM (SELECT v, sum(n) AS s, sum(d) AS t FROM r GROUP BY v)", "12000 -9223372036854775807 99999999999999999999999999999999999999"),
            as_stock("SELECT g, sum(n) FILTER (WHERE v > 6000 OR v < 6001), sum(d) FROM r WHERE v <> 1 AND v <> 12000 GROUP BY g", "0 9223372036854775807 99999999999999999999999999999999999999, 1 -9223372036854775807 -99999999999999999999999999999999999999, 2 0 0"),
        ],
    )
    .await;
    check_refused(
        &setup,
        &[
            ("SELECT g, sum(n) FROM r WHERE v < 11995 GROUP BY g", "a sum is 18446744073709551614, which is beyond"),
            ("SELECT g, sum(d) FROM r WHERE v < 11995 GROUP BY g", "a sum is beyond the range of DECIMAL(38, 0)"),
        ],
    )
    .await;
}

#[tokio::test]
async fn arithmetic_of_decimals_is_exact_or_refused() {
    let setup = [
        DECIMALS[0],
        "CREATE TABLE s AS SELECT CAST('9999999999999999999' AS DECIMAL(19, 0)) AS a, \
            CAST('1' AS DECIMAL(38, 0)) AS one, CAST('0.1' AS DECIMAL(38, 1)) AS tenth",
    ];
    // Each result has 39 digits and fits 128 bits.
    check_refused(
        &setup,
        &[
            (
                "SELECT d + 1 FROM t WHERE g = 1",
                "a sum of decimals is beyond the range of DECIMAL(38, 0): write CAST(x AS DECIMAL(76, 0)) for an operand x",
            ),
            ("SELECT d - 1 FROM t", "a difference of decimals"),
            ("SELECT max(d + 1) FROM t", "a sum of decimals"),
            ("SELECT CAST('99999999999999999999999999999999999999' AS DECIMAL(38, 0)) + 1", "a sum of decimals"),
            ("SELECT CAST('15000000000000000000000000000000000' AS DECIMAL(35, 0)) * CAST(10000 AS DECIMAL(5, 0))", "a product of decimals"),
            ("SELECT CAST('1500000000000000000000000000000000' AS DECIMAL(38, 0)) / CAST(0.1 AS DECIMAL(1, 1))", "a quotient of decimals"),
        ],
    )
    .await;
    check(
        &setup,
        &[
            as_stock(
                "SELECT CAST(d AS DECIMAL(76, 0)) + 1 FROM t WHERE i = 1",
                "100000000000000000000000000000000000000",
            ),
            as_stock(
                "SELECT d - 1 FROM t WHERE g = 1",
                "99999999999999999999999999999999999997, 99999999999999999999999999999999999998",
            ),
            as_stock(
                "SELECT a * a, a + one, one / tenth FROM s",
                "99999999999999999980000000000000000001 10000000000000000000 10.0000",
            ),
            as_stock("SELECT d + 1 FROM t WHERE i > 3", "1, NULL"),
        ],
    )
    .await;
}
