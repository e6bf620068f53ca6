//! Random queries among ranks, which are threads here: they give the rows of one process.

use std::sync::Arc;
use std::thread::JoinHandle;

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use overspill::{OverspillConfig, OverspillSessionExt};
use overspill_exchange::Topology;
use overspill_exchange::transport::{Network, in_process};
use overspill_ranks::{Leader, serve};
use tokio::runtime::{Builder, Runtime};

use super::case::Case;
use super::{number_of, queries_or, seed_of};

/// The test runs one query where the tests in one process run `SHARE` of them.
const SHARE: usize = 5;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Three ranks on two nodes.
fn ranks(case: &Case, seed: u64) -> (Arc<Leader>, Vec<JoinHandle<()>>) {
    let network = Network { seed, ..Network::default() };
    let mut endpoints = in_process(&Arc::new(Topology::of_nodes(3, 2).unwrap()), Some(network)).into_iter();
    let leader = Arc::new(Leader::new(endpoints.next().unwrap()));
    let others = endpoints.map(|endpoint| {
        let builder = SessionStateBuilder::new_with_default_features().with_config(case.settings().session_config());
        std::thread::spawn(move || {
            let mut state = builder.with_overspill(OverspillConfig::default()).build();
            overspill::files::register(&mut state).unwrap();
            runtime().block_on(async { serve(&endpoint, &state).await }).unwrap();
        })
    });
    (leader, others.collect())
}

#[test]
fn random_queries_agree_among_ranks() {
    let runtime = runtime();
    let first = number_of("OVERSPILL_FUZZ_SEED").unwrap_or(1);
    let seeds: Vec<u64> = match number_of("OVERSPILL_FUZZ_CASE") {
        Some(seed) => vec![seed],
        None => (0..queries_or(25).div_ceil(SHARE) as u64).map(|number| seed_of(first, number)).collect(),
    };
    let (mut refusals, mut failures) = (Vec::new(), Vec::new());
    for seed in &seeds {
        // Some types are not for files.
        let Ok(case) = Case::new(*seed).and_then(Case::in_files) else {
            refusals.push("its tables have types that Parquet has not".to_owned());
            continue;
        };
        let (leader, others) = ranks(&case, *seed);
        let builder = SessionStateBuilder::new_with_default_features().with_config(case.settings().session_config());
        let mut state = leader.extend(builder.with_overspill(OverspillConfig::default())).build();
        overspill::files::register(&mut state).unwrap();
        match runtime.block_on(case.run_elsewhere(&SessionContext::new_with_state(state))) {
            Ok(refusal) => refusals.extend(refusal),
            Err(failure) => failures.push(format!("case {seed}: {failure}\n{}", case.describe())),
        }
        runtime.block_on(leader.end()).unwrap();
        others.into_iter().for_each(|rank| rank.join().unwrap());
    }
    println!("{} queries ran. {} of them were refused: {refusals:#?}", seeds.len(), refusals.len());
    assert!(failures.is_empty(), "{} failures\n\n{}", failures.len(), failures.join("\n\n"));
}
