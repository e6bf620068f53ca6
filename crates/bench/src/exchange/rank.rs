//! One rank of the experiment. All ranks do the same, and tell each other what they have measured.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use futures::executor::block_on;
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::{Endpoint, MpiRank};
use overspill_exchange::{
    Columns, DeviceShuffleSpec, DeviceTable, ExchangeMetrics, GpuBytes, GpuPath, RowsSpec, Shuffle, ShuffleSpec,
};
use overspill_experiments::Gpu;

use super::ExchangeArgs;
use super::report::{AllToAllSeconds, Measured, Report};
use super::way::{Way, ways};
use crate::member::Member;
use crate::report::{failed, median, tell};

/// The most bytes that a rank exchanges by `MPI_Alltoallv` at once.
const MOST_BYTES: usize = 1 << 30;

/// What all ranks have sent.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    across: Columns,
    within: Columns,
    from_gpu: GpuBytes,
}

/// A rank with its rows.
pub struct RankRun {
    member: Member,
    batches: Vec<RecordBatch>,
    gpu: Result<Gpu, String>,
}

impl RankRun {
    pub fn new(endpoint: Arc<Endpoint>, batches: Vec<RecordBatch>, gpu: Result<Gpu, String>) -> Self {
        Self { member: Member::new(endpoint), batches, gpu }
    }

