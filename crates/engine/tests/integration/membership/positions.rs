//! Small random tables, each membership in each place.

use overspill::Strategy;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::{Value, is_in, register, rows};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Columns `id`, `x` and `y` of `t`.
type Row = [Value; 3];
/// Columns `k`, `v` and `w` of `u`.
type Member = [Value; 3];

/// A subquery over `u`, and which rows of `u` it has for a row of `t`.
struct Subquery {
    sql: &'static str,
    has: fn(&Row, &Member) -> bool,
    /// What it has of a row of `u`.
    member: fn(&Member) -> Value,
}

fn is_true(value: Option<bool>) -> bool {
    value == Some(true)
}

fn compare(left: Value, right: Value, holds: impl Fn(i64, i64) -> bool) -> bool {
    is_true(left.zip(right).map(|(left, right)| holds(left, right)))
}

const SUBQUERIES: [Subquery; 8] = [
    Subquery { sql: "SELECT v FROM u", has: |_, _| true, member: |u| u[1] },
    Subquery { sql: "SELECT v FROM u WHERE v IS NOT NULL", has: |_, u| u[1].is_some(), member: |u| u[1] },
    Subquery { sql: "SELECT v FROM u WHERE k > 100", has: |_, _| false, member: |u| u[1] },
    Subquery {
        sql: "SELECT v + 1 FROM u WHERE u.k = t.y",
        has: |t, u| compare(u[0], t[2], |k, y| k == y),
        member: |u| u[1].map(|v| v + 1),
    },
    Subquery {
        sql: "SELECT z FROM (SELECT v AS z, k AS y, w FROM u) s WHERE s.y = t.y AND s.w <= t.id",
        has: |t, u| compare(u[0], t[2], |k, y| k == y) && compare(u[2], t[0], |w, id| w <= id),
        member: |u| u[1],
    },
    Subquery {
        sql: "SELECT DISTINCT v FROM u WHERE u.k < t.y ORDER BY v",
        has: |t, u| compare(u[0], t[2], |k, y| k < y),
        member: |u| u[1],
    },
    Subquery { sql: "SELECT v FROM u WHERE t.y = 1", has: |t, _| t[2] == Some(1), member: |u| u[1] },
    // A group of one row each: the aggregates are what they aggregate.
    Subquery {
        sql: "SELECT max(v) FROM u WHERE u.k = t.y GROUP BY w, k, v",
        has: |t, u| compare(u[0], t[2], |k, y| k == y),
        member: |u| u[1],
    },
];

