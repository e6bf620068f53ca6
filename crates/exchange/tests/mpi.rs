//! Shuffles among ranks of MPI jobs. Without `OVERSPILL_MPI_LIBRARY`, which `make test-mpi` sets, there is no MPI and nothing to test.

#[path = "integration/emulated.rs"]
mod emulated;
#[path = "integration/rows.rs"]
mod rows;

use std::process::{Command, exit};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use futures::executor::block_on;
use futures::future::try_join;
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::{Job, JobId, MpiRank, is_rank_of_mpi};
use overspill_exchange::{
    DeviceShuffleSpec, DeviceTable, Error, Exchanged, GpuBytes, GpuPath, Levels, Result, ShuffleSpec, all_gather,
};
use overspill_kernels::Kernels;
use overspill_machine::driver::Stream;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use emulated::{Emulated, keys, polled, row_numbers, sorted, tables};
use rows::{Tables, joined};

const LIBRARY: &str = "OVERSPILL_MPI_LIBRARY";

/// Random tables that a job shuffles.
const CASES: u64 = 30;

/// Random tables in GPU memory that a job shuffles on each path, and failures of a GPU.
const DEVICE_CASES: u64 = 6;

/// Rows of a batch in GPU memory, so that most messages are longer than what MPI sends at once.
const DEVICE_ROWS: usize = 20_000;

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
    for (ranks, per_node) in [(1, 1), (2, 1), (3, 2), (9, 4)] {
        for case in ["shuffles", "failure", "GPU memory", "GPU failures"] {
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
        "GPU memory" => device_shuffles(mpi),
        "GPU failures" => device_failures(mpi),
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

/// Shuffles a table in GPU memory, and may drop that after so many polls. Returns the rows, and what was exchanged on each level.
fn shuffle_on_gpu(
    mpi: &MpiRank,
    emulated: &Emulated,
    id: u64,
    spec: &DeviceShuffleSpec,
    (schema, batches): (&SchemaRef, &[RecordBatch]),
    dropped_after: Option<usize>,
) -> Result<(RecordBatch, Vec<Exchanged>)> {
    let job = Job::begin(mpi.endpoint(), JobId(id));
    let run = || {
        let device = emulated.device(mpi.endpoint().rank())?;
        let (kernels, stream) = (Kernels::load(&device)?, Stream::new(&device)?);
        let table = DeviceTable::upload(&stream, schema, batches)?;
        let shuffle = polled(spec.run(&job, &kernels, &stream, table), dropped_after);
        // The job has failed with it.
        let shuffled = block_on(shuffle).unwrap_or_else(|| Err(job.failure().unwrap()))?;
        let rows = shuffled.table.download(&stream, schema)?;
        Ok((rows, shuffled.metrics.iter().map(|metrics| metrics.exchanged()).collect()))
    };
    run().map_err(|error| match error {
        Error::Failed { .. } => error,
        other => job.fail(&other.to_string()),
    })
}

/// Rows in GPU memory come where those in CPU memory do: sent and received there, through pinned memory, or both in turn.
fn device_shuffles(mpi: &MpiRank) {
    let emulated = Emulated::start();
    let (rank, ranks) = (mpi.endpoint().rank(), mpi.endpoint().topology().ranks());
    for seed in 0..DEVICE_CASES {
        let random = &mut emulated::random(seed);
        let batches = tables(random, ranks, [1, 5, 1000][seed as usize % 3], DEVICE_ROWS);
        let schema = emulated::rows(random, 0, 0, 1, false).schema();
        let (keys, levels) = (keys(random), [Levels::One, Levels::Two][seed as usize % 2]);
        let spec = ShuffleSpec {
            number: 0,
            schema: schema.clone(),
            keys: keys.clone(),
            null_equal: false,
            levels,
            is_compressed: false,
            round_bytes: 1 << 30,
            heavy: None,
        };
        let expected = shuffle(mpi, 4 * seed, spec, batches[rank].clone()).unwrap();
        let expected = concat_batches(&schema, &expected).unwrap();
        for case in 0..3 {
            let path = [GpuPath::Direct, GpuPath::Pinned][if case < 2 { case } else { rank % 2 }];
            let spec = DeviceShuffleSpec { number: 0, keys: keys.clone(), levels, path };
            let pinned = emulated.held().registrations_made;
            let rows = (&schema, &batches[rank][..]);
            let (rows, exchanged) =
                shuffle_on_gpu(mpi, &emulated, 4 * seed + 1 + case as u64, &spec, rows, None).unwrap();
            assert_eq!(sorted(&rows), sorted(&expected), "seed {seed}, case {case}");
            assert!(levels == Levels::Two || row_numbers(&rows).is_sorted(), "seed {seed}, case {case}");
            for level in exchanged {
                let all = level.across.bytes + level.within.bytes;
                let sent = match path {
                    GpuPath::Direct => GpuBytes { direct: all, through_cpu: 0 },
                    GpuPath::Pinned => GpuBytes { direct: 0, through_cpu: all },
                };
                assert_eq!(level.sent_from_gpu, sent, "seed {seed}, case {case}");
                let received = level.received_on_gpu;
                if case == 0 {
                    assert_eq!(received.through_cpu, 0, "seed {seed}");
                }
                if path == GpuPath::Pinned {
                    assert_eq!(received.direct, 0, "seed {seed}");
                }
            }
            if path == GpuPath::Direct {
                assert_eq!(emulated.held().registrations_made, pinned, "seed {seed}: memory was pinned");
            }
        }
    }
    assert_nothing_is_held(&emulated);
}

/// The n-th call of a GPU fails on one rank, or it drops its shuffle half way: all ranks that have not ended learn it, nothing stays allocated, and the next job runs.
fn device_failures(mpi: &MpiRank) {
    let emulated = Emulated::start();
    let (rank, ranks) = (mpi.endpoint().rank(), mpi.endpoint().topology().ranks());
    let mut failed = 0;
    for seed in 0..4 * DEVICE_CASES {
        let random = &mut emulated::random(seed);
        let batches = tables(random, ranks, 50, DEVICE_ROWS);
        let schema = emulated::rows(random, 0, 0, 1, false).schema();
        let path = [GpuPath::Direct, GpuPath::Pinned][(seed as usize + rank) % 2];
        let spec = DeviceShuffleSpec { number: 0, keys: vec![0], levels: Levels::Two, path };
        let (victim, calls) = (random.random_range(0..ranks), random.random_range(1..60));
        let kind = ["allocation", "copy", "launch", "drop"][seed as usize % 4];
        if rank == victim && kind != "drop" {
            emulated.configure(&format!("fail={kind}:{calls}"));
        }
        let dropped_after = (rank == victim && kind == "drop").then_some(1 + calls / 10);
        let outcome = shuffle_on_gpu(mpi, &emulated, 2 * seed, &spec, (&schema, &batches[rank]), dropped_after);
        emulated.succeed();
        let error = outcome.err().map_or_else(String::new, |error| error.to_string());
        let errors = gather(mpi, 2 * seed + 1, Buffer::from(error.into_bytes()));
        let errors: Vec<_> = errors.iter().filter(|error| !error.is_empty()).collect();
        assert!(errors.iter().all(|error| *error == errors[0]), "seed {seed}: {errors:?}");
        failed += usize::from(!errors.is_empty());
        assert_nothing_is_held(&emulated);
    }
    assert!(failed >= 4, "only {failed} failed");
}

/// No GPU memory is held, nor pinned memory, once MPI is done with it.
fn assert_nothing_is_held(emulated: &Emulated) {
    let began = Instant::now();
    while (emulated.held().device_bytes, emulated.held().pinned_bytes) != (0, 0) {
        assert!(began.elapsed() < Duration::from_secs(10), "memory is still held");
        std::thread::sleep(Duration::from_millis(1));
    }
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
