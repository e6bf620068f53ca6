//! Whatever fails, all ranks end with the same words, and nothing is kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use futures::executor::block_on;
use futures::future::{join, try_join};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use overspill_exchange::transport::{Job, JobId, Network};
use overspill_exchange::{Levels, ShuffleSpec, Topology};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::ranks::{on_each, ranks, shuffle};
use crate::rows::Tables;
use crate::shuffles::topology;

fn keys(rows: i64) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    RecordBatch::try_from_iter([("key", keys)]).unwrap()
}

fn spec(batch: &RecordBatch, levels: Levels) -> ShuffleSpec {
    ShuffleSpec {
        number: 0,
        schema: batch.schema(),
        keys: vec![0],
        null_equal: false,
        levels,
        is_compressed: true,
        round_bytes: 10_000,
        heavy: None,
    }
}

/// The input of one rank fails somewhere, or the network loses a rank.
#[test]
fn one_failure_ends_all_ranks() {
    let mut lost = 0;
    for seed in 0..100 {
        let random = &mut StdRng::seed_from_u64(seed);
        let topology = topology(random);
        let (count, victim) = (topology.ranks(), random.random_range(0..topology.ranks()));
        let tables = Tables::random(seed, count);
        let loses = random.random_bool(0.5).then(|| (victim, random.random_range(0..300)));
        let network = Network { seed, most_delay: Duration::from_micros(100), loses, ..Network::default() };
        let endpoints = ranks(topology, Some(network));
        let levels = if random.random_bool(0.5) { Levels::One } else { Levels::Two };
        let spec = ShuffleSpec { keys: (0..tables.keys).collect(), schema: tables.schema(0), ..spec(&keys(0), levels) };
        let started = Instant::now();
        let errors = on_each(&endpoints, JobId(1), |rank, job| {
            let mut input: Vec<Result<RecordBatch, String>> = tables.sides[0][rank].iter().cloned().map(Ok).collect();
            if loses.is_none() && rank == victim {
                input.insert(seed as usize % (input.len() + 1), Err("its disk is full".to_owned()));
            }
            let shuffle = spec.clone().start(&job, stream::iter(input)).unwrap();
            block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>()))
                .err()
                .map(|error| error.to_string())
        });
        assert!(started.elapsed() < Duration::from_secs(10), "seed {seed}: {:?}", started.elapsed());
        let words = if loses.is_some() { "it no longer answers" } else { "its disk is full" };
        let expected = format!("rank {victim} failed: {words}");
        match loses {
            // A rank may have all its rows before.
            Some(_) => {
                assert!(errors.iter().flatten().all(|error| *error == expected), "seed {seed}: {errors:?}");
                lost += usize::from(errors.iter().any(Option::is_some));
            }
            None => {
                assert_eq!(errors[victim].as_ref(), Some(&expected), "seed {seed}");
                assert!(errors.iter().flatten().all(|error| *error == expected), "seed {seed}: {errors:?}");
            }
        }
        for endpoint in &endpoints {
            assert_eq!(endpoint.jobs(), 0, "seed {seed}");
        }
    }
    assert!(lost > 10, "{lost} of 50 losses were noticed");
}

/// A rank that wants no more rows does not stop the others, as with LIMIT.
#[test]
fn who_wants_no_more_rows_stops_nobody() {
    for levels in [Levels::One, Levels::Two] {
        let endpoints = ranks(Topology::of_nodes(4, 2).unwrap(), None);
        let batch = keys(20_000);
        let rows = on_each(&endpoints, JobId(1), |rank, job| {
            let shuffle = spec(&batch, levels).start(&job, stream::iter([Ok::<_, String>(batch.clone())])).unwrap();
            let take = if rank % 2 == 0 { usize::MAX } else { rank - 1 };
            let output = shuffle.output.take(take).try_collect::<Vec<_>>();
            let (driven, output) = block_on(join(shuffle.driver, output));
            driven.unwrap();
            output.unwrap().iter().map(RecordBatch::num_rows).sum::<usize>()
        });
        for rank in [0, 2] {
            assert!((19_000..21_000).contains(&rows[rank]), "{levels:?}: {rows:?}");
        }
        assert!(rows[1] == 0 && rows[3] > 0 && rows[3] < 19_000, "{levels:?}: {rows:?}");
        assert!(endpoints.iter().all(|endpoint| endpoint.jobs() == 0));
    }
}

