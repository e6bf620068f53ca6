//! An exchange of rows in GPU memory on one level.

use std::ops::Range;
use std::pin::pin;

use futures::TryFutureExt;
use futures::future::{Either, join_all, select, try_join, try_join_all};
use overspill_kernels::{HashPartitioner, HashPartitioning, HashPartitions, KeyColumn, MovedColumn};
use overspill_machine::memory::{DeviceBuffer, DevicePlace};

use super::messages::{message, settle};
use super::room::Room;
use super::sizes::{self, Sizes};
use super::table::{DeviceColumn, DeviceTable};
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
    columns: Vec<LentBuffer>,
    widths: Vec<u64>,
    are_floats: Vec<bool>,
    partitions: HashPartitions,
}

/// What a rank receives from another: its stream, and the bytes of each column.
struct Source {
    receiver: PlacedReceiver,
    rows: u64,
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
        metrics.round();
        let to: Vec<(Rank, Sizes)> = self.to.iter().copied().zip(partitioned.sizes()).collect();
        let counts = sizes::tell(job, self.number, &to, &self.from).await?;
        let counts: Vec<u64> = counts.into_iter().map(|sizes| sizes.rows).collect();
        let (room, places) = Room::new(gpu, &counts, &partitioned.widths)?;
        let mut sources = vec![];
        for ((rank, rows), places) in self.from.iter().zip(counts).zip(places) {
            if *rank == here {
                self.keep_own(here, gpu, &partitioned, places, metrics)?;
            } else if rows > 0 {
                let may_place = gpu.path == GpuPath::Direct;
                let receiver = PlacedReceiver::open(job, *rank, self.number | COLUMNS, places, may_place);
                sources.push(Source { receiver, rows });
            }
        }
        let sending = self.send(job, gpu, &partitioned, metrics);
        // The job fails before the streams are gone, so that other ranks learn why.
        let receiving = receive(gpu, &mut sources, &partitioned.widths, metrics).map_err(|error| failure(job, error));
        try_join(sending, receiving).await?;
        let columns = partitioned.widths.clone().into_iter().zip(partitioned.are_floats.clone());
        partitioned.returned(job).await?;
        let rows = room.rows();
        let columns = columns.zip(room.into_arrays()?);
        let columns = columns.map(|((width, is_float), values)| DeviceColumn { values, width, is_float });
        DeviceTable::new(rows, columns.collect())
    }

    fn partition(&self, gpu: &Gpu<'_>, table: &DeviceTable, keys: &[usize]) -> Result<Partitioned> {
        let widths: Vec<u64> = table.columns().iter().map(|column| column.width).collect();
        let room = |width: &u64| DeviceBuffer::new(gpu.stream.device(), table.rows() * width);
        let mut columns = widths.iter().map(room).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<KeyColumn<'_>> = keys.iter().map(|key| table.columns()[*key].key()).collect();
        let moved = table.columns().iter().zip(&mut columns).map(|(from, to)| MovedColumn {
            from: from.values.view(),
            to: to.view_mut(),
            width: from.width,
        });
        let partitions = self.to.len() as u32;
        let partitioner = HashPartitioner::new(gpu.kernels, HashPartitioning { partitions, seed: self.seed, home: 0 })?;
        let partitions =
            partitioner.run(gpu.stream, table.rows(), &keys, &mut moved.collect::<Vec<MovedColumn<'_>>>())?;
        let are_floats = table.columns().iter().map(|column| column.is_float).collect();
        Ok(Partitioned { columns: LentBuffer::lend(gpu.stream, columns)?, widths, are_floats, partitions })
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
        metrics.kept(partitioned.rows(partition) as usize);
        for ((column, range), mut place) in partitioned.parts(partition).zip(places) {
            place.copy(gpu.stream, column.buffer(), range)?;
        }
        Ok(())
    }

    /// Sends each column to all ranks, one column after the other.
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

/// Receives all columns of all ranks.
async fn receive(gpu: &Gpu<'_>, sources: &mut [Source], widths: &[u64], metrics: &ExchangeMetrics) -> Result<()> {
    for width in widths {
        // Each rank sends its columns in the same order, so that one is complete before the next begins.
        for Source { receiver, rows } in &mut *sources {
            let rank = receiver.from();
            let arrival = receiver.next().await?;
            let arrival =
                arrival.ok_or_else(|| Error::Unexpected { rank, what: "an end before its last column".to_owned() })?;
            settle(gpu, arrival, *rows * width, rank, metrics)?;
        }
    }
    for Source { receiver, rows } in sources {
        metrics.received(*rows as usize);
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

    /// What each partition has.
    fn sizes(&self) -> impl Iterator<Item = Sizes> {
        let partitions = 0..self.partitions.starts().len() - 1;
        partitions.map(|partition| Sizes { rows: self.rows(partition), widths: self.widths.clone() })
    }

    /// The part of each column that a partition has, in bytes.
    fn parts(&self, partition: usize) -> impl Iterator<Item = (&LentBuffer, Range<u64>)> {
        let rows = self.partitions.rows(partition);
        let range = move |width: &u64| rows.start * width..rows.end * width;
        self.columns.iter().zip(self.widths.iter().map(range))
    }

    /// Waits until other ranks have taken all rows, which frees their memory, or a rank has failed.
    async fn returned(self, job: &Job) -> Result<()> {
        let returned = pin!(join_all(self.columns.into_iter().map(LentBuffer::returned)));
        match select(returned, pin!(job.failed())).await {
            Either::Left(_) => Ok(()),
            Either::Right((error, _)) => Err(error),
        }
    }
}
