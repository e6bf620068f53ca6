//! Values of different types that are compared, or brought to one type.

use super::{as_stock, check, check_refused, mended, run, session};
use crate::harness::session::Engine;

const NUMBERS: [&str; 1] = ["CREATE TABLE t AS SELECT * FROM (VALUES \
        (CAST(0.1 AS DOUBLE) + CAST(0.2 AS DOUBLE), CAST(0.30 AS DECIMAL(20, 2)), CAST(16777216 AS REAL), 16777217, \
         9223372036854775807, 18446744073709551615), \
        (CAST('NaN' AS DOUBLE), CAST(1.40 AS DECIMAL(20, 2)), CAST(1 AS REAL), 1, 1, arrow_cast(1, 'UInt64')), \
        (CAST(1 AS DOUBLE), CAST(123456789012.34 AS DECIMAL(20, 2)), CAST(2 AS REAL), 2, -9223372036854775808, arrow_cast(2, 'UInt64'))) \
     v(double, decimal, real, int, bigint, ubigint)"];

#[tokio::test]
async fn a_double_and_a_decimal_are_compared_as_doubles() {
    check(
        &NUMBERS,
        &[
            mended("SELECT count(*) FROM t a JOIN t b ON a.double = b.decimal", "0"),
            mended("SELECT count(*) FROM t a FULL JOIN t b ON a.double = b.decimal", "6"),
            mended("SELECT count(*) FROM t WHERE double > decimal", "2"),
            mended("SELECT count(*) FROM t WHERE double IN (decimal, 7)", "0"),
            mended("SELECT count(*) FROM t WHERE double NOT BETWEEN decimal AND 100000", "2"),
            mended("SELECT count(*) FROM t WHERE double IN (SELECT decimal FROM t)", "0"),
            mended("SELECT count(*) FROM t WHERE decimal IN (SELECT double FROM t)", "0"),
            mended("SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.double = t.decimal)", "0"),
            mended("SELECT CASE double WHEN decimal THEN 'same' ELSE 'other' END FROM t", "other, other, other"),
            mended(
                "SELECT count(*) FROM (SELECT double AS k FROM t) a JOIN (SELECT decimal AS k FROM t) b USING (k)",
                "0",
            ),
            mended("SELECT decimal FROM t WHERE int < 2 UNION ALL SELECT double FROM t WHERE int = 1", "1.4, NaN"),
            mended("SELECT coalesce(NULLIF(double, 1), decimal) FROM t", "0.30000000000000004, 123456789012.34, NaN"),
            mended("SELECT CASE WHEN int < 2 THEN double ELSE decimal END FROM t", "0.3, 123456789012.34, NaN"),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_number_in_the_query_is_compared_with_decimals_as_it_is_written() {
    check(
        &NUMBERS,
        &[
            mended("SELECT count(*) FROM t WHERE decimal = 123456789012.34", "1"),
            mended("SELECT count(*) FROM t WHERE decimal IN (1.4, 123456789012.34)", "2"),
            mended("SELECT count(*) FROM t WHERE decimal BETWEEN 123456789012.34 AND 123456789012.34", "1"),
            as_stock("SELECT count(*) FROM t WHERE decimal = 0.1 + 0.2", "1"),
            as_stock("SELECT count(*) FROM t WHERE decimal BETWEEN 0.29 + 0.01 AND 1.39 + 0.01", "2"),
            mended("SELECT count(*) FROM t WHERE decimal < 1e40", "3"),
            mended("SELECT decimal FROM t WHERE int = 1 UNION ALL SELECT 0.5", "0.50, 1.40"),
        ],
    )
    .await;
}

#[tokio::test]
async fn integers_are_compared_by_all_their_digits() {
    check(
        &NUMBERS,
        &[
            mended("SELECT count(*) FROM t a JOIN t b ON a.real = b.int", "2"),
            mended("SELECT count(*) FROM t WHERE real = int", "2"),
            mended("SELECT real FROM t WHERE int = 1 UNION SELECT int FROM t", "1.0, 16777217.0, 2.0"),
            mended("SELECT count(*) FROM t WHERE ubigint = 18446744073709551616", "0"),
            mended("SELECT count(*) FROM t WHERE ubigint < 18446744073709551616", "3"),
            mended("SELECT count(*) FROM t WHERE bigint IN (9223372036854775806, 0.5)", "0"),
            as_stock("SELECT count(*) FROM t WHERE bigint = 9223372036854775808", "0"),
            as_stock("SELECT count(*) FROM t WHERE bigint < 9223372036854775808", "3"),
            as_stock("SELECT count(*) FROM t a JOIN t b ON a.bigint = b.ubigint", "1"),
        ],
    )
    .await;
    let lost = "may have lost digits";
    check_refused(
        &NUMBERS,
        &[
            ("SELECT count(*) FROM t WHERE bigint > -9223372036854775809", lost),
            ("SELECT count(*) FROM t WHERE CAST(decimal AS DECIMAL(38, 0)) = 18446744073709551617", lost),
            ("SELECT CAST(18446744073709551617 AS DECIMAL(38, 0))", lost),
        ],
    )
    .await;
}

#[tokio::test]
async fn text_is_a_number_or_a_date_or_an_error() {
    let tables = ["CREATE TABLE t(s VARCHAR, day DATE) AS VALUES ('01', DATE '2024-01-01'), ('1', DATE '2024-01-02')"];
    check(
        &tables,
        &[
            as_stock("SELECT s FROM t WHERE s = 1", "01, 1"),
            as_stock("SELECT s FROM t WHERE s IN (1, 2)", "01, 1"),
            as_stock("SELECT s FROM t WHERE day > '2024-01-01'", "1"),
        ],
    )
    .await;
    for engine in [crate::harness::session::Engine::Stock, crate::harness::session::Engine::Overspill] {
        let session = super::session(engine, &tables).await;
        for sql in ["SELECT 'abc' = 1", "SELECT s FROM t WHERE s || 'x' = 1", "SELECT s FROM t WHERE day = 'abc'"] {
            let error = super::run(&session.ctx, sql).await.expect_err(sql).to_string();
            assert!(error.contains("Cannot cast string"), "{error}");
        }
    }
    check_refused(
        &tables,
        &[
            ("SELECT s FROM t WHERE day = 19724", "is a date and cannot be compared"),
            ("SELECT s FROM t WHERE day IN (19723, 19724)", "is a date and cannot be compared"),
            ("SELECT day FROM t UNION ALL SELECT 5", "is a date and cannot be compared"),
        ],
    )
    .await;
}

#[tokio::test]
async fn casts_that_lose_something_stay_in_comparisons() {
    check(
        &NUMBERS,
        &[
            mended("SELECT decimal FROM t WHERE CAST(decimal AS BIGINT) = 1", "1.40"),
            mended("SELECT decimal FROM t WHERE CAST(decimal AS BIGINT) IN (0, 1)", "0.30, 1.40"),
            mended("SELECT decimal FROM t WHERE CAST(decimal AS DECIMAL(20, 1)) = 123456789012.3", "123456789012.34"),
            mended("SELECT int FROM t WHERE TRY_CAST(bigint AS INT) <> 5", "1"),
            as_stock("SELECT int FROM t WHERE CAST(int AS BIGINT) = 2", "2"),
        ],
    )
    .await;
}

/// One instant, in the three types that can tell it, and the local time that it is in New York.
const TIMES: [&str; 1] = ["CREATE TABLE t AS SELECT \
        arrow_cast(TIMESTAMP '2024-01-15 00:00:00', 'Timestamp(Microsecond, None)') AS local, \
        DATE '2024-01-15' AS day, \
        arrow_cast('2024-01-15T05:00:00Z', 'Timestamp(Millisecond, Some(\"Europe/Berlin\"))') AS berlin, \
        arrow_cast('2024-01-15T05:00:00Z', 'Timestamp(Nanosecond, Some(\"Asia/Tokyo\"))') AS tokyo, \
        '2024-01-15 00:00:00' AS text"];

#[tokio::test]
async fn local_times_and_dates_are_of_the_session_s_zone() {
    let setup = [&TIMES[..], &["SET datafusion.execution.time_zone = 'America/New_York'"]].concat();
    check(
        &setup,
        &[
            mended("SELECT local = berlin, berlin = local, local = tokyo FROM t", "true true true"),
            mended("SELECT day = berlin, tokyo >= day, tokyo > day FROM t", "true true false"),
            mended("SELECT text = berlin, tokyo = '2024-01-15 00:00:00' FROM t", "true true"),
            as_stock("SELECT berlin = tokyo, local = day FROM t", "true true"),
            mended("SELECT count(*) FROM t a JOIN t b ON a.local = b.berlin", "1"),
            mended("SELECT count(*) FROM t a JOIN t b ON a.tokyo = b.day", "1"),
            mended(
                "SELECT count(*) FROM (SELECT local AS k FROM t) a JOIN (SELECT tokyo AS k FROM t) b USING (k)",
                "1",
            ),
            mended("SELECT count(*) FROM t WHERE berlin IN (SELECT local FROM t)", "1"),
            mended("SELECT count(*) FROM t WHERE day IN (SELECT berlin FROM t)", "1"),
            mended("SELECT berlin IN (local), berlin BETWEEN day AND local FROM t", "true true"),
            mended("SELECT count(*) FROM (SELECT local FROM t UNION SELECT berlin FROM t)", "1"),
            mended("SELECT coalesce(NULLIF(berlin, berlin), local) = tokyo FROM t", "true"),
            // A constant must not take the zone away from the column that is compared with it.
            mended("SELECT count(*) FROM t WHERE local = TIMESTAMPTZ '2024-01-15 00:00:00'", "1"),
            mended("SELECT count(*) FROM t WHERE CAST(local AS TIMESTAMPTZ) = TIMESTAMPTZ '2024-01-15 00:00:00'", "1"),
        ],
    )
    .await;
    let utc = "false false";
    check(
        &TIMES,
        &[
            as_stock("SELECT local = berlin, local = tokyo FROM t", utc),
            as_stock("SELECT day = berlin, day = tokyo FROM t", utc),
        ],
    )
    .await;
}

#[tokio::test]
async fn dates_beyond_the_range_of_nanoseconds_are_compared() {
    let times = ["CREATE TABLE t AS SELECT DATE '9999-12-31' AS day, \
                  arrow_cast(TIMESTAMP '2024-01-15 00:00:00', 'Timestamp(Microsecond, None)') AS local"];
    check(&times, &[mended("SELECT day > local FROM t", "true")]).await;
}

#[tokio::test]
async fn a_long_list_of_two_types_becomes_two_lists() {
    let ours = session(Engine::Overspill, &["CREATE TABLE t AS SELECT value AS n FROM range(10000)"]).await;
    let items = (0..3000).map(|item| (3 * item).to_string()).collect::<Vec<_>>().join(", ");
    let sql = format!("SELECT count(*) FROM t WHERE n IN ({items}, 2.5, 3.0, 4.0)");
    assert_eq!(run(&ours.ctx, &sql).await.unwrap(), "3001");
    let plan = run(&ours.ctx, &format!("EXPLAIN {sql}")).await.unwrap();
    // Each item an equality of its own took seconds to plan.
    assert!(plan.matches(" OR ").count() < 10, "{plan}");
    check(
        &NUMBERS,
        &[
            as_stock("SELECT count(*) FROM t WHERE int IN (1, 2.5, 16777217)", "2"),
            as_stock("SELECT count(*) FROM t WHERE int NOT IN (1, 2.5)", "2"),
            as_stock("SELECT count(*) FROM t WHERE int NOT IN (1, 2.5, NULL)", "0"),
            as_stock("SELECT int IN (1, 2.5, NULL) FROM t", "NULL, NULL, true"),
            mended("SELECT count(*) FROM t WHERE bigint IN (9223372036854775806, 0.5)", "0"),
        ],
    )
    .await;
}
