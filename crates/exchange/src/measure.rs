//! The rates of ranks, which the cost model of shuffles goes by. They are measured by what shuffles do: the exchange, the partitioner and the
//! codec, not by bare messages.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::buffer::Buffer;
use futures::executor::block_on;
use futures::future::try_join;
use futures::{StreamExt, TryStreamExt, stream};
use overspill_machine::measure::{CodecRates, LevelRates, NetworkRates};

use crate::all_to_all::Work;
use crate::error::{Error, Result};
use crate::member::Member;
use crate::partition::{HashPartitioner, HashPartitioning};
use crate::rank::Rank;
use crate::rows::RowsSpec;
use crate::shuffle::SEEDS;
use crate::transport::{Job, Receiver, Sender};

/// Rows of a batch that is partitioned.
const BATCH: usize = 8192;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkEffort {
    /// Messages of each rank of a pair, one after the other.
    pub round_trips: usize,
    /// Small messages to each rank, which need not wait for each other.
    pub messages: usize,
    /// Bytes of a large message.
    pub piece_bytes: usize,
    /// Bytes that a rank sends, and as many that it partitions.
    pub bytes: usize,
    /// Runs, of which the best counts.
    pub runs: usize,
}

impl Default for NetworkEffort {
    fn default() -> Self {
        Self { round_trips: 200, messages: 200, piece_bytes: 1 << 20, bytes: 64 << 20, runs: 3 }
    }
}

/// Measures the rates of all ranks, which all call this at the same time. `sharing_memory` ranks are on this machine. It takes some seconds.
///
/// # Errors
/// If a rank fails.
pub fn measure_network(member: &mut Member, sharing_memory: usize, effort: NetworkEffort) -> Result<NetworkRates> {
    let topology = Arc::clone(member.endpoint().topology());
    let here = member.endpoint().rank();
    let node = topology.node_of(here);
    let neighbours = topology.neighbours(here).iter().copied().filter(|rank| *rank != here).collect::<Vec<_>>();
    let others = (0..topology.ranks()).filter(|rank| topology.node_of(*rank) != node).collect::<Vec<_>>();
    // Whoever is paired with a rank is so with it.
    let of_pair = |ranks: &[Rank]| {
        let place = ranks.iter().position(|rank| *rank == here)?;
        ranks.get(place ^ 1).copied()
    };
    let neighbour = of_pair(topology.neighbours(here));
    let peer = of_pair(&topology.rail(here)).filter(|peer| topology.rail(*peer)[node] == here);
    // All ranks measure the same, also those that have no one to send to.
    let fullest = member.gather(&[neighbours.len() as u64 + 1, sharing_memory as u64])?;
    let [ranks_per_node, ranks_per_machine] =
        [0, 1].map(|word| fullest.iter().map(|words| words[word]).max().unwrap_or(1) as u32);
    let within = match ranks_per_node {
        1 => None,
        _ => Some(level(member, &neighbours, neighbour, effort)?),
    };
    let (across, codec) = match topology.nodes() {
        1 => (None, None),
        _ => (Some(level(member, &others, peer, effort)?), Some(codec(member, &others, effort)?)),
    };
    let partition = partition(member, effort)?;
    let ranks = topology.ranks() as u32;
    Ok(NetworkRates { ranks, ranks_per_node, ranks_per_machine, within, across, partition, codec })
}

/// Measures messages to a group of ranks, and to one of them.
fn level(member: &mut Member, ranks: &[Rank], partner: Option<Rank>, effort: NetworkEffort) -> Result<LevelRates> {
    let latency = best(member, effort.runs, |job| {
        let Some(partner) = partner else { return Ok(0.0) };
        let started = Instant::now();
        block_on(ping_pong(job, partner, effort.round_trips))?;
        Ok(started.elapsed().as_secs_f64() / (2 * effort.round_trips) as f64)
    })?;
    let small = keys(0, 1);
    let message = best(member, effort.runs, |job| {
        let rounds = vec![vec![small.clone(); ranks.len()]; effort.messages];
        let seconds = exchange(job, ranks, rounds, false)?.0;
        Ok(seconds / (effort.messages * ranks.len().max(1)) as f64)
    })?;
    let seconds_of_byte = best(member, effort.runs, |job| {
        let (rounds, bytes) = large_rounds(ranks.len(), effort);
        Ok(exchange(job, ranks, rounds, false)?.0 / bytes as f64)
    })?;
    Ok(LevelRates { bytes_per_second: 1.0 / seconds_of_byte, latency, message })
}

