//! Filters whose conjuncts change places: random ones give the answers of stock DataFusion and of the written order, and none is
//! evaluated where it must not be.

mod case;
mod evaluations;
mod nodes;

use datafusion::physical_plan::displayable;
use overspill::{Choice, FilterOrder, OverspillConfig};
use rand::SeedableRng;
use rand::rngs::StdRng;

use case::Case;

use crate::harness::run::{Run, is_broken};
use crate::harness::session::{Engine, Memory, Session, Settings};

const AS_WRITTEN: Choice<FilterOrder> = Choice(Some(FilterOrder::AsWritten));

async fn run(session: &Session, sql: &str) -> Run {
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

async fn set(session: &Session, order: Choice<FilterOrder>) {
    run(session, &format!("SET overspill.filter_order = {order}")).await.answer.unwrap();
}

async fn plan(session: &Session, sql: &str) -> String {
    let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    displayable(plan.as_ref()).indent(false).to_string()
}

/// Runs a case.
async fn run_case(case: &Case, sql: &str, engine: Engine, order: Choice<FilterOrder>) -> Run {
    let settings = Settings { target_partitions: case.partitions, batch_size: case.batch_size, ..Settings::default() };
    let session = Session::open(engine, &settings, Memory::Ample).unwrap();
    if engine == Engine::Overspill {
        set(&session, order).await;
    }
    session.ctx.register_table("t", case.table()).unwrap();
    let run = run(&session, sql).await;
    assert_eq!(session.leftovers().await, None, "{sql}");
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_filters_agree() {
    let (mut adaptive, mut rows, mut failing, mut saved) = (0, 0, 0, 0);
    for seed in 0..300 {
        let case = Case::random(&mut StdRng::seed_from_u64(seed));
        let written = run_case(&case, &case.sql, Engine::Overspill, AS_WRITTEN).await;
        let auto = run_case(&case, &case.sql, Engine::Overspill, Choice::AUTO).await;
        let what = format!("case {seed}: {}\n{}", case.sql, auto.plan);
        adaptive += usize::from(auto.plan.contains("AdaptiveFilterExec"));
        assert!(!written.plan.contains("AdaptiveFilterExec"), "{what}");
        match (&auto.answer, &written.answer) {
            (Ok(auto), Ok(written)) => {
                rows += auto.rows();
                assert_eq!(auto.difference(written), None, "{what}");
                let stock = run_case(&case, &case.sql, Engine::Stock, AS_WRITTEN).await;
                // DataFusion also evaluates conditions on rows that those before have dropped.
                if let Ok(stock) = &stock.answer {
                    assert_eq!(auto.difference(stock), None, "{what}");
                }
                let limited = format!("{} LIMIT 7", case.sql);
                let limited = run_case(&case, &limited, Engine::Overspill, Choice::AUTO).await.answer.unwrap();
                assert_eq!(limited.difference_to_some_of(auto, 7), None, "{what}");
            }
            (Err(error), Err(_)) if !is_broken(error) => failing += 1,
            (Ok(_), Err(_)) => saved += 1,
            (Err(error), _) => panic!("{error}: {what}"),
        }
    }
    println!("{adaptive} adaptive filters, {rows} rows, {failing} fail, {saved} fail only in the written order");
    assert!(adaptive > 200 && rows > 50_000 && failing + saved < 60, "{adaptive} {rows} {failing} {saved}");
}

#[tokio::test]
async fn conditions_that_may_fail_see_no_row_that_others_have_dropped() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    let table = "CREATE TABLE t AS SELECT value % 10 AS a, value AS b, value % 3 AS c, \
                 CASE WHEN value % 7 = 0 THEN 'none' ELSE '' || value END AS s FROM generate_series(0, 19999)";
    run(&session, table).await.answer.unwrap();
    // Nine of ten rows pass the first condition, so that DataFusion would evaluate all on all rows.
    for (sql, rows) in [
        ("SELECT b FROM t WHERE a <> 0 AND b >= 0 AND 20 / a > 9 AND c >= 0 AND c < 3", 4000),
        ("SELECT b FROM t WHERE s <> 'none' AND b >= 0 AND CAST(s AS INT) < 7000 AND a >= 0 AND s LIKE '1%'", 953),
    ] {
        assert!(plan(&session, sql).await.contains("AdaptiveFilterExec"), "{sql}");
        assert_eq!(run(&session, sql).await.answer.unwrap().rows(), rows, "{sql}");
    }
    // The condition comes first: the guard behind it must not save some rows on some days.
    for sql in [
        "SELECT b FROM t WHERE 20 / a > 9 AND a <> 0 AND b >= 0",
        "SELECT b FROM t WHERE b >= 0 AND c >= 0 AND CAST(s AS INT) < 7000 AND s <> 'none' AND a < 5",
    ] {
        assert!(plan(&session, sql).await.contains("AdaptiveFilterExec"), "{sql}");
        let error = run(&session, sql).await.answer.err().unwrap();
        assert!(!is_broken(&error), "{error}");
    }
}

#[tokio::test]
async fn only_filters_whose_order_matters_are_replaced() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    run(&session, "CREATE TABLE t AS SELECT value AS a, value % 7 AS b FROM generate_series(0, 99)")
        .await
        .answer
        .unwrap();
    let sql = "SELECT a FROM t WHERE a < 50 AND b < 3";
    let shown = plan(&session, sql).await;
    assert!(shown.contains("AdaptiveFilterExec: a@0 < 50 AND b@1 < 3, projection=[a@0]"), "{shown}");
    for sql in [
        "SELECT a FROM t WHERE a < 50",
        "SELECT a FROM t WHERE a < 50 OR b < 3",
        "SELECT a FROM t WHERE a < 50 AND 10 / b < 3",
        "SELECT a FROM t WHERE a < 50 AND random() < 0.5",
        "SELECT a FROM t WHERE 10 / b < 3 AND 10 / a < 3",
    ] {
        let shown = plan(&session, sql).await;
        assert!(shown.contains("FilterExec:") && !shown.contains("AdaptiveFilterExec"), "{sql}\n{shown}");
    }
    set(&session, AS_WRITTEN).await;
    let shown = plan(&session, sql).await;
    assert!(shown.starts_with("FilterExec: a@0 < 50 AND b@1 < 3"), "{shown}");
    set(&session, Choice::AUTO).await;
    run(&session, "SET overspill.enabled = false").await.answer.unwrap();
    assert!(plan(&session, sql).await.starts_with("FilterExec: a@0 < 50 AND b@1 < 3"));
}

#[tokio::test]
async fn the_order_is_a_setting() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    for value in ["fastest", "random", ""] {
        let error = run(&session, &format!("SET overspill.filter_order = '{value}'")).await.answer.err().unwrap();
        assert!(error.to_string().contains("is none of: auto, as_written"), "{error}");
    }
    for (value, order) in [("AS_WRITTEN", AS_WRITTEN), ("auto", Choice::AUTO)] {
        run(&session, &format!("SET overspill.filter_order = '{value}'")).await.answer.unwrap();
        let options = session.ctx.copied_config();
        assert_eq!(options.options().extensions.get::<OverspillConfig>().unwrap().filter_order, order);
    }
}
