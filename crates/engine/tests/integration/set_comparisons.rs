//! Comparisons with ANY and ALL rows of a subquery, three-valued, and EXISTS, wherever they stand.

use std::cmp::Ordering;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;

use crate::harness::session::{Engine, Memory, Session, Settings};

/// The comparisons that are planned by the least and greatest value; the others are IN and NOT IN.
const COMPARISONS: [(&str, &str); 10] = [
    ("<", "ANY"),
    ("<=", "ANY"),
    (">", "ANY"),
    (">=", "ANY"),
    ("<>", "ANY"),
    ("<", "ALL"),
    ("<=", "ALL"),
    (">", "ALL"),
    (">=", "ALL"),
    ("=", "ALL"),
];

const VALUES: [Option<i64>; 5] = [Some(1), Some(2), Some(3), Some(4), None];

/// Rows of subqueries, by their key.
const SETS: [&[Option<i64>]; 8] = [
    &[],
    &[Some(2)],
    &[Some(2), Some(2)],
    &[Some(1), Some(3)],
    &[Some(1), None],
    &[Some(3), Some(2), None, None],
    &[Some(9)],
    &[None],
];

fn holds(left: Option<i64>, comparison: &str, right: Option<i64>) -> Option<bool> {
    let order = left?.cmp(&right?);
    Some(match comparison {
        "=" => order == Ordering::Equal,
        "<>" => order != Ordering::Equal,
        "<" => order == Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        _ => order != Ordering::Less,
    })
}

/// By the definition: ANY is the OR of all comparisons, ALL their AND.
fn reference(value: Option<i64>, comparison: &str, quantifier: &str, set: &[Option<i64>]) -> Option<bool> {
    let decisive = quantifier == "ANY";
    let results: Vec<Option<bool>> = set.iter().map(|row| holds(value, comparison, *row)).collect();
    if results.contains(&Some(decisive)) {
        Some(decisive)
    } else if results.contains(&None) {
        None
    } else {
        Some(!decisive)
    }
}

/// Tables `v(i, k)`, every value with every key of a set, and `s(k, x)`, the rows of the sets.
async fn session() -> Session {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    let text = |value: &Option<i64>| value.map_or("NULL".to_owned(), |value| value.to_string());
    let values: Vec<String> =
        VALUES.iter().flat_map(|value| (0..SETS.len()).map(move |key| format!("({}, {key})", text(value)))).collect();
    let rows: Vec<String> = SETS
        .iter()
        .enumerate()
        .flat_map(|(key, set)| set.iter().map(move |row| format!("({key}, {})", text(row))))
        .collect();
    for sql in [
        format!("CREATE TABLE v AS SELECT column1 AS i, column2 AS k FROM (VALUES {})", values.join(", ")),
        format!("CREATE TABLE s AS SELECT column1 AS k, column2 AS x FROM (VALUES {})", rows.join(", ")),
    ] {
        session.ctx.sql(&sql).await.unwrap().collect().await.unwrap();
    }
    session
}

