//! Partitioning, transfers and joining overlap: while one round is on its way, others are partitioned and joined.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::executor::block_on;
use futures::future::try_join;
use futures::{StreamExt, TryStreamExt, stream};
use overspill_exchange::transport::{Endpoint, Job, JobId, Network};
use overspill_exchange::{Levels, ShuffleSpec, Topology};

use crate::ranks::{on_each, ranks};

const RANKS: usize = 4;

/// Batches of a side on each rank. With overlap each is a round.
const BATCHES: usize = 16;
const ROWS: usize = 512;
const ROW_BYTES: usize = 16;

/// How long a rank computes per batch: half of it before its rows are sent, half after rows have arrived. Sleeping stands for computing, so
/// the time depends on the order of things alone, and not on processors. As much time passes while the network brings the rows of a batch.
const COMPUTING: Duration = Duration::from_millis(24);

/// The batches of one side on a rank. Every second left key has a partner on the right.
fn batches(rank: usize, side: usize) -> Vec<RecordBatch> {
    let first = (rank * BATCHES * ROWS) as i64;
    let batch = |number: usize| {
        let rows = || (0..ROWS).map(move |row| first + (number * ROWS + row) as i64);
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows().map(|row| row * (1 + side as i64))));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(rows()));
        RecordBatch::try_from_iter([("key", keys), ("row", numbers)]).unwrap()
    };
    (0..BATCHES).map(batch).collect()
}

/// Joins the two sides on a rank. Returns its pairs. Without overlap all rows are partitioned before any is sent, and have arrived before any is
/// joined.
fn join(job: &Job, overlaps: bool) -> usize {
    let rank = job.endpoint().rank();
    let (mut left, mut pairs) = (HashSet::new(), 0);
    for side in [0, 1] {
        let batches = batches(rank, side);
        let spec = ShuffleSpec {
            number: side as u64,
            schema: batches[0].schema(),
            keys: vec![0],
            null_equal: false,
            levels: Levels::One,
            is_compressed: false,
            round_bytes: if overlaps { ROWS * ROW_BYTES } else { 1 << 30 },
            heavy: None,
        };
        let input = stream::iter(batches).map(|batch| {
            sleep(COMPUTING / 2);
            Ok::<_, String>(batch)
        });
        let shuffle = spec.start(job, input).unwrap();
        let mut take = |batch: &RecordBatch| {
            sleep(COMPUTING.mul_f64(0.5 * batch.num_rows() as f64 / ROWS as f64));
            let keys = batch.column(0).as_primitive::<Int64Type>().values();
            match side {
                0 => left.extend(keys.iter().copied()),
                _ => pairs += keys.iter().filter(|key| left.contains(key)).count(),
            }
        };
        if overlaps {
            let joined = shuffle.output.map_ok(|batch| take(&batch)).try_collect::<()>();
            block_on(try_join(shuffle.driver, joined)).unwrap();
        } else {
            let arrived = shuffle.output.try_collect::<Vec<_>>();
            let (_, arrived) = block_on(try_join(shuffle.driver, arrived)).unwrap();
            arrived.iter().for_each(take);
        }
    }
    pairs
}

/// The time in which all ranks have joined.
fn seconds(endpoints: &[Arc<Endpoint>], id: u64, overlaps: bool) -> f64 {
    let started = Instant::now();
    let pairs: usize = on_each(endpoints, JobId(id), |_, job| join(&job, overlaps)).into_iter().sum();
    assert_eq!(pairs, RANKS * BATCHES * ROWS / 2);
    started.elapsed().as_secs_f64()
}

#[test]
fn transfers_as_long_as_computing_are_hidden() {
    const RUNS: u64 = 3;
    // A rank keeps its share of the rows.
    let received = ROWS * ROW_BYTES * (RANKS - 1) / RANKS;
    let rate = received as f64 / COMPUTING.as_secs_f64();
    let network = Network { bytes_per_second: Some(rate), ..Network::default() };
    let endpoints = ranks(Topology::of_nodes(RANKS, RANKS).unwrap(), Some(network));
    let (mut with, mut without) = (vec![], vec![]);
    for run in 0..RUNS {
        without.push(seconds(&endpoints, 2 * run, false));
        with.push(seconds(&endpoints, 2 * run + 1, true));
    }
    println!("with overlap: {with:.3?} s, without: {without:.3?} s");
    // The least, because a busy processor only ever adds to the time, and no run sleeps less.
    let [with, without] = [with, without].map(|times| times.into_iter().fold(f64::INFINITY, f64::min));
    println!("{:.2}", with / without);
    // Both sides are computed and transferred, each in the same time.
    let computing = COMPUTING.as_secs_f64() * (2 * BATCHES) as f64;
    assert!(without >= 1.9 * computing, "transfers take less time than computing: {without:.3} s, {computing:.3} s");
    assert!(with <= 0.7 * without, "{with:.3} s with overlap and {without:.3} s without");
}
