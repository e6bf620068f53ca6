//! An exchange of rows in GPU memory on one level.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::pin;
use std::time::Instant;

use futures::TryFutureExt;
use futures::future::{Either, join_all, select, try_join, try_join_all};
use overspill_kernels::{HashPartitioner, HashPartitioning, HashPartitions, MovedColumn};
use overspill_machine::memory::{DeviceBuffer, DevicePlace};

use super::messages::{message, settle};
use super::room::Room;
use super::sizes::{self, ColumnSize, Sizes};
use super::table::{DeviceColumn, DeviceTable, KeyBits};
use super::{Gpu, GpuPath};
use crate::all_to_all::ExchangeMetrics;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shuffle::failure;
use crate::transport::{Job, LentBuffer, PlacedReceiver, Sender, StreamNumber};

/// Sets streams of columns apart from those of sizes.
const COLUMNS: StreamNumber = 1 << 62;

/// The ranks of an exchange, and how rows are divided among them.
pub struct Level {
    pub number: StreamNumber,
    /// The ranks to which rows are sent, in the order of their partitions. The rank itself is among them.
    pub to: Vec<Rank>,
    /// The ranks that send rows here, in ascending order. The rank itself is among them.
    pub from: Vec<Rank>,
    pub seed: u32,
}

/// Rows in partitions.
struct Partitioned {
    /// The values of each column, and its validity behind them if it has one.
    arrays: Vec<LentBuffer>,
    columns: Vec<ColumnSize>,
    are_floats: Vec<bool>,
    partitions: HashPartitions,
}

/// What a rank receives from another.
struct Source {
    receiver: PlacedReceiver,
    sizes: Sizes,
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
        let began = Instant::now();
        let partitioned = self.partition(here, gpu, &table, keys)?;
        metrics.partitioned(began.elapsed());
        drop(table);
        metrics.round();
        let to: Vec<(Rank, u64)> = self.to.iter().copied().zip(partitioned.all_rows()).collect();
        let sizes = sizes::tell(job, self.number, &partitioned.columns, &to, &self.from).await?;
        let (room, places) = Room::new(gpu, &sizes)?;
        let mut sources = vec![];
        for ((rank, sizes), places) in self.from.iter().zip(sizes).zip(places) {
            if *rank == here {
                self.keep_own(here, gpu, &partitioned, places, metrics)?;
            } else if sizes.rows > 0 {
                let may_place = gpu.path == GpuPath::Direct;
                let receiver = PlacedReceiver::open(job, *rank, self.number | COLUMNS, places, may_place);
                sources.push(Source { receiver, sizes });
            }
        }
        let sending = self.send(job, gpu, &partitioned, metrics);
        // The job fails before the streams are gone, so that other ranks learn why.
        let receiving = receive(gpu, &mut sources, metrics).map_err(|error| failure(job, error));
        try_join(sending, receiving).await?;
        let types: Vec<(ColumnSize, bool)> =
            partitioned.columns.iter().copied().zip(partitioned.are_floats.iter().copied()).collect();
        partitioned.returned(job).await?;
        let rows = room.rows();
        let columns = types.into_iter().zip(room.into_columns()?);
        let columns = columns.map(|((size, is_float), (values, validity))| DeviceColumn {
            values,
            width: size.width,
            is_float,
            validity,
        });
        DeviceTable::new(rows, columns.collect())
    }

    fn partition(&self, here: Rank, gpu: &Gpu<'_>, table: &DeviceTable, keys: &[usize]) -> Result<Partitioned> {
        let from: Vec<(&DeviceBuffer, u64)> = table.columns().iter().flat_map(DeviceColumn::arrays).collect();
        let room = |(_, width): &(&DeviceBuffer, u64)| DeviceBuffer::new(gpu.stream.device(), table.rows() * width);
        let mut arrays = from.iter().map(room).collect::<Result<Vec<_>, _>>()?;
        let moved = from.iter().zip(&mut arrays).map(|((from, width), to)| MovedColumn {
            from: from.view(),
            to: to.view_mut(),
            width: *width,
        });
        let bits = KeyBits::new(gpu.kernels, gpu.stream, table, keys)?;
        let partitioning = HashPartitioning {
            partitions: self.to.len() as u32,
            seed: self.seed,
            // Rows with a null in their key have no partner anywhere, and stay where they are.
            home: self.to.iter().position(|rank| *rank == here).unwrap_or(0) as u32,
        };
        let partitioner = HashPartitioner::new(gpu.kernels, partitioning)?;
        let moved = &mut moved.collect::<Vec<MovedColumn<'_>>>();
        let partitions = partitioner.run(gpu.stream, table.rows(), &bits.keys(table), moved)?;
        let columns = table
            .columns()
            .iter()
            .map(|column| ColumnSize { width: column.width, has_validity: column.validity.is_some() });
        let are_floats = table.columns().iter().map(|column| column.is_float).collect();
        let arrays = LentBuffer::lend(gpu.stream, arrays)?;
        Ok(Partitioned { arrays, columns: columns.collect(), are_floats, partitions })
    }

    fn keep_own(
        &self,
        here: Rank,
        gpu: &Gpu<'_>,
        partitioned: &Partitioned,
        places: Vec<DevicePlace>,
        metrics: &ExchangeMetrics,
    ) -> Result<()> {
        let Some(partition) = self.to.iter().position(|rank| *rank == here) else { return Ok(()) };
        let rows = partitioned.rows(partition);
        metrics.kept(rows as usize);
        if rows == 0 {
            return Ok(());
        }
        for ((column, range), mut place) in partitioned.parts(partition).zip(places) {
            place.copy(gpu.stream, column.buffer(), range)?;
        }
        Ok(())
    }

    /// Sends each array to all ranks, one array after the other.
    async fn send(&self, job: &Job, gpu: &Gpu<'_>, partitioned: &Partitioned, metrics: &ExchangeMetrics) -> Result<()> {
        let (here, topology) = (job.endpoint().rank(), job.endpoint().topology());
        let others = self.to.iter().enumerate().filter(|(_, rank)| **rank != here);
        let sending =
            others.filter(|(partition, _)| partitioned.rows(*partition) > 0).map(async |(partition, rank)| {
                let mut sender = Sender::open(job, *rank, self.number | COLUMNS);
                for (column, range) in partitioned.parts(partition) {
                    let bytes = (range.end - range.start) as usize;
                    let message =
                        message(gpu, job.endpoint(), column, range, metrics).map_err(|error| failure(job, error))?;
                    metrics.column(topology.node_of(*rank) == topology.node_of(here), bytes, bytes);
                    sender.send(message).await?;
                }
                metrics.sent(partitioned.rows(partition) as usize);
                sender.end();
                Ok::<_, Error>(())
            });
        try_join_all(sending).await.map(drop)
    }
}

