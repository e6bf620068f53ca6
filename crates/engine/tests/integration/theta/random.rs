//! Random queries over random tables.
//!
//! - `OVERSPILL_THETA_QUERIES`: how many queries (60).
//! - `OVERSPILL_FUZZ_SEED`: where the sequence of cases starts.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::case::{SPILLING, floor, random_query, register, settings};
use crate::harness::run::Run;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// How often the cases spilled, and how often a build side in a file was read.
#[derive(Default)]
struct Tally {
    joins: usize,
    spilled: usize,
    passes: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_queries_give_the_answers_of_stock_datafusion() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let queries = number("OVERSPILL_THETA_QUERIES").unwrap_or(60);
    let first = number("OVERSPILL_FUZZ_SEED").unwrap_or(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut tally = Tally::default();
    for case in 0..queries {
        check(first.wrapping_add(case), &mut tally).await;
    }
    println!("{} joins, of which {} spilled, in {} passes", tally.joins, tally.spilled, tally.passes);
    assert!(tally.spilled * 3 > tally.joins, "only {} of {} joins spilled", tally.spilled, tally.joins);
    assert!(tally.passes > 2 * tally.spilled, "{} passes for {} joins", tally.passes, tally.spilled);
}

async fn check(seed: u64, tally: &mut Tally) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let streams = rng.random_range(1..=3);
    let mut settings = settings(streams, *[16, 300, 2_000].choose(rng).unwrap());
    settings.join_reordering = rng.random_bool(0.3);
    let sql = random_query(rng);
    let data = rng.random();
    let rows = match rng.random_range(0..8) {
        0 => [0, 40],
        1 => [40, 0],
        _ => SPILLING,
    };
    let stock = run(Engine::Stock, Memory::Ample, &settings, &sql, rows, data).await;
    let expected = stock.answer.unwrap_or_else(|error| panic!("case {seed}: stock DataFusion fails {sql}: {error}"));
    for memory in [Memory::Ample, Memory::JoinLimit(floor(streams)), Memory::Greedy(6 << 20)] {
        let what = format!("case {seed}, {memory:?}, {streams} streams: {sql}");
        let session = run(Engine::Overspill, memory, &settings, &sql, rows, data).await;
        let answer = session.answer.unwrap_or_else(|error| panic!("{what}: {error}\n{}", session.plan));
        assert_eq!(answer.difference(&expected), None, "{what}\n{}", session.plan);
        let theta = session.report.theta;
        assert_eq!(theta.foreign_joins, Vec::<String>::new(), "{what}");
        if matches!(memory, Memory::JoinLimit(_)) && rows == SPILLING {
            tally.joins += theta.joins;
            tally.spilled += theta.spilled_joins;
            tally.passes += theta.block_passes;
        }
    }
}

async fn run(engine: Engine, memory: Memory, settings: &Settings, sql: &str, rows: [usize; 2], data: u64) -> Run {
    let session = Session::open(engine, settings, memory).unwrap();
    register(&session.ctx, rows, settings.target_partitions, &mut StdRng::seed_from_u64(data)).unwrap();
    let run = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
    assert_eq!(session.leftovers().await, None, "{sql}");
    if let Memory::JoinLimit(limit) = memory {
        // A floor is about the least that goes on; what is taken without asking must stay small beside it.
        let peak = session.pool.join_peak();
        assert!(peak <= limit + limit / 4, "{peak} bytes under a limit of {limit}: {sql}");
    }
    run
}
