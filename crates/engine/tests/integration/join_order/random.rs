//! Random queries of 2 to 8 tables give the same rows in every order of their joins.
//!
//! - `OVERSPILL_JOIN_ORDER_QUERIES`: how many queries (200).
//! - `OVERSPILL_FUZZ_SEED`: where the sequence of cases starts.
//! - `OVERSPILL_PYTHON`: a Python with DuckDB, which then checks the answers too.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::SessionContext;
use overspill::{BuildSide, JoinOrder, OverspillConfig};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::queries::Case;
use crate::harness::duckdb::Export;
use crate::harness::rows::Answer;
use crate::harness::run::{Run, is_out_of_memory};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Queries that DuckDB checks at a time.
const EXPORTED: u64 = 100;

/// Bytes that a join with a limit of its own may use: less than most build sides, more than the floor of a join.
const LITTLE: usize = 400 << 10;

#[derive(Default, Debug)]
struct Tally {
    queries: u64,
    /// Queries that are refused as written.
    refused: u64,
    /// Runs with a random order, and those whose plan is not the written one.
    random: u64,
    reordered: u64,
    /// Queries whose plan changes by itself.
    chosen: u64,
    /// Runs whose joins changed the roles of their sides.
    swapped: u64,
    /// Runs with less memory than what is not a join needs.
    starved: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_queries_give_the_same_rows_in_every_order() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let queries = number("OVERSPILL_JOIN_ORDER_QUERIES").unwrap_or(200);
    let first = number("OVERSPILL_FUZZ_SEED").unwrap_or(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let python = std::env::var_os("OVERSPILL_PYTHON").map(PathBuf::from);
    let mut tally = Tally::default();
    for start in (0..queries).step_by(EXPORTED as usize) {
        let export = python.as_ref().map(|_| Export::new().unwrap());
        for case in start..queries.min(start + EXPORTED) {
            check(first.wrapping_add(case), export.as_ref(), &mut tally).await;
        }
        if let (Some(python), Some(export)) = (&python, export) {
            export.check(python).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
    println!("{tally:?}");
    assert!(tally.refused * 10 <= queries, "{tally:?}");
    assert!(tally.reordered * 2 > tally.random, "{tally:?}");
    assert!(tally.chosen * 50 > tally.queries, "{tally:?}");
    assert!(tally.starved * 10 < tally.queries, "{tally:?}");
    assert!(tally.swapped * 4 > tally.random, "{tally:?}");
}

async fn check(seed: u64, export: Option<&Export>, tally: &mut Tally) {
    let case = Case::new(seed);
    let rng = &mut StdRng::seed_from_u64(!seed);
    let settings = Settings {
        target_partitions: *[1, 2, 3].choose(rng).unwrap(),
        batch_size: *[3, 1000].choose(rng).unwrap(),
        partitioned: rng.random_bool(0.5),
        ..Settings::default()
    };
    let exchanged = Settings { build_side: BuildSide::Exchanged.into(), ..settings.clone() };
    let run_with = |settings, engine, order, memory| run(engine, settings, order, memory, &case);
    let run = |engine, order, memory| run_with(&settings, engine, order, memory);
    tally.queries += 1;
    let written = run(Engine::Overspill, JoinOrder::AsWritten, Memory::Ample).await;
    let expected = match &written.answer {
        Ok(answer) => answer,
        Err(error) => {
            assert!(error.to_string().contains("not supported"), "case {seed}: {error}\n{}", case.sql);
            tally.refused += 1;
            return;
        }
    };
    if let Some(export) = export {
        let tables = case.tables.iter().enumerate();
        let schemas: Vec<_> = case.tables.iter().map(RecordBatch::schema).collect();
        let tables = tables.map(|(number, table)| (Case::name(number), &schemas[number], std::slice::from_ref(table)));
        export.add(seed, &format!("case {seed}"), &case.duckdb(), tables, expected).unwrap();
    }
    let stock = run(Engine::Stock, JoinOrder::AsWritten, Memory::Ample).await;
    if let Ok(answer) = &stock.answer {
        assert_same(expected, answer, seed, "stock DataFusion", &case, &stock);
    }
    let chosen = run(Engine::Overspill, JoinOrder::Auto, Memory::Ample).await;
    assert_answers(&chosen, expected, seed, "auto", &case);
    tally.chosen += u64::from(joins(&chosen) != joins(&written));
    for (settings, memory) in
        [(&settings, Memory::Ample), (&exchanged, Memory::Ample), (&exchanged, Memory::JoinLimit(LITTLE))]
    {
        let order = JoinOrder::Random(rng.random());
        let random = run_with(settings, Engine::Overspill, order, memory).await;
        tally.swapped += u64::from(random.report.side_swaps > 0);
        if memory != Memory::Ample && random.answer.as_ref().is_err_and(is_out_of_memory) {
            tally.starved += 1;
            continue;
        }
        assert_answers(&random, expected, seed, &order.to_string(), &case);
        if memory == Memory::Ample {
            tally.random += 1;
            tally.reordered += u64::from(joins(&random) != joins(&written));
        }
    }
}

/// The plan without what was estimated, and how far from the truth that was.
fn joins(run: &Run) -> Vec<&str> {
    run.plan.lines().map(|line| line.split_once(", build~").map_or(line, |(join, _)| join)).collect()
}

async fn run(engine: Engine, settings: &Settings, order: JoinOrder, memory: Memory, case: &Case) -> Run {
    let mut session = Session::open(engine, settings, memory).unwrap();
    if engine == Engine::Stock {
        // It mistakes columns of equal names for each other: see `filter_pushdown`.
        let state = session.ctx.state();
        let is_right =
            |rule: &&Arc<dyn PhysicalOptimizerRule + Send + Sync>| !rule.name().starts_with("FilterPushdown");
        let rules = state.physical_optimizers().iter().filter(is_right).cloned().collect();
        let state = SessionStateBuilder::new_from_existing(state).with_physical_optimizer_rules(rules).build();
        session.ctx = SessionContext::new_with_state(state);
    } else {
        let state = session.ctx.state_ref();
        let mut state = state.write();
        let options = state.config_mut().options_mut();
        options.extensions.get_mut::<OverspillConfig>().unwrap().join_order = order;
    }
    for (number, table) in case.tables.iter().enumerate() {
        let partitions = vec![vec![table.clone()]];
        let provider = MemTable::try_new(table.schema(), partitions).unwrap();
        session.ctx.register_table(Case::name(number), Arc::new(provider)).unwrap();
    }
    let run = Run::of(&session.ctx, session.ctx.sql(&case.sql).await).await;
    assert_eq!(session.leftovers().await, None, "{}", case.sql);
    run
}

fn assert_answers(run: &Run, expected: &Answer, seed: u64, what: &str, case: &Case) {
    match &run.answer {
        Ok(answer) => assert_same(answer, expected, seed, what, case, run),
        Err(error) => panic!("case {seed}, {what}: {error}\n{}\n{}", case.sql, run.plan),
    }
}

fn assert_same(answer: &Answer, expected: &Answer, seed: u64, what: &str, case: &Case, run: &Run) {
    assert_eq!(answer.difference(expected), None, "case {seed}, {what}\n{}\n{}", case.sql, run.plan);
}