/// Receives all arrays of all ranks.
async fn receive(gpu: &Gpu<'_>, sources: &mut [Source], metrics: &ExchangeMetrics) -> Result<()> {
    let mut expected: Vec<_> = sources.iter().map(|source| source.sizes.arrays().collect::<VecDeque<_>>()).collect();
    // Each rank sends its arrays in the same order, so that a column is complete before the next begins, but for the validity that some have.
    while expected.iter().any(|arrays| !arrays.is_empty()) {
        for (Source { receiver, .. }, arrays) in sources.iter_mut().zip(&mut expected) {
            let Some(bytes) = arrays.pop_front() else { continue };
            let rank = receiver.from();
            let arrival = receiver.next().await?;
            let arrival =
                arrival.ok_or_else(|| Error::Unexpected { rank, what: "an end before its last column".to_owned() })?;
            settle(gpu, arrival, bytes, rank, metrics)?;
        }
    }
    for Source { receiver, sizes } in sources {
        metrics.received(sizes.rows as usize);
        if receiver.next().await?.is_some() {
            let what = "more columns than it has".to_owned();
            return Err(Error::Unexpected { rank: receiver.from(), what });
        }
    }
    Ok(())
}

impl Partitioned {
    fn rows(&self, partition: usize) -> u64 {
        let rows = self.partitions.rows(partition);
        rows.end - rows.start
    }

    /// The rows of each partition.
    fn all_rows(&self) -> impl Iterator<Item = u64> {
        (0..self.partitions.starts().len() - 1).map(|partition| self.rows(partition))
    }

    /// The part of each array that a partition has, in bytes.
    fn parts(&self, partition: usize) -> impl Iterator<Item = (&LentBuffer, Range<u64>)> {
        let rows = self.partitions.rows(partition);
        let widths = self.columns.iter().flat_map(|column| [Some(column.width), column.has_validity.then_some(1)]);
        self.arrays.iter().zip(widths.flatten().map(move |width| rows.start * width..rows.end * width))
    }

    /// Waits until other ranks have taken all rows, which frees their memory, or a rank has failed.
    async fn returned(self, job: &Job) -> Result<()> {
        let returned = pin!(join_all(self.arrays.into_iter().map(LentBuffer::returned)));
        match select(returned, pin!(job.failed())).await {
            Either::Left(_) => Ok(()),
            Either::Right((error, _)) => Err(error),
        }
    }
}
