//! Which joins run on `ThetaJoinExec`, what EXPLAIN says of them, and what they say when they may not spill.

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::case::{SPILLING, floor, register, settings};
use crate::harness::run::{Run, is_out_of_memory};
use crate::harness::session::{Engine, Memory, Session};

async fn run(engine: Engine, memory: Memory, sql: &str) -> Run {
    let session = Session::open(engine, &settings(3, 500), memory).unwrap();
    register(&session.ctx, SPILLING, 3, &mut StdRng::seed_from_u64(3)).unwrap();
    let run = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
    assert_eq!(session.leftovers().await, None, "{sql}");
    run
}

#[tokio::test]
async fn explain_shows_the_inequalities_that_are_searched_for() {
    for (sql, search) in [
        ("SELECT a_id, b_id FROM a JOIN b ON a_i < b_i - 990", "search=[a_i@1 < subtract(b_i@1, 990)]"),
        (
            "SELECT a_id, b_id FROM a JOIN b ON a_i BETWEEN b_i AND b_hi AND a_s <> b_s",
            "search=[a_i@1 >= b_i@1, a_i@1 <= b_hi@3]",
        ),
        ("SELECT a_id, b_id FROM a JOIN b ON a_s <> b_s AND a_i + b_i < 3", "strategies=[in_memory, blocks]"),
        ("SELECT a_id, b_id FROM a CROSS JOIN b WHERE a_id < 3", "ThetaJoinExec: join_type=Inner"),
    ] {
        let plan = run(Engine::Overspill, Memory::Ample, sql).await.plan;
        let join = plan.lines().find(|line| line.contains("ThetaJoinExec")).unwrap_or_else(|| panic!("{plan}"));
        let places = |text: &str| {
            text.split('@')
                .map(|part| part.trim_start_matches(char::is_numeric).to_owned())
                .collect::<Vec<_>>()
                .join("@")
        };
        assert!(places(join).contains(&places(search)), "{join}\ndoes not say {search}");
    }
}

#[tokio::test]
async fn an_equality_stays_with_the_hybrid_join() {
    let run = run(Engine::Overspill, Memory::Ample, "SELECT a_id FROM a JOIN b ON a_i = b_i AND a_j < b_j").await;
    assert_eq!((run.report.hybrid_joins, run.report.theta.joins), (1, 0), "{}", run.plan);
}

#[tokio::test]
async fn a_join_that_may_not_spill_says_which_settings_help() {
    let sql = "SELECT a_id, a_w, b_id FROM a JOIN b ON a_i < b_i - 990";
    let run = run(Engine::OverspillInMemory, Memory::JoinLimit(floor(3)), sql).await;
    let error = run.answer.map(|answer| answer.rows()).unwrap_err();
    assert!(is_out_of_memory(&error), "{error}");
    assert!(error.to_string().contains("overspill.join_memory_limit"), "{error}");
}

/// Searching computes an expression for rows that the condition asks for in no pair.
#[tokio::test]
async fn an_expression_that_fails_for_rows_without_pairs_does_not_matter() {
    let sql = "SELECT a_id FROM a LEFT JOIN (SELECT * FROM b WHERE b_id < 0) ON a_i / (a_j - a_j) < b_i";
    for memory in [Memory::Ample, Memory::JoinLimit(floor(3))] {
        let answer = run(Engine::Overspill, memory, sql).await.answer.unwrap();
        assert_eq!(answer.rows(), SPILLING[0], "{memory:?}");
    }
    let sql = sql.replace("b_id < 0", "b_id < 1");
    let error = run(Engine::Overspill, Memory::Ample, &sql).await.answer.map(|answer| answer.rows()).unwrap_err();
    assert!(error.to_string().contains("Divide by zero"), "{error}");
}

/// Why [`ThetaJoinExec`](overspill::ThetaJoinExec) takes the place of DataFusion's operator also where that would spill.
#[tokio::test]
async fn stock_datafusion_still_answers_wrongly_when_memory_is_short() {
    let sql = "SELECT a_id, a_w, b_id FROM a LEFT JOIN b ON a_i < b_i - 990";
    let expected = run(Engine::Stock, Memory::Ample, sql).await.answer.unwrap();
    let stock = run(Engine::Stock, Memory::Greedy(400_000), sql).await.answer;
    let agrees = stock.is_ok_and(|answer| answer.difference(&expected).is_none());
    assert!(!agrees, "DataFusion's nested loop join spills rightly by now: see ThetaJoinSelection");
    let ours = run(Engine::Overspill, Memory::JoinLimit(floor(3)), sql).await.answer.unwrap();
    assert_eq!(ours.difference(&expected), None);
}
