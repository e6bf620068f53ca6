//! The order of joins: which one is chosen, which may not be, and that rows stay the same in all of them.

mod queries;
mod random;
mod samples;

use datafusion::physical_plan::displayable;
use overspill::OverspillConfig;

use crate::harness::run::Run;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// A table of facts, two of the things that they are of, and a few of these things.
const TABLES: [&str; 4] = [
    "CREATE TABLE facts AS SELECT value AS f, value % 2000 AS one, value % 300 AS two FROM generate_series(0, 29999)",
    "CREATE TABLE ones AS SELECT value AS o, value % 7 AS w, 'one ' || value AS name FROM generate_series(0, 1999)",
    "CREATE TABLE twos AS SELECT value AS t, 'two ' || value AS name FROM generate_series(0, 299)",
    "CREATE TABLE some AS SELECT value * 100 AS s FROM generate_series(0, 2)",
];

async fn session(order: &str) -> Session {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    for table in TABLES {
        run(&session, table).await.answer.unwrap();
    }
    run(&session, &format!("SET overspill.join_order = '{order}'")).await.answer.unwrap();
    session
}

/// A session in which no rows are dropped before they come to a join: those for which a condition fails may be among them, or not.
async fn unfiltered(order: &str) -> Session {
    let session = session(order).await;
    run(&session, "SET overspill.membership_filters = false").await.answer.unwrap();
    session
}

async fn run(session: &Session, sql: &str) -> Run {
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

/// The keys of the joins of a plan, as they stand in it: those that run last first.
async fn joins(session: &Session, sql: &str) -> Vec<String> {
    let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let words = |line: &str| line.split_once(", on=[").map(|(_, rest)| rest.split(']').next().unwrap().to_owned());
    text.lines().filter_map(words).collect()
}

#[tokio::test]
async fn joins_that_leave_few_rows_come_first() {
    let sql = "SELECT count(*), max(ones.name), max(twos.name) FROM facts JOIN ones ON one = o JOIN twos ON two = t \
               JOIN some ON t = s";
    let (auto, written) = (session("auto").await, session("as_written").await);
    assert_eq!(joins(&written, sql).await.len(), 3);
    assert!(joins(&written, sql).await[0].contains("s@"), "{:?}", joins(&written, sql).await);
    let chosen = joins(&auto, sql).await;
    assert!(chosen[0].contains("o@"), "{chosen:?}");
    assert!(chosen[2].contains("s@"), "{chosen:?}");
    let (auto, written) = (run(&auto, sql).await, run(&written, sql).await);
    assert_eq!(auto.answer.unwrap().difference(&written.answer.unwrap()), None);
}

#[tokio::test]
async fn semi_joins_come_before_joins_that_they_make_cheaper() {
    let sql = "SELECT count(*), max(name) FROM facts JOIN ones ON one = o WHERE two IN (SELECT s FROM some)";
    let (auto, written) = (session("auto").await, session("as_written").await);
    assert!(joins(&written, sql).await[0].contains("s@"), "{:?}", joins(&written, sql).await);
    assert!(joins(&auto, sql).await[1].contains("s@"), "{:?}", joins(&auto, sql).await);
    let (auto, written) = (run(&auto, sql).await, run(&written, sql).await);
    assert_eq!(auto.answer.unwrap().difference(&written.answer.unwrap()), None);
}

#[tokio::test]
async fn inputs_are_joined_by_equalities_that_follow() {
    let others = "CREATE TABLE others AS SELECT value AS k, value % 5 AS x FROM generate_series(0, 1999)";
    let sql = "SELECT count(*), max(name), sum(x) FROM facts JOIN ones ON one = o JOIN others ON one = k";
    let with_others = |order: String| async move {
        let session = session(&order).await;
        run(&session, others).await.answer.unwrap();
        session
    };
    let expected = run(&with_others("as_written".into()).await, sql).await.answer.unwrap();
    let mut found = 0;
    for seed in 0..20 {
        let random = with_others(format!("random:{seed}")).await;
        let chosen = joins(&random, sql).await;
        // Of the three equalities, any two imply the third.
        assert!(chosen.len() == 2 && chosen.iter().all(|keys| keys.matches('(').count() == 1), "{chosen:?}");
        found += usize::from(chosen[1].contains("o@") && chosen[1].contains("k@"));
        assert_eq!(run(&random, sql).await.answer.unwrap().difference(&expected), None, "{chosen:?}");
    }
    assert!((1..20).contains(&found), "{found}");
}

/// Where an outer join fills a column with nulls, it equals nothing.
#[tokio::test]
async fn nothing_follows_from_the_conditions_of_outer_joins() {
    let written = session("as_written").await;
    for sql in [
        "SELECT count(*), sum(o), sum(t) FROM (SELECT * FROM twos LEFT JOIN ones ON t = o + 290) AS both JOIN facts ON t = two",
        "SELECT count(*), sum(s), sum(o) FROM (SELECT * FROM ones LEFT JOIN some ON o = s) AS both JOIN twos ON o = t",
        "SELECT count(*), sum(s), sum(t) FROM (SELECT * FROM twos FULL JOIN some ON t = s) AS both JOIN ones ON t = o",
    ] {
        let expected = run(&written, sql).await.answer.unwrap();
        for seed in 0..10 {
            let random = run(&session(&format!("random:{seed}")).await, sql).await.answer.unwrap();
            assert_eq!(random.difference(&expected), None, "{sql}");
        }
    }
}

#[tokio::test]
async fn joins_of_unknown_inputs_keep_their_order() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("some.csv");
    std::fs::write(&path, "s\n0\n100\n200\n").unwrap();
    let sql = "SELECT count(*), max(ones.name) FROM facts JOIN ones ON one = o JOIN twos ON two = t JOIN few ON t = s";
    let mut orders = vec![];
    for order in ["auto", "as_written"] {
        let session = session(order).await;
        let table = format!("CREATE EXTERNAL TABLE few (s BIGINT) STORED AS CSV LOCATION '{}'", path.display());
        run(&session, &table).await.answer.unwrap();
        orders.push(joins(&session, sql).await);
    }
    assert_eq!(orders[0], orders[1]);
}