    /// Shuffles the rows on each way, as often as is asked for. Every rank has the report of all.
    pub fn run<'a>(mut self, args: &'a ExchangeArgs, mpi: Option<&MpiRank>) -> Result<Report<'a>> {
        self.measure(args, mpi).inspect_err(|error| self.member.fail(error))
    }

    fn measure<'a>(&mut self, args: &'a ExchangeArgs, mpi: Option<&MpiRank>) -> Result<Report<'a>> {
        let endpoint = Arc::clone(self.member.endpoint());
        let ranks = endpoint.topology().ranks();
        let own = self.batches.iter().map(|batch| [batch.num_rows(), batch.get_array_memory_size()]);
        let own = own.fold([0, 0], |[rows, bytes], [more_rows, more_bytes]| [rows + more_rows, bytes + more_bytes]);
        let all = self.member.gather(&own.map(|count| count as u64))?;
        let [rows, bytes] = [0, 1].map(|place| all.iter().map(|words| words[place]).sum::<u64>());
        // Rows go from GPU to GPU, or not at all.
        let with_gpu = self.member.gather(&[u64::from(self.gpu.is_ok())])?;
        let ways = ways(with_gpu.iter().all(|words| words[0] == 1));
        let (mut copies, mut bounds, mut alone, mut times) = (vec![], vec![], vec![], vec![vec![]; ways.len()]);
        let mut sent = vec![Sent::default(); ways.len()];
        for run in 0..args.runs.get() {
            copies.push(self.copy()?);
            if let Some(mpi) = mpi {
                // As many from each rank to each, which MPI wants them all to say, and not more than it can count.
                let part = (bytes as usize / (ranks * ranks)).min(MOST_BYTES / ranks);
                let share = (part * ranks * ranks) as f64 / bytes as f64;
                let seconds = self.member.slowest(|_| Ok(mpi.all_to_all(part).map_err(failed)?.as_secs_f64()))?;
                bounds.push(seconds / share);
                alone.push(self.exchange_alone(args, rows)?);
            }
            for (number, way) in ways.iter().copied().enumerate() {
                if endpoint.rank() == 0 {
                    tell(&format!("run {}: {}", run + 1, way.name()));
                }
                let (seconds, all) =
                    if way.is_on_gpu { self.shuffle_on_gpu(args, way, rows)? } else { self.shuffle(args, way, rows)? };
                times[number].push(seconds);
                sent[number] = all;
            }
        }
        let median = |times| median(times).unwrap_or(f64::NAN);
        let measured = ways.into_iter().zip(times).zip(sent).map(|((way, times), sent)| Measured {
            way,
            seconds: median(times),
            across: sent.across,
            within: sent.within,
            from_gpu: sent.from_gpu,
        });
        Ok(Report {
            args,
            is_mpi: mpi.is_some(),
            ranks,
            nodes: endpoint.topology().nodes(),
            rows,
            bytes,
            copy: median(copies),
            no_gpu_because: self.gpu.as_ref().err().cloned(),
            all_to_all: mpi.is_some().then(|| AllToAllSeconds { mpi: median(bounds), ours: median(alone) }),
            measured: measured.collect(),
        })
    }

    /// The seconds in which all ranks copy their rows once.
    fn copy(&mut self) -> Result<f64> {
        let batches = &self.batches;
        self.member.slowest(|_| {
            let started = Instant::now();
            std::hint::black_box(arrow::compute::concat_batches(&batches[0].schema(), batches)?);
            Ok(started.elapsed().as_secs_f64())
        })
    }

    /// The seconds in which rows that are partitioned already get to all ranks: without what partitioning costs, as `MPI_Alltoallv` is measured.
    /// Which rank gets a row does not change that, so each gets as many.
    fn exchange_alone(&mut self, args: &ExchangeArgs, expected: u64) -> Result<f64> {
        let ranks = self.member.endpoint().topology().ranks();
        let round_bytes = (args.round as usize * 1_000_000 / ranks).max(1);
        let spec = RowsSpec { number: 0, schema: self.batches[0].schema(), is_compressed: false, round_bytes };
        let rows = arrow::compute::concat_batches(&spec.schema, &self.batches)?;
        let row_bytes = (rows.get_array_memory_size() / rows.num_rows().max(1)).max(1);
        let most = (round_bytes / row_bytes).max(1);
        let piece = |begin| rows.slice(begin, most.min(rows.num_rows() - begin));
        let pieces: Vec<_> = (0..rows.num_rows()).step_by(most).map(piece).collect();
        let rounds = pieces.chunks(ranks).map(|round| {
            // In the last round some ranks get nothing.
            let mut round = round.to_vec();
            round.resize(ranks, rows.slice(0, 0));
            Ok::<_, overspill_exchange::Error>(round)
        });
        let rounds: Vec<_> = rounds.collect();
        let mut arrived = 0;
        let seconds = self.member.slowest(|member| {
            let started = Instant::now();
            let (rows, _) = received(spec.all_to_all(&member.job(), stream::iter(rounds)))?;
            arrived = rows;
            Ok(started.elapsed().as_secs_f64())
        })?;
        all_arrived(self.member.gather(&[arrived])?.iter().map(|words| words[0]).sum(), expected)?;
        Ok(seconds)
    }

    /// Shuffles the rows from GPU memory to GPU memory, as `shuffle` does.
    fn shuffle_on_gpu(&mut self, args: &ExchangeArgs, way: Way, expected: u64) -> Result<(f64, Sent)> {
        let Self { member, batches, gpu: Ok(gpu) } = self else { return exec_err!("A rank has no GPU.") };
        let (kernels, stream) = (&gpu.kernels, &gpu.stream);
        let table = DeviceTable::upload(stream, &batches[0].schema(), batches).map_err(failed)?;
        let mut counted = (0, vec![]);
        let seconds = member.slowest(|member| {
            let path = if args.pinned { GpuPath::Pinned } else { GpuPath::Direct };
            let spec = DeviceShuffleSpec { number: 0, keys: vec![0], levels: way.levels, path };
            let started = Instant::now();
            let shuffled = block_on(spec.run(&member.job(), kernels, stream, table)).map_err(failed)?;
            let seconds = started.elapsed().as_secs_f64();
            counted = (shuffled.table.rows(), shuffled.metrics);
            Ok(seconds)
        })?;
        Ok((seconds, self.sums(counted.0, &counted.1, expected)?))
    }

    /// Shuffles the rows. Returns the seconds until all ranks have theirs, and what all have sent across nodes and within.
    fn shuffle(&mut self, args: &ExchangeArgs, way: Way, expected: u64) -> Result<(f64, Sent)> {
        let mut counted = (0, vec![]);
        let batches = &self.batches;
        let seconds = self.member.slowest(|member| {
            let spec = ShuffleSpec {
                number: 0,
                schema: batches[0].schema(),
                keys: vec![0],
                null_equal: false,
                levels: way.levels,
                is_compressed: way.is_compressed,
                round_bytes: args.round as usize * 1_000_000,
                heavy: None,
            };
            let input = stream::iter(batches.clone().into_iter().map(Ok::<_, overspill_exchange::Error>));
            let started = Instant::now();
            let shuffle = spec.start(&member.job(), input).map_err(failed)?;
            counted = received(shuffle)?;
            Ok(started.elapsed().as_secs_f64())
        })?;
        Ok((seconds, self.sums(counted.0, &counted.1, expected)?))
    }

    /// What all ranks have sent, once all rows have arrived.
    fn sums(&mut self, rows: u64, metrics: &[ExchangeMetrics], expected: u64) -> Result<Sent> {
        let mut words = vec![rows];
        for level in metrics.iter().map(|level| level.exchanged()) {
            for columns in [level.across, level.within] {
                words.extend([columns.messages, columns.bytes, columns.sent_bytes]);
            }
            words.extend([level.sent_from_gpu.direct, level.sent_from_gpu.through_cpu]);
        }
        let all = self.member.gather(&words)?;
        all_arrived(all.iter().map(|words| words[0]).sum(), expected)?;
        let mut sum = Sent::default();
        for level in all.iter().flat_map(|words| words[1..].as_chunks::<8>().0) {
            let columns = |place: usize| Columns {
                messages: level[place],
                bytes: level[place + 1],
                sent_bytes: level[place + 2],
            };
            sum.across = sum.across + columns(0);
            sum.within = sum.within + columns(3);
            sum.from_gpu = sum.from_gpu + GpuBytes { direct: level[6], through_cpu: level[7] };
        }
        Ok(sum)
    }
}

/// Sends and receives all rows of a rank. Returns how many it has received, and what was counted on each level.
fn received(shuffle: Shuffle) -> Result<(u64, Vec<ExchangeMetrics>)> {
    let rows = shuffle.output.try_fold(0, async |rows, batch: RecordBatch| Ok(rows + batch.num_rows() as u64));
    // The receiver has a thread of its own, as an operator above would.
    let (sent, rows) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| block_on(shuffle.driver));
        let rows = block_on(rows);
        (sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), rows)
    });
    sent.map_err(failed)?;
    Ok((rows.map_err(failed)?, shuffle.metrics))
}

fn all_arrived(arrived: u64, expected: u64) -> Result<()> {
    if arrived == expected {
        return Ok(());
    }
    Err(exec_datafusion_err!("{arrived} rows arrived of {expected}."))
}