/// Measures the codec of what crosses nodes.
fn codec(member: &mut Member, ranks: &[Rank], effort: NetworkEffort) -> Result<CodecRates> {
    let mut best_of = |seconds: fn(Work) -> f64| {
        let seconds_of_byte = best(member, effort.runs, |job| {
            let (rounds, bytes) = large_rounds(ranks.len(), effort);
            Ok(seconds(exchange(job, ranks, rounds, true)?.1) / bytes as f64)
        })?;
        Ok::<_, Error>(1.0 / seconds_of_byte)
    };
    Ok(CodecRates {
        compress: best_of(|work| work.compressing.as_secs_f64())?,
        decompress: best_of(|work| work.decompressing.as_secs_f64())?,
    })
}

/// Measures how fast rows are partitioned for all ranks.
fn partition(member: &mut Member, effort: NetworkEffort) -> Result<f64> {
    let ranks = member.endpoint().topology().ranks();
    let row_bytes = 2 * size_of::<i64>();
    let rows = (effort.bytes / row_bytes).max(1);
    let batches: Vec<_> = (0..rows)
        .step_by(BATCH)
        .map(|first| {
            let [keys, numbers] = [0x9E37_79B9_7F4A_7C15_u64 as i64, 1].map(|factor| {
                let count = BATCH.min(rows - first);
                Arc::new(Int64Array::from_iter_values(
                    (first..first + count).map(|row| (row as i64).wrapping_mul(factor)),
                )) as ArrayRef
            });
            Ok(RecordBatch::try_from_iter([("key", keys), ("row", numbers)])?)
        })
        .collect::<Result<_>>()?;
    let seconds = best(member, effort.runs, |_| {
        let batches = batches.clone();
        let partitioning = HashPartitioning {
            keys: vec![0],
            null_equal: false,
            seed: SEEDS[0],
            partitions: ranks,
            home: 0,
            heavy: Arc::default(),
        };
        let mut partitioner = HashPartitioner::new(batches[0].schema(), partitioning)?;
        let started = Instant::now();
        for batch in batches {
            partitioner.push(batch)?;
        }
        std::hint::black_box(partitioner.take()?);
        Ok(started.elapsed().as_secs_f64())
    })?;
    Ok((rows * row_bytes) as f64 / seconds)
}

/// The least of several runs, which all ranks begin together; a run takes as long as its slowest rank.
fn best(member: &mut Member, runs: usize, run: impl Fn(&Job) -> Result<f64>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..runs.max(1) {
        let job = member.job();
        member.gather(&[])?;
        let seconds = run(&job)?;
        least = least.min(member.most(seconds)?);
    }
    // Times too short for the clock are not nothing.
    Ok(least.max(f64::MIN_POSITIVE))
}

/// Sends a small message to and fro.
async fn ping_pong(job: &Job, partner: Rank, round_trips: usize) -> Result<()> {
    let begins = job.endpoint().rank() < partner;
    let (mut sender, mut receiver) = (Sender::open(job, partner, 0), Receiver::open(job, partner, 0, 1 << 10));
    let message = Buffer::from_vec(vec![0_u8; 8]);
    for _ in 0..round_trips {
        if begins {
            sender.send(message.clone()).await?;
        }
        receiver.next().await.transpose()?;
        if !begins {
            sender.send(message.clone()).await?;
        }
    }
    sender.end();
    // The partner's end, so that nothing of it is left when the job ends.
    receiver.next().await.transpose()?;
    Ok(())
}

