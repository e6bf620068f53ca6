//! The repartitioned join among ranks: both sides are shuffled, then each rank joins what it has.

use std::iter::zip;
use std::time::Instant;

use arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err};
use futures::executor::block_on;
use futures::future::try_join;
use futures::{TryStreamExt, stream};
use overspill_advisor::Shuffle;
use overspill_exchange::transport::Job;
use overspill_exchange::{Columns, ExchangeMetrics, ShuffleSpec, Work};
use overspill_join::memory::row_bytes;

use super::data::{RankRows, Tables};
use crate::figures::cluster::Cluster;
use crate::member::Member;
use crate::operator::{self, Answer, How};
use crate::report::failed;

/// What a rank does, step by step. The all-to-all is the part of the shuffles that is none of the other steps.
pub(super) const STEPS: [&str; 6] = ["partition", "compress", "all-to-all", "decompress", "build", "probe"];

/// Room of a round, as a multiple of a rank's rows: all go in one round, as in the paper, even if partitions are uneven.
const ROUND: usize = 4;

/// A run of all ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// The seconds of the rank that took the longest.
    pub(super) seconds: f64,
    /// What that rank did in them.
    pub(super) steps: [f64; STEPS.len()],
    /// Rows of both sides on all ranks.
    pub(super) rows: u64,
    /// What all ranks have sent to other nodes.
    pub(super) across: Columns,
    /// What all ranks have sent within their nodes.
    pub(super) within: Columns,
}

/// Runs the join of `ranks` ranks on each way, as often as a figure does, one way after the other in each run. The first run faults in memory
/// for the others and is not returned, unless it is the only one.
///
/// # Errors
/// If memory runs out, a rank fails, or the join finds other pairs than there are.
pub(super) fn measure(
    cluster: &Cluster,
    tables: &Tables,
    ranks: usize,
    ways: &[Shuffle],
    runs: usize,
) -> Result<Vec<Vec<Run>>> {
    cluster.on_each(ranks, |member| {
        let rows = tables.of_rank(member.endpoint().rank(), ranks)?;
        in_turn(ways, runs, |way| run(member, &rows, way))
    })
}

/// Runs each way `runs` times, one way after the other. The first run of a way is not returned, unless it is the only one.
pub(super) fn in_turn(
    ways: &[Shuffle],
    runs: usize,
    mut run: impl FnMut(Shuffle) -> Result<Run>,
) -> Result<Vec<Vec<Run>>> {
    let mut found = vec![vec![]; ways.len()];
    for number in 0..runs {
        for (way, found) in zip(ways, &mut found) {
            let run = run(*way)?;
            if number > 0 || runs == 1 {
                found.push(run);
            }
        }
    }
    Ok(found)
}

/// Joins once, when all ranks are ready. All have the outcome.
fn run(member: &mut Member, rows: &RankRows, way: Shuffle) -> Result<Run> {
    member.gather(&[])?;
    let job = member.job();
    let begin = Instant::now();
    let mut exchanged = vec![];
    let [build, probe] = [0, 1].map(|number| {
        let (batches, metrics) = shuffle(&job, number, &rows.sides[number], way)?;
        exchanged.extend(metrics);
        Ok::<_, datafusion::error::DataFusionError>(batches)
    });
    let tables = operator::Tables::of(build?, probe?);
    let shuffled = begin.elapsed().as_secs_f64();
    let joined = tables.join(1, How::default())?;
    let seconds = begin.elapsed().as_secs_f64();
    let work = exchanged.iter().map(ExchangeMetrics::work).fold(Work::default(), |sum, work| sum + work);
    let [partition, compress, decompress] =
        [work.partitioning, work.compressing, work.decompressing].map(|time| time.as_secs_f64());
    let build = joined.seconds.build;
    let steps = [
        partition,
        compress,
        shuffled - partition - compress - decompress,
        decompress,
        build,
        seconds - shuffled - build,
    ];
    let sent = exchanged.iter().map(ExchangeMetrics::exchanged);
    let [across, within] =
        sent.fold([Columns::default(); 2], |[across, within], level| [across + level.across, within + level.within]);
    let rows_here = rows.sides.iter().flatten().map(|batch| batch.num_rows() as u64).sum();
    agree(member, Run { seconds, steps, rows: rows_here, across, within }, joined.answer, rows.expected)
}

