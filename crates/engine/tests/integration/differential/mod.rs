//! Random tables and random queries: Overspill gives the rows that stock DataFusion and DuckDB give, in ample memory and
//! under budgets down to the floor.
//!
//! - `OVERSPILL_FUZZ_QUERIES`: how many queries (100).
//! - `OVERSPILL_FUZZ_SEED`: where the sequence of cases starts.
//! - `OVERSPILL_FUZZ_CASE`: runs this case alone and shows it; a failure prints it.
//! - `OVERSPILL_PYTHON`: a Python with DuckDB, which then checks the answers too.

pub mod case;
mod judged;
mod key_types;
mod on_cluster;
mod on_ranks;
mod queries;
mod tables;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use case::{Case, Tally};

use crate::harness::duckdb::Export;
use crate::harness::session::Device;

/// Queries whose tables and answers are on disk at a time, for DuckDB to check.
const EXPORTED: usize = 100;

/// Failures after which more of them say nothing new.
const MOST_FAILURES: usize = 5;

#[test]
fn random_queries_agree() {
    if let Some(seed) = number_of("OVERSPILL_FUZZ_CASE") {
        println!("{}", Case::new(seed).expect("the case cannot be made").describe());
        let tally = run_case(seed, None, None).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{tally:#?}");
        return;
    }
    let queries = number_of("OVERSPILL_FUZZ_QUERIES").unwrap_or(100) as usize;
    let first = number_of("OVERSPILL_FUZZ_SEED").unwrap_or(1);
    let python = std::env::var_os("OVERSPILL_PYTHON").map(PathBuf::from);

    let (mut tally, mut checked) = (Tally::default(), 0);
    for start in (0..queries).step_by(EXPORTED) {
        let export = python.as_ref().map(|_| Export::new().expect("a temporary directory"));
        let run = |number| run_case(seed_of(first, start as u64 + number), None, export.as_ref());
        tally.add(run_cases(EXPORTED.min(queries - start), run));
        if let (Some(python), Some(export)) = (&python, export) {
            checked += export.check(python).unwrap_or_else(|failure| panic!("{failure}"));
        }
        println!("{} of {queries} queries", start + EXPORTED.min(queries - start));
    }
    judge(&tally);
    match python {
        Some(_) => assert!(checked * 4 > queries, "DuckDB shares only {checked} of {queries} queries"),
        None => println!("OVERSPILL_PYTHON is not set: DuckDB was not asked (make test does)"),
    }
}

/// The n-th case of those on the emulated device, which has this much memory.
pub fn run_on_device(number: u64, memory_limit: usize) -> Result<Tally, String> {
    let first = number_of("OVERSPILL_FUZZ_SEED").unwrap_or(1);
    run_case(seed_of(!first, number), Some(Device::with(memory_limit)), None)
}

/// The n-th case of those that several emulated devices join together, each with this much memory.
pub fn run_on_devices(number: u64, gpus: usize, memory_limit: usize) -> Result<Tally, String> {
    let first = number_of("OVERSPILL_FUZZ_SEED").unwrap_or(1);
    run_case(seed_of(!first, number), Some(Device { gpus, ..Device::with(memory_limit) }), None)
}

/// Runs this number of cases side by side.
pub fn run_cases(queries: usize, run: impl Fn(u64) -> Result<Tally, String> + Sync) -> Tally {
    let (next, failures, tally) = (AtomicUsize::new(0), Mutex::new(vec![]), Mutex::new(Tally::default()));
    let workers = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= queries || failures.lock().unwrap().len() >= MOST_FAILURES {
                        break;
                    }
                    match run(number as u64) {
                        Ok(done) => tally.lock().unwrap().add(done),
                        Err(failure) => failures.lock().unwrap().push(failure),
                    }
                }
            });
        }
    });
    let (failures, tally) = (failures.into_inner().unwrap(), tally.into_inner().unwrap());
    assert!(failures.is_empty(), "{} failures\n\n{}", failures.len(), failures.join("\n\n"));
    tally
}

/// The harness would be worthless if the budgets did not bite.
fn judge(tally: &Tally) {
    println!(
        "{} queries with {} equi-joins, {} refused by stock DataFusion; {} runs under a budget, of which {} spilled, {} \
         recursed, {} took several passes; {} starved elsewhere, {} had less than they need; with spilling off, {} failed and {} did not; the resident memory of \
         {} was measured",
        tally.queries,
        tally.equi_joins,
        tally.refused.len(),
        tally.budgeted,
        tally.spilled,
        tally.recursed,
        tally.several_passes,
        tally.others_starved,
        tally.below_floors,
        tally.failed_without_spilling,
        tally.fitted_without_spilling,
        tally.measured
    );
    println!("{} queries were judged by DuckDB; refused: {:?}", tally.judged, tally.refused_by_construct);
    let refused: usize = tally.refused_by_construct.values().sum();
    assert!(refused * 20 <= tally.judged, "Overspill refuses {refused} of {} queries", tally.judged);
    let sample = tally.refused.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(tally.refused.len() * 20 <= tally.queries, "stock DataFusion refuses too many queries:\n{sample}");
    assert!(tally.others_starved * 10 <= tally.budgeted, "too many runs starve outside of their joins");
    assert!(tally.below_floors * 20 <= tally.budgeted, "too many budgets are less than what joins need");
    assert!(tally.spilled * 2 >= tally.budgeted, "fewer than half of the runs under a budget spilled");
    assert!(tally.recursed * 10 >= tally.budgeted, "fewer than a tenth of the runs under a budget recursed");
    assert!(tally.several_passes > 0, "no run took several passes over a partition");
    assert!(tally.failed_without_spilling > 0, "no run was repeated with spilling off");
    assert!(
        tally.failed_without_spilling > 4 * tally.fitted_without_spilling,
        "joins spill under budgets that they do not need to spill under"
    );
    assert!(tally.measured > 0, "the resident memory of no run was measured");
}

/// How many queries a test of fewer ones runs, unless `OVERSPILL_FUZZ_QUERIES` says.
fn queries_or(default: usize) -> usize {
    number_of("OVERSPILL_FUZZ_QUERIES").map_or(default, |queries| queries as usize)
}

/// Runs one case on a runtime of its own, and turns a panic into a failure like any other.
fn run_case(seed: u64, device: Option<Device>, export: Option<&Export>) -> Result<Tally, String> {
    let mut description = String::new();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let case = match device {
            Some(device) => Case::of_equi_joins(seed).map(|case| case.on_device(device)),
            None => Case::new(seed),
        };
        let case = case.map_err(|error| format!("the case cannot be made: {error}"))?;
        description = case.describe();
        let outcome = runtime.block_on(case.run(export));
        runtime.shutdown_timeout(std::time::Duration::from_secs(10));
        outcome
    }));
    let outcome = outcome.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        Err(words.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_else(|| "a panic".into()))
    });
    outcome.map_err(|failure| format!("case {seed}: {failure}\n{description}"))
}

/// Spreads the cases of one run over the seeds, so that runs that start nearby share none.
fn seed_of(first: u64, number: u64) -> u64 {
    first.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number.wrapping_mul(0xD134_2543_DE82_EF95)) >> 16
}

fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, which is no number")))
}
