//! Random `DELETE`s and `UPDATE`s change the rows that a query with the same filter gives.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::{column, run, session};

const CASES: u64 = 40;

/// A random filter over the columns k and v of t, which may be null, and the table s(x, y).
fn filter(rng: &mut StdRng, depth: usize) -> String {
    let number = rng.random_range(-2..12);
    let simple = match rng.random_range(0..9) {
        0 => format!("k < {number}"),
        1 => format!("v = {number}"),
        2 => "v IS NULL".to_owned(),
        3 => format!("k IN (SELECT x FROM s WHERE y > {number})"),
        4 => format!("v NOT IN (SELECT x FROM s WHERE x IS NOT NULL AND y < {number})"),
        5 => format!("EXISTS (SELECT 1 FROM s WHERE s.x = t.v AND s.y > {number})"),
        6 => "NOT EXISTS (SELECT 1 FROM s WHERE s.x = t.k)".to_owned(),
        7 => format!("k > (SELECT min(x) + {number} FROM s)"),
        _ => format!("{number} = {}", rng.random_range(-2..12)),
    };
    if depth == 0 {
        return simple;
    }
    let other = filter(rng, depth - 1);
    match rng.random_range(0..4) {
        0 => format!("({simple} OR {other})"),
        1 => format!("NOT ({simple} AND {other})"),
        _ => format!("{simple} AND {other}"),
    }
}

#[tokio::test]
async fn the_rows_of_a_query_are_changed() {
    for seed in 0..CASES {
        let rng = &mut StdRng::seed_from_u64(seed);
        let session = session();
        let rows = *[0, 1, 9, 40].choose(rng).unwrap();
        run(
            &session,
            &format!(
                "CREATE TABLE t AS SELECT value AS id, value % 13 AS k, nullif(value % 7, 3) AS v FROM range({rows}); \
                 CREATE TABLE s AS SELECT nullif(value * 5 % 11, 4) AS x, value AS y FROM range(8)"
            ),
        )
        .await;
        for _ in 0..3 {
            let depth = rng.random_range(0..3);
            let filter = filter(rng, depth);
            let before: BTreeMap<i64, Option<i64>> =
                run(&session, "SELECT id, v FROM t").await.into_iter().map(|row| (row[0].unwrap(), row[1])).collect();
            let chosen = column(&session, &format!("SELECT id FROM t WHERE {filter}")).await;
            let mut expected = before;
            let sql = if rng.random_bool(0.5) {
                chosen.iter().for_each(|id| _ = expected.remove(id));
                format!("DELETE FROM t WHERE {filter}")
            } else {
                chosen.iter().for_each(|id| _ = expected.insert(*id, Some(id + 100)));
                format!("UPDATE t SET v = id + 100 WHERE {filter}")
            };
            assert_eq!(column(&session, &sql).await, [chosen.len() as i64], "seed {seed}: {sql}");
            let after: BTreeMap<i64, Option<i64>> =
                run(&session, "SELECT id, v FROM t").await.into_iter().map(|row| (row[0].unwrap(), row[1])).collect();
            assert_eq!(after, expected, "seed {seed}: {sql}");
        }
    }
}
