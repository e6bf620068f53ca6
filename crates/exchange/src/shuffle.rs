//! The shuffle of the repartitioned join: rows with equal keys come to the same rank (paper 4, algorithms 1 and 2).

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use futures::future::{BoxFuture, try_join};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, TryFutureExt, TryStreamExt, stream};
use overspill_advisor::Levels;
use overspill_join::memory::row_bytes;

use crate::all_to_all::{AllToAll, ExchangeMetrics, Incoming, Outgoing};
use crate::error::{Error, Result};
use crate::heavy_keys::{HeavyKeys, Sample, Side};
use crate::partition::{HashPartitioner, HashPartitioning};
use crate::rank::Rank;
use crate::transport::{Job, StreamNumber};

/// Seeds of the hash partitions of the two levels, after the steps of algorithm 2. Joins hash otherwise.
pub(crate) const SEEDS: [u32; 2] = [1, 8];

/// What is shuffled, and how. It must be the same on all ranks: with other levels they wait for each other.
#[derive(Debug, Clone)]
pub struct ShuffleSpec {
    /// The number of the shuffle in its job.
    pub number: u64,
    /// The type of the rows.
    pub schema: SchemaRef,
    /// The columns with the key.
    pub keys: Vec<usize>,
    /// Whether two nulls are equal. If not, rows with a null in their key find no partner anywhere, and stay where they are.
    pub null_equal: bool,
    /// The way of rows. Those that change the node on two levels move twice.
    pub levels: Levels,
    /// Whether columns are compressed between nodes.
    pub is_compressed: bool,
    /// The bytes that a rank sends in a round, if rows are about as large as the average. A rank has some six times as many in memory for
    /// each level.
    pub round_bytes: usize,
    /// What ranks find out about heavy keys, if this is a side of a join. A sample of a round is in memory meanwhile.
    pub heavy: Option<(Arc<HeavyKeys>, Side)>,
}

/// A rank's part in a shuffle.
pub struct Shuffle {
    /// Partitions and sends. Rows arrive only while it is polled, by a task of its own or with the output.
    pub driver: BoxFuture<'static, Result<()>>,
    /// The rows for this rank. Dropped early, it makes senders stop.
    pub output: BoxStream<'static, Result<RecordBatch>>,
    /// What is exchanged, on each level.
    pub metrics: Vec<ExchangeMetrics>,
}

impl ShuffleSpec {
    /// Shuffles the rows of this rank. If that fails, or the input does, the job fails on all ranks.
    ///
    /// # Errors
    /// If keys have a type that cannot be joined, or there are more than 65,534 ranks.
    pub fn start<E: Display + Send + 'static>(
        self,
        job: &Job,
        input: impl Stream<Item = Result<RecordBatch, E>> + Send + 'static,
    ) -> Result<Shuffle> {
        self.begin(job, input).map_err(|error| failure(job, error))
    }

    fn begin<E: Display + Send + 'static>(
        self,
        job: &Job,
        input: impl Stream<Item = Result<RecordBatch, E>> + Send + 'static,
    ) -> Result<Shuffle> {
        let (here, topology) = (job.endpoint().rank(), job.endpoint().topology().clone());
        let everyone: Vec<Rank> = (0..topology.ranks()).collect();
        let failing = job.clone();
        let input = input.map_err(move |error| failing.fail(&error.to_string()));
        let (driver, incoming, metrics) = match self.levels {
            Levels::One => {
                let level = self.level(job, 0, everyone.clone(), everyone, here)?;
                let metrics = vec![level.incoming.metrics().clone()];
                let heavy = self.heavy.map(|(keys, side)| (keys, side, Heavy::Samples));
                (level.sending.run(job.clone(), input, heavy).boxed(), level.incoming, metrics)
            }
            Levels::Two => {
                let to = topology.rail(here);
                let from = everyone.into_iter().filter(|rank| topology.rail(*rank).contains(&here)).collect();
                let across = self.level(job, 0, to, from, topology.node_of(here))?;
                let neighbours = topology.neighbours(here).to_vec();
                let place = neighbours.iter().position(|rank| *rank == here).unwrap_or(0);
                let within = self.level(job, 1, neighbours.clone(), neighbours, place)?;
                let metrics = [&across, &within].map(|level| level.incoming.metrics().clone()).to_vec();
                let heavy = |how| self.heavy.clone().map(|(keys, side)| (keys, side, how));
                let first = across.sending.run(job.clone(), input, heavy(Heavy::Samples));
                let second = within.sending.run(job.clone(), across.incoming.into_stream(), heavy(Heavy::Learns));
                (try_join(first, second).map_ok(|_| ()).boxed(), within.incoming, metrics)
            }
        };
        let receiving = job.clone();
        let output = incoming.into_stream().map_err(move |error| failure(&receiving, error)).boxed();
        Ok(Shuffle { driver, output, metrics })
    }

    /// What ranks must agree on, so that equal keys meet.
    fn description(&self) -> String {
        let nulls = if self.null_equal { ", nulls equal" } else { "" };
        format!("{} and the keys {:?}{nulls}", described(&self.schema), self.keys)
    }

    fn level(&self, job: &Job, number: usize, to: Vec<Rank>, from: Vec<Rank>, home: usize) -> Result<Level> {
        let partitioning = HashPartitioning {
            keys: self.keys.clone(),
            null_equal: self.null_equal,
            seed: SEEDS[number],
            partitions: to.len(),
            home,
            heavy: Arc::default(),
        };
        let partitioner = HashPartitioner::new(self.schema.clone(), partitioning)?;
        let piece_bytes = (self.round_bytes / to.len()).max(1);
        let exchange = AllToAll {
            number: self.number * SEEDS.len() as StreamNumber + number as StreamNumber,
            to,
            from,
            schema: self.schema.clone(),
            description: self.description().into(),
            piece_bytes,
            is_compressed: self.is_compressed,
        };
        let (outgoing, incoming) = exchange.open(job);
        let (round_bytes, metrics) = (self.round_bytes, incoming.metrics().clone());
        Ok(Level { sending: Sending { partitioner, outgoing, piece_bytes, round_bytes, metrics }, incoming })
    }
}

