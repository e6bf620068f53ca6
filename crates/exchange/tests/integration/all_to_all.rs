//! Rows that are partitioned already come to the rank that they are for.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int64Type, SchemaRef};
use futures::executor::block_on;
use futures::future::try_join;
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::{JobId, Network};
use overspill_exchange::{Error, RowsSpec, Topology};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::ranks::{on_each, ranks};
use crate::shuffles::topology;

fn batch(from: usize, to: usize, numbers: Range<i64>) -> RecordBatch {
    let ways: ArrayRef = Arc::new(StringArray::from_iter_values(numbers.clone().map(|_| format!("{from} to {to}"))));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    RecordBatch::try_from_iter([("way", ways), ("number", numbers)]).unwrap()
}

fn spec(schema: SchemaRef) -> RowsSpec {
    RowsSpec { number: 0, schema, is_compressed: true, round_bytes: 10_000 }
}

/// The rounds of a rank: pieces of random size for each rank, some of them empty, some larger than a batch. The rows for a rank are numbered.
fn rounds(seed: u64, from: usize, count: usize) -> Vec<Vec<RecordBatch>> {
    let random = &mut StdRng::seed_from_u64(seed ^ (from as u64) << 32);
    let mut next = vec![0_i64; count];
    let mut piece = |to: usize| {
        let rows = [0, random.random_range(0..100), random.random_range(0..20_000)][random.random_range(0..3)];
        next[to] += rows;
        batch(from, to, next[to] - rows..next[to])
    };
    (0..4).map(|_| (0..count).map(&mut piece).collect()).collect()
}

#[test]
fn pieces_arrive_whole_and_in_order() {
    for seed in 0..30 {
        let random = &mut StdRng::seed_from_u64(seed);
        let topology = topology(random);
        let count = topology.ranks();
        let delayed = Network { seed, most_delay: Duration::from_micros(200), ..Network::default() };
        let endpoints = ranks(topology, random.random_bool(0.5).then_some(delayed));
        let received = on_each(&endpoints, JobId(0), |rank, job| {
            let input = stream::iter(rounds(seed, rank, count).into_iter().map(Ok::<_, Error>));
            let shuffle = spec(batch(0, 0, 0..0).schema()).all_to_all(&job, input);
            block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>())).unwrap().1
        });
        for (to, batches) in received.into_iter().enumerate() {
            let mut next = vec![0; count];
            for batch in &batches {
                for (way, number) in
                    batch.column(0).as_string::<i32>().iter().zip(batch.column(1).as_primitive::<Int64Type>())
                {
                    let from = (0..count).find(|from| way == Some(&format!("{from} to {to}"))).unwrap();
                    assert_eq!(number, Some(next[from]), "seed {seed}, {way:?}");
                    next[from] += 1;
                }
            }
            let sent = |from| rounds(seed, from, count).iter().map(|round| round[to].num_rows() as i64).sum::<i64>();
            assert!(next.into_iter().eq((0..count).map(sent)), "seed {seed}: rows to {to} are missing");
        }
    }
}

/// The input of a rank fails: all ranks learn why.
#[test]
fn a_failed_input_reaches_all_ranks() {
    let endpoints = ranks(Topology::of_nodes(3, 2).unwrap(), None);
    let errors = on_each(&endpoints, JobId(0), |rank, job| {
        let rounds = rounds(7, rank, 3).into_iter().map(Ok::<_, String>);
        let input = stream::iter(rounds.chain((rank == 1).then(|| Err("its disk is full".to_owned()))));
        let shuffle = spec(batch(0, 0, 0..0).schema()).all_to_all(&job, input);
        block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>())).unwrap_err().to_string()
    });
    assert_eq!(errors, ["rank 1 failed: its disk is full"; 3]);
}