/// Nobody reads, and whoever sends gets no further than the window.
#[test]
fn rows_wait_where_they_are() {
    let endpoints = ranks(Topology::of_nodes(2, 1).unwrap(), None);
    let batch = keys(1000);
    let mut shuffles: Vec<_> = endpoints
        .iter()
        .map(|endpoint| {
            let endless = stream::repeat(batch.clone()).map(Ok::<_, String>);
            spec(&batch, Levels::One).start(&Job::begin(endpoint, JobId(1)), endless).unwrap()
        })
        .collect();
    for shuffle in &mut shuffles {
        assert!((&mut shuffle.driver).now_or_never().is_none());
    }
    for shuffle in &mut shuffles {
        assert!((&mut shuffle.driver).now_or_never().is_none());
        let sent = shuffle.metrics[0].exchanged().across;
        assert!(sent.sent_bytes > 0 && sent.bytes < 60_000, "{sent:?}");
    }
    // A driver whose outputs have gone ends, though its input does not.
    let drivers: Vec<_> = shuffles.into_iter().map(|shuffle| shuffle.driver).collect();
    for driver in drivers {
        block_on(driver).unwrap();
    }
}

#[test]
fn ranks_with_other_rows_are_named() {
    let endpoints = ranks(Topology::of_nodes(3, 3).unwrap(), None);
    let other: ArrayRef = Arc::new(Int32Array::from_iter_values(0..1000));
    let other = RecordBatch::try_from_iter([("key", other)]).unwrap();
    let errors = on_each(&endpoints, JobId(1), |rank, job| {
        let batch = if rank == 1 { other.clone() } else { keys(1000) };
        shuffle(&job, spec(&batch, Levels::One), vec![batch]).unwrap_err().to_string()
    });
    // Several ranks may see it at once, each in what another has sent.
    let names_both = |error: &String| error.contains("(key Int32)") && error.contains("(key Int64)");
    assert!(errors.iter().all(names_both), "{errors:?}");
}

/// Who reads does not take rows that are missing for the end, whoever drives.
#[test]
fn the_output_fails_as_the_input_does() {
    for (ranks_of_node, levels) in [(1, Levels::One), (2, Levels::Two)] {
        let endpoints = ranks(Topology::of_nodes(ranks_of_node, ranks_of_node).unwrap(), None);
        let batch = keys(1000);
        let outcomes = on_each(&endpoints, JobId(1), |_, job| {
            let input = [Ok(batch.clone()), Err("its disk is full".to_owned())];
            let shuffle = spec(&batch, levels).start(&job, stream::iter(input)).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| block_on(shuffle.driver).unwrap_err());
                block_on(shuffle.output.try_collect::<Vec<_>>())
            })
        });
        for outcome in outcomes {
            assert!(outcome.unwrap_err().to_string().ends_with("failed: its disk is full"), "{levels:?}");
        }
        // Nor is a driver that is gone the end.
        let outcomes = on_each(&endpoints, JobId(2), |_, job| {
            let shuffle = spec(&batch, levels).start(&job, stream::iter([Ok::<_, String>(batch.clone())])).unwrap();
            drop(shuffle.driver);
            block_on(shuffle.output.try_collect::<Vec<_>>())
        });
        assert!(outcomes.iter().all(Result::is_err), "{levels:?}");
    }
}

#[test]
fn keys_that_are_not_there_or_differ_are_refused() {
    let endpoints = ranks(Topology::of_nodes(2, 1).unwrap(), None);
    let batch = keys(1000);
    for keys in [vec![], vec![1]] {
        let errors = on_each(&endpoints, JobId(keys.len() as u64), |_, job| {
            let spec = ShuffleSpec { keys: keys.clone(), ..spec(&batch, Levels::One) };
            shuffle(&job, spec, vec![batch.clone()]).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains("rows of 1 columns have no key")), "{errors:?}");
    }
    let errors = on_each(&endpoints, JobId(2), |rank, job| {
        let spec = ShuffleSpec { null_equal: rank == 1, ..spec(&batch, Levels::One) };
        shuffle(&job, spec, vec![batch.clone()]).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("the keys [0], nulls equal")), "{errors:?}");
}