/// Sends rounds of rows to ranks that do the same. Returns the seconds, and what this rank has worked in them.
fn exchange(job: &Job, ranks: &[Rank], rounds: Vec<Vec<RecordBatch>>, is_compressed: bool) -> Result<(f64, Work)> {
    if ranks.is_empty() {
        return Ok((0.0, Work::default()));
    }
    let round_bytes = rounds.iter().flatten().map(RecordBatch::get_array_memory_size).max().unwrap_or(1);
    let spec = RowsSpec { number: 0, schema: keys(0, 0).schema(), is_compressed, round_bytes };
    let started = Instant::now();
    let moved = spec.among(job, ranks.to_vec(), stream::iter(rounds.into_iter().map(Ok::<_, Error>)));
    let received = moved.output.try_fold(0, async |rows, batch| Ok(rows + batch.num_rows()));
    block_on(try_join(moved.driver, received))?;
    let work = moved.metrics.iter().fold(Work::default(), |sum, metrics| sum + metrics.work());
    Ok((started.elapsed().as_secs_f64(), work))
}

/// Rounds of large messages to a number of ranks, and the bytes in them.
fn large_rounds(ranks: usize, effort: NetworkEffort) -> (Vec<Vec<RecordBatch>>, usize) {
    let rows = (effort.piece_bytes / size_of::<i64>()).max(1);
    let rounds = effort.bytes.div_ceil(rows * size_of::<i64>() * ranks.max(1)).max(1);
    let piece = keys(0, rows);
    (vec![vec![piece; ranks]; rounds], rounds * ranks.max(1) * rows * size_of::<i64>())
}

/// A column of keys in order.
fn keys(first: i64, rows: usize) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows as i64));
    RecordBatch::try_from_iter([("key", keys)]).expect("a column is as long as itself")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::topology::Topology;
    use crate::transport::{Network, in_process};

    const EFFORT: NetworkEffort =
        NetworkEffort { round_trips: 10, messages: 10, piece_bytes: 1 << 16, bytes: 1 << 20, runs: 2 };

    fn measured(topology: Topology, network: Option<Network>) -> Vec<NetworkRates> {
        let endpoints = in_process(&Arc::new(topology), network);
        thread::scope(|scope| {
            let measure = |endpoint: &Arc<_>| {
                let mut member = Member::new(Arc::clone(endpoint));
                scope.spawn(move || measure_network(&mut member, 2, EFFORT).unwrap())
            };
            let threads: Vec<_> = endpoints.iter().map(measure).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_measure_the_same_of_the_levels_that_there_are() {
        for (nodes, has_within, has_across) in [
            (&[0][..], false, false),
            (&[0, 0, 0], true, false),
            (&[0, 1], false, true),
            (&[0, 0, 1, 1], true, true),
            // A rank alone on its node, and a node without another to be paired with.
            (&[0, 0, 1, 2, 2], true, true),
        ] {
            let measured = measured(Topology::new(nodes).unwrap(), None);
            let rates = measured[0];
            assert!(measured.iter().all(|other| *other == rates), "{measured:?}");
            assert_eq!(rates.ranks as usize, nodes.len());
            assert_eq!((rates.within.is_some(), rates.across.is_some()), (has_within, has_across), "{nodes:?}");
            assert_eq!(rates.codec.is_some(), has_across);
            assert_eq!(rates.ranks_per_machine, 2);
            for level in rates.within.iter().chain(&rates.across) {
                assert!((1e5..1e13).contains(&level.bytes_per_second), "{level:?}");
                assert!((1e-9..1.0).contains(&level.latency) && (1e-9..1.0).contains(&level.message), "{level:?}");
            }
            assert!((1e6..1e13).contains(&rates.partition), "{rates:?}");
        }
    }

    #[test]
    fn a_network_of_known_speed_is_found() {
        let network = Network { bytes_per_second: Some(20e6), ..Network::default() };
        let rates = measured(Topology::of_nodes(2, 1).unwrap(), Some(network))[0];
        let across = rates.across.unwrap();
        assert!((10e6..22e6).contains(&across.bytes_per_second), "{across:?}");
    }

    #[test]
    fn a_rank_that_fails_ends_the_measurement() {
        let endpoints = in_process(&Arc::new(Topology::of_nodes(2, 1).unwrap()), None);
        let mut members = endpoints.iter().map(|endpoint| Member::new(Arc::clone(endpoint)));
        let (mut one, other) = (members.next().unwrap(), members.next().unwrap());
        other.fail("its memory is full");
        let error = measure_network(&mut one, 2, EFFORT).unwrap_err().to_string();
        assert!(error.contains("its memory is full"), "{error}");
    }
}