#[tokio::test]
async fn conditions_that_may_fail_are_evaluated_on_no_further_rows() {
    // Facts of the number 0 have no partner in `some`, and so divide nothing.
    let queries = [
        "SELECT count(*) FROM facts JOIN some ON two = s + 7 JOIN ones ON one = o AND 10 / two < w",
        "SELECT count(*) FROM facts JOIN some ON two = s + 7 JOIN ones ON one = o AND 10 / facts.two < ones.w JOIN twos ON two = t",
        "SELECT count(*) FROM (SELECT * FROM facts WHERE two IN (SELECT s + 7 FROM some)) AS f JOIN ones ON one = o AND 10 / two < w",
        "SELECT count(*) FROM facts JOIN some ON two = s + 7 JOIN ones ON 10 / two = o",
    ];
    for sql in queries {
        let written = run(&unfiltered("as_written").await, sql).await.answer;
        for seed in 0..25 {
            let random = run(&unfiltered(&format!("random:{seed}")).await, sql).await;
            match (&written, &random.answer) {
                (Ok(written), Ok(random)) => assert_eq!(random.difference(written), None, "{sql}"),
                (Ok(_), Err(error)) => panic!("{sql}: {error}\n{}", random.plan),
                (Err(error), _) => panic!("{sql}: {error}"),
            }
        }
    }
}

#[tokio::test]
async fn volatile_conditions_and_limits_stay_where_they_are() {
    let written = session("as_written").await;
    for sql in [
        "SELECT count(*) FROM facts JOIN ones ON one = o AND random() < 2 * o + 1",
        "SELECT count(*) FROM (SELECT * FROM facts JOIN ones ON one = o ORDER BY f LIMIT 10) AS first JOIN twos ON two = t",
    ] {
        let expected = run(&written, sql).await.answer.unwrap();
        for seed in 0..10 {
            let random = run(&session(&format!("random:{seed}")).await, sql).await.answer.unwrap();
            assert_eq!(random.difference(&expected), None, "{sql}");
        }
    }
}

/// 40 tables in a chain, in a star, and all with equal keys; and more than can be ordered together.
#[tokio::test]
async fn many_tables_are_planned() {
    for (tables, order) in [(40, "auto"), (40, "random:7"), (70, "auto"), (70, "random:7")] {
        let session = session(order).await;
        for table in 0..tables {
            let rows = 1 + table * 7 % 13;
            let sql = format!("CREATE TABLE t{table} AS SELECT value AS k, value AS v FROM generate_series(0, {rows})");
            run(&session, &sql).await.answer.unwrap();
        }
        let chain = |table: usize| format!("t{}.k = t{table}.v", table - 1);
        let star = |table: usize| format!("t0.k = t{table}.k");
        let clique =
            |table: usize| (0..table).map(|other| format!("t{other}.k = t{table}.k")).collect::<Vec<_>>().join(" AND ");
        let shapes: [&dyn Fn(usize) -> String; 3] = [&chain, &star, &clique];
        for shape in shapes {
            let joins: String = (1..tables).map(|table| format!(" JOIN t{table} ON {}", shape(table))).collect();
            let answer = run(&session, &format!("SELECT count(*) AS n FROM t0{joins}")).await.answer.unwrap();
            // The keys of all tables begin at 0, and the smallest has 0 and 1.
            let expected = run(&session, "SELECT 2 AS n").await.answer.unwrap();
            assert_eq!(answer.difference(&expected), None, "{tables} tables, {order}");
        }
    }
}

#[tokio::test]
async fn an_unknown_order_is_refused_in_a_sentence() {
    let session = session("auto").await;
    for value in ["fastest", "random", "random:-1", "random:x", ""] {
        let error = run(&session, &format!("SET overspill.join_order = '{value}'")).await.answer.err().unwrap();
        assert!(error.to_string().contains("is none of: auto, as_written, random:SEED"), "{error}");
    }
    for (value, shown) in [("AS_WRITTEN", "as_written"), ("Random:17", "random:17"), ("auto", "auto")] {
        run(&session, &format!("SET overspill.join_order = '{value}'")).await.answer.unwrap();
        let options = session.ctx.copied_config();
        let order = options.options().extensions.get::<OverspillConfig>().unwrap().join_order;
        assert_eq!(order.to_string(), shown);
    }
}
