//! A TIMESTAMP WITH TIME ZONE that becomes local time.

use super::{as_stock, check, mended};

/// 2024-03-02 00:30 in Berlin, 18:30 of the day before in New York: `t` as SQL makes it, `u` as Parquet files have it.
const MOMENT: &str = "CREATE TABLE z AS SELECT CAST('2024-03-01 23:30:00+00' AS TIMESTAMP WITH TIME ZONE) AS t, \
    arrow_cast('2024-03-01 23:30:00', 'Timestamp(µs, \"UTC\")') AS u";

#[tokio::test]
async fn casts_give_local_time_of_the_sessions_zone() {
    let setup = [
        "SET datafusion.execution.time_zone = 'Europe/Berlin'",
        MOMENT,
        "CREATE TABLE moments (m TIMESTAMP)",
        "INSERT INTO moments SELECT t FROM z",
        "CREATE TABLE nights AS SELECT * FROM (VALUES (CAST('2024-10-27 00:30:00+00' AS TIMESTAMP WITH TIME ZONE)), \
            (CAST('2024-10-27 01:30:00+00' AS TIMESTAMP WITH TIME ZONE)), (NULL)) v(t)",
    ];
    check(
        &setup,
        &[
            mended("SELECT CAST(t AS TIMESTAMP), t::timestamp AS u FROM z", "2024-03-02T00:30:00 2024-03-02T00:30:00"),
            mended("SELECT TRY_CAST(t AS TIMESTAMP) FROM z", "2024-03-02T00:30:00"),
            as_stock("SELECT CAST(t AS DATE) AS d, CAST(t AS TIME) FROM z", "2024-03-02 00:30:00"),
            mended("SELECT CAST(u AS TIMESTAMP) FROM z", "2024-03-02T00:30:00"),
            mended("SELECT CAST(u AS DATE) AS d, CAST(u AS TIME) FROM z", "2024-03-02 00:30:00"),
            mended("SELECT count(*) FROM z WHERE CAST(t AS TIMESTAMP) = TIMESTAMP '2024-03-02 00:30:00'", "1"),
            mended("SELECT count(*) FROM z WHERE CAST(u AS DATE) = DATE '2024-03-02'", "1"),
            as_stock("SELECT count(*) FROM z WHERE CAST(t AS DATE) = DATE '2024-03-02'", "1"),
            as_stock("SELECT count(*) FROM z WHERE CAST(t AS DATE) > DATE '2024-03-01'", "1"),
            mended("SELECT count(*) FROM z WHERE CAST(CAST(t AS TIMESTAMP) AS TIMESTAMP WITH TIME ZONE) = u", "1"),
            mended("SELECT CAST(u AS DATE), count(*) FROM z GROUP BY CAST(u AS DATE)", "2024-03-02 1"),
            mended("SELECT a.m FROM moments a JOIN z ON a.m = CAST(z.u AS TIMESTAMP)", "2024-03-02T00:30:00"),
            mended("SELECT m FROM moments", "2024-03-02T00:30:00"),
            // Clocks are set back at 3: both are 2:30.
            mended("SELECT t::timestamp FROM nights", "2024-10-27T02:30:00, 2024-10-27T02:30:00, NULL"),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_zone_that_the_query_names_counts() {
    let setup = ["SET datafusion.execution.time_zone = 'Europe/Berlin'", MOMENT];
    check(
        &setup,
        &[
            mended("SELECT CAST(u AT TIME ZONE 'America/New_York' AS TIMESTAMP) FROM z", "2024-03-01T18:30:00"),
            as_stock("SELECT CAST(t AT TIME ZONE 'America/New_York' AS DATE) FROM z", "2024-03-01"),
            as_stock("SELECT CAST(t AT TIME ZONE 'UTC' AS TIMESTAMP) FROM z", "2024-03-01T23:30:00"),
            as_stock("SELECT CAST(x AS TIME) FROM (SELECT t AT TIME ZONE 'America/New_York' AS x FROM z)", "18:30:00"),
        ],
    )
    .await;
    check(
        &[MOMENT],
        &[as_stock(
            "SELECT CAST(t AS TIMESTAMP), CAST(t AS DATE) AS d, CAST(u AS TIMESTAMP) FROM z",
            "2024-03-01T23:30:00 2024-03-01 2024-03-01T23:30:00",
        )],
    )
    .await;
}
