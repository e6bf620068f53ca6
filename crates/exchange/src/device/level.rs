//! An exchange of rows in GPU memory on one level.

use arrow::buffer::Buffer;
use futures::future::{try_join, try_join_all};
use futures::{StreamExt, TryFutureExt};
use overspill_kernels::{HashPartitioner, HashPartitioning, HashPartitions, Kernels, KeyColumn, MovedColumn};
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::transfer::HostPool;

use super::message::{from_gpu, to_gpu};
use super::table::{DeviceColumn, DeviceTable};
use crate::all_to_all::ExchangeMetrics;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shuffle::failure;
use crate::transport::{Job, Receiver, Sender, StreamNumber};

/// What a rank works with.
pub struct Gpu<'a> {
    pub kernels: &'a Kernels,
    pub stream: &'a Stream,
    pub pool: &'a HostPool,
}

/// The ranks of an exchange, and how rows are divided among them.
pub struct Level {
    pub number: StreamNumber,
    /// The ranks to which rows are sent, in the order of their partitions. The rank itself is among them.
    pub to: Vec<Rank>,
    /// The ranks that send rows here, in ascending order. The rank itself is among them.
    pub from: Vec<Rank>,
    pub seed: u32,
}

/// The room for the rows that a rank gets.
struct Room {
    /// How many rows come from each rank.
    counts: Vec<u64>,
    /// Where they begin.
    starts: Vec<u64>,
    columns: Vec<DeviceColumn>,
}

impl Room {
    /// All room at once, before rows arrive (section 3.2), for columns like these.
    fn new(gpu: &Gpu<'_>, counts: Vec<u64>, like: &[DeviceColumn]) -> Result<Self> {
        let starts = starts_of(&counts);
        let rows = Self::rows(&counts)?;
        let columns = like.iter().map(|column| {
            let values = DeviceBuffer::new(gpu.stream.device(), rows.saturating_mul(column.width))?;
            Ok(DeviceColumn { values, width: column.width, is_float: column.is_float })
        });
        Ok(Self { columns: columns.collect::<Result<_>>()?, counts, starts })
    }

    fn rows(counts: &[u64]) -> Result<u64> {
        let rows = counts.iter().try_fold(0_u64, |sum, rows| sum.checked_add(*rows));
        rows.ok_or_else(|| Error::Invalid("ranks send more rows than can be counted".to_owned()))
    }
}

/// Rows in partitions.
struct Partitioned {
    table: DeviceTable,
    partitions: HashPartitions,
}

impl Level {
    /// Brings the rows of all ranks to the ranks of their keys. Rows of a rank follow those of lower ones, in their order.
    pub async fn exchange(
        &self,
        job: &Job,
        gpu: &Gpu<'_>,
        table: DeviceTable,
        keys: &[usize],
        metrics: &ExchangeMetrics,
    ) -> Result<DeviceTable> {
        let here = job.endpoint().rank();
        let partitioned = self.partition(gpu, &table, keys)?;
        drop(table);
        let peers = |ranks: &[Rank]| ranks.iter().copied().filter(|rank| *rank != here).collect::<Vec<_>>();
        let mut senders: Vec<_> = peers(&self.to).iter().map(|rank| Sender::open(job, *rank, self.number)).collect();
        // A message may be larger than the window: then the next waits until it is taken.
        let mut receivers: Vec<_> =
            peers(&self.from).iter().map(|rank| Receiver::open(job, *rank, self.number, 1)).collect();
        metrics.round();
        // The job fails before the streams are gone, so that other ranks learn why.
        let failed = |error| failure(job, error);
        let widths: Vec<u64> = partitioned.table.columns().iter().map(|column| column.width).collect();
        let counts =
            self.tell_sizes(here, &partitioned, &widths, &mut senders, &mut receivers).await.map_err(failed)?;
        let mut room = Room::new(gpu, counts, partitioned.table.columns()).map_err(failed)?;
        self.keep_own(here, gpu, &partitioned, &mut room, metrics).map_err(failed)?;
        let sending = self.send(job, gpu, &partitioned, senders, metrics);
        let receiving = self.receive(here, gpu, receivers, &mut room, metrics).map_err(failed);
        try_join(sending, receiving).await?;
        DeviceTable::new(Room::rows(&room.counts)?, room.columns)
    }

