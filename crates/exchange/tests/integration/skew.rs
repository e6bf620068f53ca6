//! Keys that most rows have do not make messages large.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::executor::block_on;
use futures::future::{join, try_join};
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::{Job, JobId};
use overspill_exchange::{HeavyKeys, Levels, ShuffleSpec, Side, Topology};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::ranks::{on_each, ranks, shuffle_all};

#[test]
fn equal_keys_make_rounds_small() {
    const ROUND: usize = 8 << 10;
    for levels in [Levels::One, Levels::Two] {
        let endpoints = ranks(Topology::of_nodes(8, 2).unwrap(), None);
        let keys: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..8000).map(|row| if row % 10 == 0 { row } else { 7 })));
        let batch = RecordBatch::try_from_iter([("key", keys)]).unwrap();
        let spec = ShuffleSpec {
            number: 0,
            schema: batch.schema(),
            keys: vec![0],
            null_equal: false,
            levels,
            is_compressed: false,
            round_bytes: ROUND,
            heavy: None,
        };
        let all = shuffle_all(&endpoints, &spec, &vec![vec![batch]; 8]);
        let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        let largest = all.iter().map(|(batches, _)| rows(batches)).max().unwrap();
        assert!(largest >= 8 * 7200, "{largest} rows on the rank of the key");
        assert_eq!(all.iter().map(|(batches, _)| rows(batches)).sum::<usize>(), 64_000);
        // What a rank receives in a round is as much as it sends, if one rank receives nearly all.
        for batch in all.iter().flat_map(|(batches, _)| batches) {
            assert!(batch.num_rows() * 8 <= 2 * ROUND, "{} rows in a round", batch.num_rows());
        }
    }
}

const RANKS: usize = 8;
const KEYS: usize = 20_000;

/// Keys of which the `k`-th has a share that falls with `k` to the power of `exponent`.
fn zipf(rows: usize, exponent: f64, random: &mut StdRng) -> Vec<i64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=KEYS)
        .map(|key| {
            sum += (key as f64).powf(-exponent);
            sum
        })
        .collect();
    let mut draw = || sums.partition_point(|bound| *bound < random.random_range(0.0..sum)) as i64;
    (0..rows).map(|_| draw().min(KEYS as i64 - 1)).collect()
}

fn batches(keys: &[i64]) -> Vec<RecordBatch> {
    let batch = |keys: &[i64]| {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        RecordBatch::try_from_iter([("key", keys)]).unwrap()
    };
    keys.chunks(1000).map(batch).collect()
}

/// Shuffles both sides of a join; gives the keys that have come to this rank.
fn joined(job: &Job, sides: [Vec<RecordBatch>; 2], levels: Levels) -> [Vec<i64>; 2] {
    let heavy = Arc::new(HeavyKeys::new(job, 9, 2, [true, true]));
    let [left, right] = [(Side::Left, 0), (Side::Right, 1)].map(|(side, number)| {
        let spec = ShuffleSpec {
            number,
            schema: batches(&[0])[0].schema(),
            keys: vec![0],
            null_equal: false,
            levels,
            is_compressed: false,
            round_bytes: 64 << 10,
            heavy: Some((heavy.clone(), side)),
        };
        let input = stream::iter(sides[number as usize].clone().into_iter().map(Ok::<_, String>));
        let shuffle = spec.start(job, input).unwrap();
        try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>())
    });
    let (left, right) = block_on(join(left, right));
    [left, right].map(|side| {
        let (_, batches) = side.unwrap();
        batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
    })
}

/// How many pairs of rows have equal keys.
fn pairs([left, right]: &[Vec<i64>; 2]) -> u64 {
    let mut counts = vec![0_u64; KEYS];
    left.iter().for_each(|key| counts[*key as usize] += 1);
    right.iter().map(|key| counts[*key as usize]).sum()
}

#[test]
fn no_rank_joins_many_more_rows_than_the_others() {
    for exponent in [1.0, 1.5] {
        let mut random = StdRng::seed_from_u64(7);
        // A key of the left side has one row, on any rank.
        let mut keys: Vec<i64> = (0..KEYS as i64).collect();
        (1..KEYS).for_each(|place| keys.swap(place, random.random_range(0..=place)));
        let lefts: Vec<Vec<i64>> = keys.chunks(KEYS / RANKS).map(<[i64]>::to_vec).collect();
        let rights: Vec<Vec<i64>> = (0..RANKS).map(|_| zipf(30_000, exponent, &mut random)).collect();
        let expected = pairs(&[lefts.concat(), rights.concat()]);
        let rows = KEYS + rights.iter().map(Vec::len).sum::<usize>();
        for (levels, ranks_per_node) in [(Levels::One, 8), (Levels::Two, 4)] {
            let endpoints = ranks(Topology::of_nodes(RANKS, ranks_per_node).unwrap(), None);
            let all = on_each(&endpoints, JobId(0), |rank, job| {
                joined(&job, [batches(&lefts[rank]), batches(&rights[rank])], levels)
            });
            assert_eq!(all.iter().map(pairs).sum::<u64>(), expected, "Zipf {exponent}");
            let most = all.iter().map(|[left, right]| left.len() + right.len()).max().unwrap();
            let mean = rows as f64 / RANKS as f64;
            assert!((most as f64) < 1.3 * mean, "Zipf {exponent}: {most} rows on a rank, {mean} in the mean");
        }
    }
}