struct Level {
    sending: Sending,
    incoming: Incoming,
}

struct Sending {
    partitioner: HashPartitioner,
    outgoing: Outgoing,
    piece_bytes: usize,
    round_bytes: usize,
    metrics: ExchangeMetrics,
}

/// How a level comes to know heavy keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heavy {
    /// It counts a sample.
    Samples,
    /// From the first level.
    Learns,
}

impl Sending {
    /// Sends all rows, and says their end or why there are no more.
    async fn run(
        mut self,
        job: Job,
        input: impl Stream<Item = Result<RecordBatch>> + Send,
        heavy: Option<(Arc<HeavyKeys>, Side, Heavy)>,
    ) -> Result<()> {
        if let Err(error) = self.send_all(input, heavy).await {
            // The job fails before the streams are gone, so that ranks learn why.
            return Err(failure(&job, error));
        }
        self.outgoing.end().await;
        Ok(())
    }

    /// Counts keys of the first rows, those of a round. Returns these rows.
    async fn sample(
        &self,
        input: &mut (impl Stream<Item = Result<RecordBatch>> + Unpin),
    ) -> Result<(Vec<RecordBatch>, Sample)> {
        let (mut batches, mut sample, mut bytes) = (vec![], Sample::default(), 0);
        while bytes < self.round_bytes
            && let Some(batch) = input.next().await.transpose()?
        {
            sample.count(self.partitioner.hashes(&batch)?);
            bytes += row_bytes(&batch) * batch.num_rows();
            batches.push(batch);
        }
        Ok((batches, sample))
    }

    /// Partitions all rows and sends them, in rounds. A round ends when the rows for one rank are as many as each rank has room for, so
    /// that a key that most rows have makes rounds small and not memory large.
    async fn send_all(
        &mut self,
        input: impl Stream<Item = Result<RecordBatch>> + Send,
        heavy: Option<(Arc<HeavyKeys>, Side, Heavy)>,
    ) -> Result<()> {
        let mut input = std::pin::pin!(input);
        let mut sampled = vec![];
        match heavy {
            Some((keys, side, Heavy::Samples)) => {
                let (batches, sample) = self.sample(&mut input).await?;
                sampled = batches;
                self.partitioner.set_heavy(keys.decide(side, sample).await?);
            }
            Some((keys, side, Heavy::Learns)) => self.partitioner.set_heavy(keys.decided(side).await?),
            None => {}
        }
        let mut input = stream::iter(sampled.into_iter().map(Ok)).chain(input);
        while let Some(batch) = input.next().await.transpose()? {
            let most = (self.piece_bytes / row_bytes(&batch).max(1)).max(1);
            for start in (0..batch.num_rows()).step_by(most) {
                let rows = batch.slice(start, most.min(batch.num_rows() - start));
                self.partition(|partitioner| partitioner.push(rows))?;
                if self.partitioner.largest() >= self.piece_bytes {
                    let pieces = self.partition(HashPartitioner::take)?;
                    self.outgoing.send(pieces).await?;
                    if self.outgoing.is_unwanted() {
                        return Ok(());
                    }
                }
            }
        }
        if !self.partitioner.is_empty() {
            let pieces = self.partition(HashPartitioner::take)?;
            self.outgoing.send(pieces).await?;
        }
        Ok(())
    }

    /// Counts the time of a step of the partitioner.
    fn partition<T>(&mut self, step: impl FnOnce(&mut HashPartitioner) -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let done = step(&mut self.partitioner);
        self.metrics.partitioned(started.elapsed());
        done
    }
}

/// The columns of rows, in words.
pub(crate) fn described(schema: &Schema) -> String {
    let columns = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    format!("the columns ({})", columns.collect::<Vec<_>>().join(", "))
}

/// The failure of the job, which other ranks learn.
pub(crate) fn failure(job: &Job, error: Error) -> Error {
    match error {
        // It is the job's.
        Error::Failed { .. } => error,
        // The rank that stopped knows why, and may have told.
        Error::Abandoned(_) => job.failure().unwrap_or_else(|| job.fail(&error.to_string())),
        other => job.fail(&other.to_string()),
    }
}