    fn partition(&self, gpu: &Gpu<'_>, table: &DeviceTable, keys: &[usize]) -> Result<Partitioned> {
        let device = gpu.stream.device();
        let columns = table.columns().iter().map(|column| {
            let values = DeviceBuffer::new(device, column.values.bytes())?;
            Ok(DeviceColumn { values, width: column.width, is_float: column.is_float })
        });
        let mut columns = columns.collect::<Result<Vec<_>>>()?;
        let keys: Vec<KeyColumn<'_>> = keys.iter().map(|key| table.columns()[*key].key()).collect();
        let moved = table.columns().iter().zip(&mut columns).map(|(from, to)| MovedColumn {
            from: from.values.view(),
            to: to.values.view_mut(),
            width: from.width,
        });
        let partitions = self.to.len() as u32;
        let partitioner = HashPartitioner::new(gpu.kernels, HashPartitioning { partitions, seed: self.seed, home: 0 })?;
        let partitions =
            partitioner.run(gpu.stream, table.rows(), &keys, &mut moved.collect::<Vec<MovedColumn<'_>>>())?;
        Ok(Partitioned { table: DeviceTable::new(table.rows(), columns)?, partitions })
    }

    /// Tells each rank how many rows of which widths it gets. Returns how many come from each, of this rank how many it keeps.
    async fn tell_sizes(
        &self,
        here: Rank,
        partitioned: &Partitioned,
        widths: &[u64],
        senders: &mut [Sender],
        receivers: &mut [Receiver],
    ) -> Result<Vec<u64>> {
        let rows_to = |rank: Rank| {
            let partition = self.to.iter().position(|to| *to == rank);
            partition.map_or(0, |partition| {
                let rows = partitioned.partitions.rows(partition);
                rows.end - rows.start
            })
        };
        let others = self.to.iter().filter(|rank| **rank != here);
        let telling = others.zip(senders).map(async |(rank, sender)| {
            let words: Vec<u64> = [rows_to(*rank)].into_iter().chain(widths.iter().copied()).collect();
            sender.send(Buffer::from_vec(words)).await.map(drop)
        });
        let hearing = receivers.iter_mut().map(async |receiver| {
            let rank = receiver.from();
            let message = next(receiver).await?;
            let (words, rest) = message.as_chunks::<8>();
            let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            match words.split_first() {
                Some((rows, theirs)) if rest.is_empty() && theirs == widths => Ok(*rows),
                _ => Err(Error::Unexpected { rank, what: "columns of other widths".to_owned() }),
            }
        });
        let (_, heard) = try_join(try_join_all(telling), try_join_all(hearing)).await?;
        let mut heard = heard.into_iter();
        let count = |rank: &Rank| if *rank == here { rows_to(here) } else { heard.next().unwrap_or(0) };
        Ok(self.from.iter().map(count).collect())
    }

    fn keep_own(
        &self,
        here: Rank,
        gpu: &Gpu<'_>,
        partitioned: &Partitioned,
        room: &mut Room,
        metrics: &ExchangeMetrics,
    ) -> Result<()> {
        let places = (self.to.iter().position(|rank| *rank == here), self.from.iter().position(|rank| *rank == here));
        let (Some(partition), Some(place)) = places else { return Ok(()) };
        let rows = partitioned.partitions.rows(partition);
        metrics.kept((rows.end - rows.start) as usize);
        for (from, to) in partitioned.table.columns().iter().zip(&mut room.columns) {
            let part = rows.start * from.width..rows.end * from.width;
            to.values.copy_at(gpu.stream, room.starts[place] * from.width, &from.values, part)?;
        }
        Ok(())
    }

    /// Sends each column to all ranks, one column after the other.
    async fn send(
        &self,
        job: &Job,
        gpu: &Gpu<'_>,
        partitioned: &Partitioned,
        senders: Vec<Sender>,
        metrics: &ExchangeMetrics,
    ) -> Result<()> {
        let (here, topology) = (job.endpoint().rank(), job.endpoint().topology());
        let partitions = self.to.iter().enumerate().filter(|(_, rank)| **rank != here);
        let sending = partitions.zip(senders).map(async |((partition, rank), mut sender)| {
            let rows = partitioned.partitions.rows(partition);
            let count = rows.end - rows.start;
            for column in partitioned.table.columns().iter().filter(|_| count > 0) {
                let bytes = (count * column.width) as usize;
                let message = from_gpu(gpu.pool, gpu.stream, &column.values, rows.start * column.width, bytes)
                    .map_err(|error| failure(job, error))?;
                metrics.column(topology.node_of(*rank) == topology.node_of(here), bytes, bytes);
                sender.send(message).await?;
            }
            metrics.sent(count as usize);
            sender.end();
            Ok::<_, Error>(())
        });
        try_join_all(sending).await.map(drop)
    }

    async fn receive(
        &self,
        here: Rank,
        gpu: &Gpu<'_>,
        mut receivers: Vec<Receiver>,
        room: &mut Room,
        metrics: &ExchangeMetrics,
    ) -> Result<()> {
        let Room { counts, starts, columns } = room;
        let places: Vec<usize> = (0..self.from.len()).filter(|place| self.from[*place] != here).collect();
        for column in columns {
            // Each rank sends its columns in the same order, so that one is complete before the next begins.
            for (place, receiver) in places.iter().zip(&mut receivers).filter(|(place, _)| counts[**place] > 0) {
                let rank = receiver.from();
                let message = next(receiver).await?;
                let expected = counts[*place].saturating_mul(column.width);
                if message.len() as u64 != expected {
                    let what = format!("a column of {} bytes in place of {expected}", message.len());
                    return Err(Error::Unexpected { rank, what });
                }
                to_gpu(gpu.stream, &mut column.values, starts[*place] * column.width, &message)?;
            }
        }
        for (place, receiver) in places.into_iter().zip(&mut receivers) {
            metrics.received(counts[place] as usize);
            if receiver.next().await.transpose()?.is_some() {
                let what = "more columns than it has".to_owned();
                return Err(Error::Unexpected { rank: receiver.from(), what });
            }
        }
        Ok(())
    }
}

/// Where the rows of each rank begin.
fn starts_of(counts: &[u64]) -> Vec<u64> {
    let mut next = 0;
    let start = |count: &u64| {
        next += count;
        next - count
    };
    counts.iter().map(start).collect()
}

async fn next(receiver: &mut Receiver) -> Result<Buffer> {
    let rank = receiver.from();
    let message = receiver.next().await.transpose()?;
    message.ok_or_else(|| Error::Unexpected { rank, what: "an end before its last column".to_owned() })
}