/// Shuffles a side, on this thread alone: a rank is a thread.
fn shuffle(
    job: &Job,
    number: usize,
    batches: &[RecordBatch],
    way: Shuffle,
) -> Result<(Vec<RecordBatch>, Vec<ExchangeMetrics>)> {
    let schema = batches[0].schema();
    let bytes: usize = batches.iter().map(|batch| row_bytes(batch) * batch.num_rows()).sum();
    let spec = ShuffleSpec {
        number: number as u64,
        schema: schema.clone(),
        keys: vec![0],
        null_equal: false,
        levels: way.levels,
        is_compressed: way.compressed,
        round_bytes: bytes * ROUND,
        heavy: None,
    };
    let batches = batches.to_vec();
    let input = stream::iter(batches.into_iter().map(Ok::<_, overspill_exchange::Error>));
    let shuffle = spec.start(job, input).map_err(failed)?;
    let ((), mut rows) = block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>())).map_err(failed)?;
    if rows.is_empty() {
        rows.push(RecordBatch::new_empty(schema));
    }
    Ok((rows, shuffle.metrics))
}

/// The run of all ranks: the time of the slowest, and what all have sent. Checks what all have found.
pub(super) fn agree(member: &mut Member, own: Run, found: Answer, expected: Answer) -> Result<Run> {
    let times: Vec<u64> = std::iter::once(own.seconds).chain(own.steps).map(f64::to_bits).collect();
    let times = member.gather(&times)?;
    let of_columns = |columns: Columns| [columns.messages, columns.bytes, columns.sent_bytes];
    let of_answer = |(pairs, sum): Answer| [pairs as u64, sum as u64];
    let (sent, answers) = ([own.across, own.within].map(of_columns), [found, expected].map(of_answer));
    let counts = [&sent.concat()[..], &answers.concat(), &[own.rows]].concat();
    let counts = member.gather(&counts)?;
    let total = |place: usize| counts.iter().fold(0u64, |sum, counts| sum.wrapping_add(counts[place]));
    let columns =
        |place: usize| Columns { messages: total(place), bytes: total(place + 1), sent_bytes: total(place + 2) };
    let [across, within] = [columns(0), columns(3)];
    let [found, expected] = [6, 8].map(|place| (total(place), total(place + 1) as i64));
    if found != expected {
        return exec_err!(
            "A join of {} ranks gave a wrong answer: {found:?} rows and sum of payloads, not {expected:?}.",
            counts.len()
        );
    }
    let times = times.iter().map(|times| times.iter().map(|time| f64::from_bits(*time)).collect::<Vec<_>>());
    let slowest = times.max_by(|one, other| one[0].total_cmp(&other[0])).unwrap_or_default();
    let steps = std::array::from_fn(|step| slowest[1 + step]);
    Ok(Run { seconds: slowest[0], steps, rows: total(10), across, within })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::super::data::Workload;
    use super::*;
    use crate::figures::cluster::RankArgs;

    #[test]
    fn ranks_find_all_pairs_and_send_the_papers_messages() {
        let args = RankArgs { ranks: NonZeroUsize::new(4), ..RankArgs::default() };
        let cluster = Cluster::open(&args).unwrap();
        for workload in [Workload::Random(500.0), Workload::Tpch] {
            let tables = Tables::new(workload, 1e-5, 4, 2).unwrap();
            for ranks in [1, 4] {
                let runs = measure(&cluster, &tables, ranks, &Shuffle::ALL, 2).unwrap();
                for (way, runs) in zip(Shuffle::ALL, runs) {
                    let [run] = runs[..] else { panic!("the first run of two does not count") };
                    let messages = way.levels.messages(ranks as u32, cluster.nodes(ranks) as u32);
                    let sent = [run.across.messages, run.within.messages];
                    let expected = [messages.across, messages.within].map(|count| count * workload.columns());
                    assert_eq!(sent, expected, "{way} of {ranks} ranks");
                    assert!((run.steps.iter().sum::<f64>() / run.seconds - 1.0).abs() < 1e-9, "{run:?}");
                    assert!(run.steps.iter().all(|seconds| *seconds >= 0.0), "{run:?}");
                    // Keys of TPC-H ascend, and random ones have nothing in common.
                    if workload == Workload::Tpch && ranks == 4 {
                        assert_eq!(way.compressed, run.across.sent_bytes * 2 < run.across.bytes, "{way}: {run:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let cluster = Cluster::open(&RankArgs { ranks: NonZeroUsize::new(2), ..RankArgs::default() }).unwrap();
        let tables = Tables::new(Workload::Random(500.0), 1e-6, 2, 1).unwrap();
        let wrong = cluster.on_each(2, |member| {
            let mut rows = tables.of_rank(member.endpoint().rank(), 2)?;
            rows.expected.0 += 1;
            run(member, &rows, Shuffle::ALL[0])
        });
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains("A join of 2 ranks gave a wrong answer"), "{error}");
    }
}
