//! The messages of a round are those of the paper.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use futures::executor::block_on;
use futures::future::try_join;
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::JobId;
use overspill_exchange::{Columns, ExchangeMetrics, Exchanged, Levels, ShuffleSpec, Topology, Work};

use crate::ranks::{on_each, ranks, shuffle_all};

const COLUMNS: u64 = 2;

/// What all ranks have sent, on each level, of tables that fit a round.
fn exchanged(nodes: usize, ranks_per_node: usize, levels: Levels, is_compressed: bool) -> Vec<Exchanged> {
    let count = nodes * ranks_per_node;
    let batch = |rank: i64| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..2000).map(|row| 1000 + 2000 * rank + row)));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..2000).map(|row| format!("text {}", row / 8))));
        RecordBatch::try_from_iter([("key", keys), ("text", texts)]).unwrap()
    };
    let batches: Vec<_> = (0..count as i64).map(|rank| vec![batch(rank)]).collect();
    let spec = ShuffleSpec {
        number: 3,
        schema: batches[0][0].schema(),
        keys: vec![0],
        null_equal: false,
        levels,
        is_compressed,
        round_bytes: 1 << 24,
        heavy: None,
    };
    let endpoints = ranks(Topology::of_nodes(count, ranks_per_node).unwrap(), None);
    let all = shuffle_all(&endpoints, &spec, &batches);
    let add = |first: Columns, second: Columns| Columns {
        messages: first.messages + second.messages,
        bytes: first.bytes + second.bytes,
        sent_bytes: first.sent_bytes + second.sent_bytes,
    };
    (0..all[0].1.len())
        .map(|level| {
            all.iter().map(|(_, levels)| levels[level]).fold(Exchanged::default(), |sum, one| Exchanged {
                rounds: sum.rounds + one.rounds,
                across: add(sum.across, one.across),
                within: add(sum.within, one.within),
                ..sum
            })
        })
        .collect()
}

#[test]
fn one_level_sends_a_message_to_each_rank_for_a_column() {
    for (nodes, ranks) in [(1, 1), (1, 4), (3, 1), (4, 2), (2, 4)] {
        let [sent] = exchanged(nodes, ranks, Levels::One, false)[..] else { panic!("one level") };
        let (all, near) = ((nodes * ranks) as u64, ranks as u64);
        assert_eq!(sent.rounds, all);
        assert_eq!(sent.within.messages, COLUMNS * all * (near - 1));
        assert_eq!(sent.across.messages + sent.within.messages, COLUMNS * all * (all - 1));
    }
}

#[test]
fn two_levels_cross_on_rails_and_compress_only_there() {
    for (nodes, ranks) in [(1, 4), (3, 1), (4, 2), (2, 4), (3, 3)] {
        let [across, within] = exchanged(nodes, ranks, Levels::Two, true)[..] else { panic!("two levels") };
        let (n, m) = (nodes as u64, ranks as u64);
        assert_eq!((across.across.messages, across.within.messages), (COLUMNS * n * m * (n - 1), 0));
        assert_eq!((within.within.messages, within.across.messages), (COLUMNS * n * m * (m - 1), 0));
        assert_eq!((across.rounds, within.rounds), (n * m, n * m));
        assert!(across.across.sent_bytes * 3 <= across.across.bytes, "{across:?}");
        assert!(within.within.sent_bytes * 3 >= within.within.bytes, "{within:?}");
    }
}

#[test]
fn work_is_timed_by_what_it_is() {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200_000));
    let batch = RecordBatch::try_from_iter([("key", keys)]).unwrap();
    let work = |is_compressed: bool| {
        let spec = ShuffleSpec {
            number: 0,
            schema: batch.schema(),
            keys: vec![0],
            null_equal: false,
            levels: Levels::One,
            is_compressed,
            round_bytes: 1 << 24,
            heavy: None,
        };
        let endpoints = ranks(Topology::of_nodes(2, 1).unwrap(), None);
        let of_ranks = on_each(&endpoints, JobId(0), |_, job| {
            let shuffle = spec.clone().start(&job, stream::iter([Ok::<_, String>(batch.clone())])).unwrap();
            block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>())).unwrap();
            shuffle.metrics.iter().map(ExchangeMetrics::work).fold(Work::default(), |sum, work| sum + work)
        });
        of_ranks.into_iter().fold(Work::default(), |sum, work| sum + work)
    };
    let (plain, compressed) = (work(false), work(true));
    for work in [plain, compressed] {
        assert!(!work.partitioning.is_zero(), "{work:?}");
    }
    // Plain values are shared, and compressed ones are made.
    assert!(compressed.compressing > plain.compressing * 2, "{plain:?} {compressed:?}");
    assert!(compressed.decompressing > plain.decompressing * 2, "{plain:?} {compressed:?}");
}