/// The values, as SQL and as the model has them.
type ValueOf = (&'static str, fn(&Row) -> Value);

const VALUES: [ValueOf; 4] =
    [("t.x", |t| t[1]), ("t.x + 1", |t| t[1].map(|x| x + 1)), ("2", |_| Some(2)), ("CAST(NULL AS BIGINT)", |_| None)];

/// A query about a membership `{m}`, and the columns of its row for a row of `t`, if it has one, by what the membership is.
type Position = (&'static str, fn(&Row, Option<bool>) -> Option<Vec<Value>>);

fn number(value: Option<bool>) -> Value {
    value.map(i64::from)
}

fn or(left: Option<bool>, right: Option<bool>) -> Option<bool> {
    match (left, right) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    }
}

fn when(condition: Option<bool>, row: &Row) -> Option<Vec<Value>> {
    is_true(condition).then(|| vec![row[0]])
}

const POSITIONS: [Position; 11] = [
    ("SELECT id FROM t WHERE {m}", |t, m| when(m, t)),
    ("SELECT id FROM t WHERE NOT ({m})", |t, m| when(m.map(|m| !m), t)),
    ("SELECT id FROM t WHERE ({m}) IS NULL", |t, m| when(Some(m.is_none()), t)),
    ("SELECT id FROM t WHERE ({m}) OR t.y = 1", |t, m| when(or(m, t[2].map(|y| y == 1)), t)),
    ("SELECT id FROM t WHERE NOT (({m}) OR t.y = 1) AND t.id > 2", |t, m| {
        when(or(m, t[2].map(|y| y == 1)).map(|any| !any && t[0] > Some(2)), t)
    }),
    ("SELECT id FROM t WHERE CASE WHEN {m} THEN id % 2 = 0 ELSE id % 3 = 0 END", |t, m| {
        when(t[0].map(|id| if is_true(m) { id % 2 == 0 } else { id % 3 == 0 }), t)
    }),
    ("SELECT id, {m} AS m, NOT ({m}) AS n FROM t", |t, m| Some(vec![t[0], number(m), number(m.map(|m| !m))])),
    ("SELECT id, sum(CASE WHEN {m} THEN 1 ELSE 0 END) AS s FROM t GROUP BY id HAVING count(*) = 1", |t, m| {
        Some(vec![t[0], Some(i64::from(is_true(m)))])
    }),
    ("SELECT t.id, o.one FROM t LEFT JOIN (VALUES (1)) o(one) ON ({m}) AND o.one = 1", |t, m| {
        Some(vec![t[0], is_true(m).then_some(1)])
    }),
    ("SELECT t.id FROM t JOIN (VALUES (1)) o(one) ON o.one <= t.id AND (({m}) IS NOT TRUE)", |t, m| {
        when(Some(!is_true(m) && t[0] >= Some(1)), t)
    }),
    ("SELECT * FROM t ORDER BY ({m}), id LIMIT 1000", |t, _| Some(t.to_vec())),
];

fn random_rows(rng: &mut StdRng, most: i64) -> Vec<Vec<Value>> {
    let nulls = *[0.0, 0.1, 0.5].choose(rng).unwrap();
    let value = |rng: &mut StdRng| (!rng.random_bool(nulls)).then(|| rng.random_range(0..4));
    (0..most).map(|row| vec![Some(row), value(rng), value(rng)]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_membership_has_three_values_wherever_it_stands() {
    let mut rng = StdRng::seed_from_u64(18);
    for draw in 0..6 {
        let settings = Settings {
            target_partitions: [1, 3][draw % 2],
            batch_size: [1, 8, 8192][draw % 3],
            strategy: [Strategy::NoPartition, Strategy::Radix, Strategy::Hybrid][draw % 3].into(),
            ..Settings::default()
        };
        let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
        let t = random_rows(&mut rng, 12);
        // The first column of `u` is as random as the others; the last is different in each row.
        let size = [0, 1, 3, 10][draw % 4];
        let u: Vec<_> = random_rows(&mut rng, size).into_iter().map(|row| vec![row[1], row[2], row[0]]).collect();
        register(&session.ctx, "t", &["id", "x", "y"], &t);
        register(&session.ctx, "u", &["k", "v", "w"], &u);
        for (number, subquery) in SUBQUERIES.iter().enumerate() {
            // Each in every second place, so that every value meets every subquery in some draw.
            for (position, (query, expect)) in POSITIONS.iter().enumerate().skip((number + draw) % 2).step_by(2) {
                let (value, value_of) = VALUES[(number + position + draw) % VALUES.len()];
                let negated = (position + draw) % 3 == 0;
                let operator = match (negated, position % 2) {
                    (false, 0) => "IN",
                    (false, _) => "= ANY",
                    (true, 0) => "NOT IN",
                    (true, _) => "<> ALL",
                };
                let sql = query.replace("{m}", &format!("{value} {operator} ({})", subquery.sql));
                let expected = t.iter().filter_map(|row| {
                    let row: Row = [row[0], row[1], row[2]];
                    let members = u.iter().map(|member| [member[0], member[1], member[2]]);
                    let members: Vec<_> =
                        members.filter(|u| (subquery.has)(&row, u)).map(|u| (subquery.member)(&u)).collect();
                    expect(&row, is_in(value_of(&row), &members).map(|is_in| is_in != negated))
                });
                let mut expected: Vec<_> = expected.collect();
                expected.sort();
                let answer = rows(&session.ctx, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                assert_eq!(answer, expected, "{sql}\nt: {t:?}\nu: {u:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_truth_table_of_in() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    register(&session.ctx, "t", &["x"], &[vec![Some(1)], vec![Some(2)], vec![None]]);
    for (members, expected) in [
        // x = 1, 2 and null.
        (vec![], [Some(0), Some(0), Some(0)]),
        (vec![Some(1)], [Some(1), Some(0), None]),
        (vec![None], [None, None, None]),
        (vec![Some(1), None], [Some(1), None, None]),
        (vec![Some(1), Some(2), None], [Some(1), Some(1), None]),
    ] {
        let _ = session.ctx.deregister_table("u").unwrap();
        let u: Vec<_> = members.iter().map(|member| vec![*member]).collect();
        register(&session.ctx, "u", &["v"], &u);
        for (sql, negated) in [
            ("SELECT x, x IN (SELECT v FROM u) AS m FROM t", false),
            ("SELECT x, x = ANY (SELECT v FROM u) AS m FROM t", false),
            ("SELECT x, x NOT IN (SELECT v FROM u) AS m FROM t", true),
            ("SELECT x, x <> ALL (SELECT v FROM u) AS m FROM t", true),
            ("SELECT x, NOT x = ANY (SELECT v FROM u) AS m FROM t", true),
        ] {
            let mut expected: Vec<Vec<Value>> = [Some(1), Some(2), None]
                .into_iter()
                .zip(expected)
                .map(|(x, m)| vec![x, m.map(|m| if negated { 1 - m } else { m })])
                .collect();
            expected.sort();
            assert_eq!(rows(&session.ctx, sql).await.unwrap(), expected, "{sql} with {members:?}");
        }
    }
}

/// Values that are equal though their bits are not, and types that type coercion leaves different.
#[tokio::test]
async fn values_are_equal_as_they_are_to_the_equals_sign_of_a_join() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    for (value, members, expected) in [
        ("0.0::DOUBLE", "(-0.0::DOUBLE), (NULL)", Some(1)),
        ("'NaN'::DOUBLE", "('NaN'::DOUBLE)", Some(1)),
        ("'b'", "('a'), (NULL)", None),
        ("arrow_cast('a', 'Dictionary(Int8, Utf8)')", "(arrow_cast('a', 'Utf8View')), ('b')", Some(1)),
        ("arrow_cast('a', 'Dictionary(Int8, Utf8)')", "(arrow_cast('b', 'Dictionary(Int32, Utf8)'))", Some(0)),
        ("1::SMALLINT", "(1::BIGINT), (NULL)", Some(1)),
        ("NULL", "(NULL)", None),
    ] {
        let sql = format!("SELECT {value} IN (SELECT m FROM (VALUES {members}) v(m)) AS m");
        assert_eq!(rows(&session.ctx, &sql).await.unwrap(), [vec![expected]], "{sql}");
    }
}
