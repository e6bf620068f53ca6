//! Shuffles among ranks of MPI jobs. Without `OVERSPILL_MPI_LIBRARY`, which `make test-mpi` sets, there is no MPI and nothing to test.

#[path = "integration/rows.rs"]
mod rows;

use std::process::{Command, exit};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use futures::executor::block_on;
use futures::future::try_join;
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::{Job, JobId, MpiRank, is_rank_of_mpi};
use overspill_exchange::{Levels, Result, ShuffleSpec, all_gather};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use rows::{Tables, joined};

const LIBRARY: &str = "OVERSPILL_MPI_LIBRARY";

/// Random tables that a job shuffles.
const CASES: u64 = 30;

fn main() {
    let Some(library) = std::env::var_os(LIBRARY) else {
        println!("{LIBRARY} is not set: make test-mpi tests ranks of MPI jobs");
        return;
    };
    if is_rank_of_mpi() {
        let per_node = std::env::var("OVERSPILL_TEST_RANKS_PER_NODE").unwrap().parse().unwrap();
        let mpi = MpiRank::start(Some(library.as_ref()), Some(per_node)).unwrap();
        be_rank(&mpi);
        assert_eq!(mpi.endpoint().jobs(), 0);
        mpi.end().unwrap();
        return;
    }
    for (ranks, per_node) in [(1, 1), (2, 1), (3, 2), (8, 4)] {
        for case in ["shuffles", "failure"] {
            let started = Instant::now();
            let status = start(ranks, per_node, case).status().unwrap_or_else(|error| panic!("mpirun: {error}"));
            let took = started.elapsed();
            println!("{case} of {ranks} ranks on nodes of {per_node}: {status}, {took:?}");
            assert!(status.success(), "{ranks} ranks, {case}");
        }
    }
    killed_ranks_end_the_job();
}

/// The command that starts ranks, each this program again. They may be more than processors, and root.
fn start(ranks: usize, per_node: usize, case: &str) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["-n", &ranks.to_string(), "--oversubscribe"])
        .arg(std::env::current_exe().unwrap())
        .env("OVERSPILL_TEST_RANKS_PER_NODE", per_node.to_string())
        .env("OVERSPILL_TEST_RANK_CASE", case)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

fn be_rank(mpi: &MpiRank) {
    match std::env::var("OVERSPILL_TEST_RANK_CASE").unwrap().as_str() {
        "shuffles" => (0..CASES).for_each(|seed| joins(mpi, seed)),
        "failure" => failure(mpi),
        "killed" => killed(mpi),
        other => panic!("no case {other}"),
    }
}

fn shuffle(mpi: &MpiRank, id: u64, spec: ShuffleSpec, batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    let input = stream::iter(batches.into_iter().map(Ok::<_, String>));
    let shuffle = spec.start(&Job::begin(mpi.endpoint(), JobId(id)), input)?;
    Ok(block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>()))?.1)
}

fn gather(mpi: &MpiRank, id: u64, message: Buffer) -> Vec<Buffer> {
    block_on(all_gather(&Job::begin(mpi.endpoint(), JobId(id)), 0, message)).unwrap()
}

/// Joins of what ranks have are the join of all rows. Every rank draws the same tables.
fn joins(mpi: &MpiRank, seed: u64) {
    let (rank, ranks) = (mpi.endpoint().rank(), mpi.endpoint().topology().ranks());
    let tables = Tables::random(seed, ranks);
    let random = &mut StdRng::seed_from_u64(seed);
    let levels = if random.random_bool(0.5) { Levels::One } else { Levels::Two };
    let schemas = [tables.schema(0), tables.schema(1)];
    let (is_compressed, round_bytes) = (random.random_bool(0.5), 1 << random.random_range(8..20));
    let mine = [0, 1].map(|side| {
        let spec = ShuffleSpec {
            number: 0,
            schema: schemas[side].clone(),
            keys: (0..tables.keys).collect(),
            null_equal: false,
            levels,
            is_compressed,
            round_bytes,
            heavy: None,
        };
        shuffle(mpi, 3 * seed + side as u64, spec, tables.sides[side][rank].clone()).unwrap()
    });
    let pairs = joined([&mine[0], &mine[1]], [&schemas[0], &schemas[1]], tables.keys);
    let bytes: Vec<u8> =
        pairs.iter().flat_map(|(left, right)| [left.to_le_bytes(), right.to_le_bytes()].concat()).collect();
    let all = gather(mpi, 3 * seed + 2, Buffer::from_vec(bytes));
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut all: Vec<(u64, u64)> =
        all.iter().flat_map(|bytes| bytes.chunks(16).map(|pair| (word(&pair[..8]), word(&pair[8..])))).collect();
    all.sort_unstable();
    let sides = [0, 1].map(|side| tables.sides[side].iter().flatten().cloned().collect::<Vec<_>>());
    let expected = joined([&sides[0], &sides[1]], [&schemas[0], &schemas[1]], tables.keys);
    assert!(all == expected, "seed {seed}: {} pairs in place of {}", all.len(), expected.len());
}

/// The input of the last rank fails: all ranks learn it, and the next job runs.
fn failure(mpi: &MpiRank) {
    let (rank, ranks) = (mpi.endpoint().rank(), mpi.endpoint().topology().ranks());
    let tables = Tables::random(7, ranks);
    let batches = tables.sides[0].iter().flatten().cloned().collect::<Vec<_>>();
    let spec = ShuffleSpec {
        number: 0,
        schema: tables.schema(0),
        keys: vec![0],
        null_equal: false,
        levels: Levels::Two,
        is_compressed: true,
        round_bytes: 1000,
        heavy: None,
    };
    let last = (rank == ranks - 1).then(|| Err("its disk is full".to_owned()));
    let input = stream::iter(batches.into_iter().map(Ok).chain(last));
    let error = {
        let shuffle = spec.start(&Job::begin(mpi.endpoint(), JobId(0)), input).unwrap();
        block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>())).unwrap_err()
    };
    assert_eq!(error.to_string(), format!("rank {} failed: its disk is full", ranks - 1));
    assert_eq!(gather(mpi, 1, Buffer::from_vec(vec![rank as u8])).len(), ranks);
}

/// Gathers for ever.
fn killed(mpi: &MpiRank) {
    for id in 0.. {
        gather(mpi, id, Buffer::from_vec(vec![1_u8; 100_000]));
    }
}

/// A rank that is killed ends all others, and mpirun says so.
fn killed_ranks_end_the_job() {
    for _ in 0..3 {
        let mut running = start(3, 1, "killed").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let ranks = Command::new("pgrep").args(["-P", &running.id().to_string()]).output().unwrap();
        let ranks = String::from_utf8(ranks.stdout).unwrap();
        let Some(victim) = ranks.split_whitespace().last() else { panic!("mpirun has started no rank") };
        assert!(Command::new("kill").args(["-9", victim]).status().unwrap().success());
        let killed = Instant::now();
        while running.try_wait().unwrap().is_none() {
            if killed.elapsed() > Duration::from_secs(10) {
                let _ = running.kill();
                eprintln!("mpirun goes on without a rank");
                exit(1);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!running.wait().unwrap().success());
    }
}
