//! Random queries on a cluster: it gives the rows of one process.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use overspill::{OverspillConfig, OverspillRuntime, OverspillSessionExt, ShuffleCompression};
use overspill_cluster::{Cluster, ExecutorOptions, Network, SchedulerOptions, serve_executor, serve_scheduler};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::case::Case;
use super::{number_of, queries_or, seed_of};

/// The test runs one query where the tests in one process run `SHARE` of them, because a query on a cluster takes longer.
const SHARE: usize = 5;

/// The memory of an executor.
const MEMORY: usize = 64_000_000;

/// A scheduler and three executors in this process, on threads of their own.
struct Processes {
    runtime: Runtime,
    scheduler: String,
    _temp: TempDir,
}

impl Processes {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let temp = TempDir::new().unwrap();
        let (address, addresses) = mpsc::channel();
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        runtime.spawn(async move {
            let started = move |scheduler| address.send(scheduler).unwrap();
            let options = SchedulerOptions { bind: (here, 0).into(), network: Network::default() };
            serve_scheduler(options, started, std::future::pending()).await
        });
        let scheduler = addresses.recv().unwrap();
        for _ in 0..3 {
            let options = ExecutorOptions {
                scheduler: (scheduler.ip().to_string(), scheduler.port()),
                network: Network::default(),
                bind: here,
                port: 0,
                memory: MEMORY,
                threads: 2,
                temp_dir: Some(temp.path().to_owned()),
                temp: None,
                machine: OverspillConfig::default(),
            };
            runtime.spawn(async {
                serve_executor(options, OverspillRuntime::default(), || (), std::future::pending()).await.unwrap();
            });
        }
        Self { runtime, scheduler: scheduler.to_string(), _temp: temp }
    }
}

#[test]
fn random_queries_agree_on_a_cluster() {
    let processes = Processes::start();
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
        let builder = SessionStateBuilder::new_with_default_features().with_config(case.settings().session_config());
        let mut config = OverspillConfig::default();
        if seed % 4 == 0 {
            config.shuffle_compression = ShuffleCompression::Off.into();
        }
        let builder = builder.with_overspill(config);
        let state = Cluster::at(&processes.scheduler, Network::default()).extend(builder).unwrap().build();
        match processes.runtime.block_on(case.run_elsewhere(&SessionContext::new_with_state(state))) {
            Ok(refusal) => refusals.extend(refusal),
            Err(failure) => failures.push(format!("case {seed}: {failure}\n{}", case.describe())),
        }
    }
    println!("{} queries ran. {} of them were refused: {refusals:#?}", seeds.len(), refusals.len());
    assert!(failures.is_empty(), "{} failures\n\n{}", failures.len(), failures.join("\n\n"));
    processes.runtime.shutdown_background();
}