/// Rows of a query whose columns are a value, the number of a set, and what is compared.
async fn compared(ctx: &SessionContext, sql: &str) -> Vec<(Option<i64>, i64, Option<bool>)> {
    let run = async { ctx.sql(sql).await?.collect().await };
    let batches = run.await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut rows = vec![];
    for batch in batches {
        let (values, keys) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Int64Type>());
        let results = batch.column(2).as_boolean();
        for row in 0..batch.num_rows() {
            let result = results.is_valid(row).then(|| results.value(row));
            rows.push((values.is_valid(row).then(|| values.value(row)), keys.value(row), result));
        }
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparisons_agree_with_their_definition() {
    let session = session().await;
    for (comparison, quantifier) in COMPARISONS {
        let check = |rows: Vec<(Option<i64>, i64, Option<bool>)>, count: usize, sql: &str| {
            assert_eq!(rows.len(), count, "{sql}");
            for (value, key, result) in rows {
                let expected = reference(value, comparison, quantifier, SETS[key as usize]);
                assert_eq!(result, expected, "{value:?} {comparison} {quantifier} {:?}: {sql}", SETS[key as usize]);
            }
        };
        let correlated = format!("i {comparison} {quantifier} (SELECT x FROM s WHERE s.k = v.k)");
        let all = VALUES.len() * SETS.len();
        let sql = format!("SELECT i, k, {correlated} FROM v");
        check(compared(&session.ctx, &sql).await, all, &sql);
        // The compared table is that of the subquery, and the subquery is not correlated.
        for (key, set) in SETS.iter().enumerate().skip(1) {
            let sql = format!(
                "SELECT x, k, x {comparison} {quantifier} (SELECT x FROM s WHERE k = {key}) FROM s WHERE k = {key}"
            );
            check(compared(&session.ctx, &sql).await, set.len(), &sql);
        }
        // Under NOT, IS NULL, OR and CASE, as conditions.
        let count = |wanted: &[Option<bool>]| {
            let of = |value: &Option<i64>| {
                let results = SETS.iter().map(|set| reference(*value, comparison, quantifier, set));
                results.filter(|result| wanted.contains(result)).count()
            };
            VALUES.iter().map(of).sum::<usize>()
        };
        for (condition, wanted) in [
            (correlated.to_string(), vec![Some(true)]),
            (format!("NOT {correlated}"), vec![Some(false)]),
            (format!("({correlated}) IS NULL"), vec![None]),
            (format!("({correlated}) IS NOT TRUE"), vec![None, Some(false)]),
            (format!("{correlated} OR NOT {correlated}"), vec![Some(true), Some(false)]),
            (format!("CASE WHEN {correlated} THEN false ELSE true END"), vec![None, Some(false)]),
        ] {
            let sql = format!("SELECT i, k, {correlated} FROM v WHERE {condition}");
            check(compared(&session.ctx, &sql).await, count(&wanted), &sql);
        }
    }
}

async fn text(ctx: &SessionContext, sql: &str) -> String {
    let run = async { ctx.sql(sql).await?.collect().await };
    let batches = run.await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let table = pretty_format_batches(&batches).unwrap().to_string();
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(1);
    rows.map(|row| row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join(", ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparisons_may_stand_anywhere() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    for sql in [
        "CREATE TABLE t AS SELECT column1 AS i FROM (VALUES (1), (2), (3), (NULL))",
        "CREATE TABLE c AS SELECT column1 AS k, column2 AS v FROM (VALUES (1, 1), (1, 2), (2, 5), (2, NULL), (NULL, 7))",
    ] {
        session.ctx.sql(sql).await.unwrap().collect().await.unwrap();
    }
    for (sql, expected) in [
        ("SELECT i FROM t WHERE i >= ALL (SELECT i FROM t WHERE i IS NOT NULL)", "3"),
        // Conditions of joins.
        (
            "SELECT t.i, c.v FROM t JOIN c ON t.i = c.k AND c.v > ALL (SELECT x.i FROM t x WHERE x.i = t.i) ORDER BY 1, 2",
            "1 2, 2 5",
        ),
        (
            "SELECT t.i, c.v FROM t LEFT JOIN c ON t.i = c.k AND c.v > ANY (SELECT i FROM t) ORDER BY 1, 2",
            "1 2, 2 5, 3, ",
        ),
        (
            "SELECT count(*), count(t.i), count(c.v) FROM t FULL JOIN c ON t.i = c.k AND c.v < ALL (SELECT x.i FROM t x WHERE x.i = c.v)",
            "8 4 4",
        ),
        ("SELECT c.v FROM t RIGHT JOIN c ON t.i = c.k AND t.i < ANY (SELECT v FROM c) ORDER BY v", "1, 2, 5, 7, "),
        ("SELECT c.v FROM t RIGHT SEMI JOIN c ON t.i = c.k AND t.i < ANY (SELECT v FROM c) ORDER BY v", "1, 2, 5, "),
        // Groups, their aggregates and HAVING.
        ("SELECT k FROM c GROUP BY k HAVING max(v) > ANY (SELECT i FROM t WHERE i = k) ORDER BY k", "1, 2"),
        (
            "SELECT k < ALL (SELECT i FROM t WHERE i > 1) AS b, count(*) FROM c GROUP BY k < ALL (SELECT i FROM t WHERE i > 1) ORDER BY 2, 1",
            "1, false 2, true 2",
        ),
        ("SELECT sum(CASE WHEN v > ALL (SELECT i FROM t WHERE i = k) THEN 1 ELSE 0 END) FROM c", "3"),
        // Windows and orders.
        (
            "SELECT i, row_number() OVER (ORDER BY i < ANY (SELECT i FROM t) NULLS LAST, i DESC) FROM t ORDER BY 2",
            "2 1, 1 2, 3, 3 4",
        ),
        ("SELECT i FROM t ORDER BY i > ALL (SELECT v FROM c WHERE k = 1) NULLS FIRST, i DESC", ", 2, 1, 3"),
        // Subqueries within subqueries.
        ("SELECT i FROM t WHERE i < ANY (SELECT v FROM c WHERE v < ANY (SELECT i FROM t)) ORDER BY i", "1"),
        (
            "SELECT i FROM t WHERE EXISTS (SELECT 1 FROM c WHERE c.k = t.i AND t.i < ALL (SELECT x.i FROM t x WHERE x.i = c.v)) ORDER BY i",
            "1, 2",
        ),
        ("SELECT i FROM t WHERE (SELECT max(v) FROM c) > ANY (SELECT v FROM c WHERE k = i)", "1, 2"),
        // Rows of the subquery are drawn once.
        (
            "SELECT count(*) FROM t WHERE (random() < ANY (SELECT random() + 1)) AND 7 = ALL (SELECT v FROM c ORDER BY v DESC NULLS LAST LIMIT 1)",
            "4",
        ),
        (
            "SELECT DISTINCT (x > ALL (SELECT 0.5)) OR NOT (x > ALL (SELECT 0.5)) FROM (SELECT random() AS x FROM t)",
            "true",
        ),
        // Types without a column of their own kind, and of several.
        ("SELECT NULL < ANY (SELECT NULL), NULL < ALL (SELECT NULL WHERE false)", "true"),
        ("SELECT i < ANY (SELECT 2.5) FROM t ORDER BY i", "true, true, false, "),
        (
            "SELECT arrow_cast('b', 'Dictionary(Int32, Utf8)') > ALL (SELECT arrow_cast('a', 'Dictionary(Int32, Utf8)'))",
            "true",
        ),
        ("SELECT DATE '2024-01-01' < ANY (SELECT TIMESTAMP '2024-01-01 00:00:01')", "true"),
        // NaN is the greatest number, and both zeros are one.
        (
            "SELECT 'NaN'::double > ALL (SELECT v FROM (VALUES (1.0), ('Infinity'::double)) AS s(v)), 'NaN'::double <> ANY (SELECT v FROM (VALUES ('NaN'::double)) AS s(v)), \
          0.0::double = ALL (SELECT v FROM (VALUES (-0.0::double), (0.0)) AS s(v)), -0.0::double < ANY (SELECT v FROM (VALUES (0.0::double)) AS s(v))",
            "true false true false",
        ),
        // EXISTS where no condition of WHERE or HAVING is.
        ("SELECT i, EXISTS (SELECT 1 FROM c WHERE k = i) FROM t ORDER BY i", "1 true, 2 true, 3 false, false"),
        ("SELECT NOT EXISTS (SELECT 1 FROM c) AS a, EXISTS (SELECT 1 FROM c WHERE v > 7) AS b", "false false"),
        ("SELECT sum(CASE WHEN NOT EXISTS (SELECT 1 FROM c WHERE k = i) THEN 1 ELSE 0 END) FROM t", "2"),
        ("SELECT c.v FROM t JOIN c ON t.i = c.k AND EXISTS (SELECT 1 FROM t x WHERE x.i < c.v) ORDER BY v", "2, 5"),
        (
            "SELECT t.i, c.v FROM t LEFT JOIN c ON t.i = c.k AND NOT EXISTS (SELECT 1 FROM t x WHERE x.i = c.v) ORDER BY 1, 2",
            "1, 2 5, 2, 3, ",
        ),
        ("SELECT i FROM t ORDER BY EXISTS (SELECT 1 FROM c WHERE k = i), i DESC NULLS LAST", "3, , 2, 1"),
        // IN and NOT IN by other words.
        ("SELECT i FROM t WHERE i = ANY (SELECT v FROM c) ORDER BY i", "1, 2"),
        ("SELECT i FROM t WHERE i <> ALL (SELECT v FROM c WHERE v IS NOT NULL) ORDER BY i", "3"),
    ] {
        assert_eq!(text(&session.ctx, sql).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn what_cannot_be_summarised_is_refused_in_a_sentence() {
    let session = session().await;
    for (sql, reason) in [
        ("SELECT i FROM v WHERE i < ANY (SELECT x FROM s WHERE s.k < v.k)", "not the equality of a column"),
        ("SELECT i FROM v WHERE i < ANY (SELECT max(x) FROM s WHERE s.k = v.k)", "in or below Aggregate"),
        ("SELECT i FROM v WHERE i < ANY (SELECT x FROM s WHERE s.k = v.k LIMIT 1)", "in or below Limit"),
        ("SELECT i FROM v WHERE [i] < ANY (SELECT [x] FROM s)", "have no least and no greatest"),
        ("VALUES (1 < ANY (SELECT x FROM s))", "is not supported in Values"),
        (
            "SELECT i FROM v FULL JOIN s ON v.k = s.k AND i < ANY (SELECT s2.x FROM s s2 WHERE s2.k = s.x AND s2.x = v.i)",
            "refers to both sides",
        ),
        (
            "SELECT i FROM v WHERE EXISTS (SELECT 1 FROM s WHERE s.x < ANY (SELECT z.x FROM s z WHERE z.k = v.k))",
            "further out",
        ),
    ] {
        let run = async { session.ctx.sql(sql).await?.collect().await };
        let error = run.await.expect_err(sql).to_string();
        assert!(error.contains(reason) && error.contains("not supported"), "{sql}: {error}");
        assert!(["Write", "Compute", "Let"].iter().any(|way| error.contains(way)), "{sql}: {error}");
    }
}

/// The rule can go when this fails.
#[tokio::test]
async fn datafusion_still_plans_no_existence_in_a_select_list() {
    let session = Session::open(Engine::Stock, &Settings::default(), Memory::Ample).unwrap();
    let run = async { session.ctx.sql("SELECT EXISTS (SELECT 1)").await?.collect().await };
    let error = run.await.unwrap_err().to_string();
    assert!(error.contains("does not support logical expression Exists"), "{error}");
}

/// The rule can go when this fails.
#[tokio::test]
async fn datafusion_still_mistakes_the_compared_column() {
    let session = Session::open(Engine::Stock, &Settings::default(), Memory::Ample).unwrap();
    let table = "CREATE TABLE t AS SELECT column1 AS i FROM (VALUES (1), (2), (3), (NULL))";
    session.ctx.sql(table).await.unwrap().collect().await.unwrap();
    let sql = "SELECT count(*) FROM t WHERE i >= ALL (SELECT i FROM t WHERE i IS NOT NULL)";
    assert_eq!(text(&session.ctx, sql).await, "4");
}
