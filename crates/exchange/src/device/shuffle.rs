//! The shuffle of the repartitioned join in GPU memory.

use std::pin::pin;

use overspill_advisor::Levels;
use overspill_kernels::Kernels;
use overspill_machine::driver::Stream;
use overspill_machine::transfer::HostPool;

use super::Gpu;
use super::level::Level;
use super::table::DeviceTable;
use crate::all_to_all::ExchangeMetrics;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shuffle::{SEEDS, failure};
use crate::transport::{Job, StreamNumber};

/// The path of messages that begin and end in GPU memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuPath {
    /// The transport reads and writes GPU memory itself where it can. Else messages take the other path.
    #[default]
    Direct,
    /// Messages are copied to pinned memory, sent from there, received in CPU memory, and copied to the GPU.
    Pinned,
}

/// What is shuffled, and how. It must be the same on all ranks, but for the path.
#[derive(Debug, Clone)]
pub struct DeviceShuffleSpec {
    /// The number of the shuffle in its job.
    pub number: u64,
    /// The columns with the key.
    pub keys: Vec<usize>,
    /// The way of rows. Those that change the node on two levels move twice.
    pub levels: Levels,
    /// The path of the messages that this rank sends and receives.
    pub path: GpuPath,
}

/// The rows of a rank after a shuffle.
#[derive(Debug)]
pub struct DeviceShuffle {
    /// The rows.
    pub table: DeviceTable,
    /// What was exchanged, on each level.
    pub metrics: Vec<ExchangeMetrics>,
}

/// Fails the job if it is dropped. A rank that is between two streams would be waited for, as none of its streams is gone.
struct Unfinished<'a>(&'a Job);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.fail("its shuffle of GPU memory was dropped before the end");
    }
}

impl DeviceShuffleSpec {
    /// Shuffles the rows of this rank, which has a GPU. A row comes to the rank that a [`ShuffleSpec`](crate::ShuffleSpec) of as many levels
    /// brings it to whose nulls are not equal, so that ranks with and without a GPU agree: rows with a null in their key stay where they
    /// are. Rows of a rank keep their order.
    ///
    /// Takes GPU memory for the rows in partitions and, while these are sent, for the rows that are received. It ends when other ranks have
    /// taken their rows, so that the former is free. The thread that polls this waits for the GPU. If it fails, or is
    /// dropped half way, the job fails on all ranks, and messages that are on their way keep their memory until they are there.
    ///
    /// # Errors
    /// If there are no such keys, a rank fails, or GPU or pinned memory does not suffice.
    pub async fn run(
        &self,
        job: &Job,
        kernels: &Kernels,
        stream: &Stream,
        table: DeviceTable,
    ) -> Result<DeviceShuffle> {
        let shuffling = pin!(self.shuffle(job, kernels, stream, table));
        // It is dropped before the streams, so that other ranks learn why these are gone.
        let unfinished = Unfinished(job);
        let outcome = shuffling.await.map_err(|error| failure(job, error));
        std::mem::forget(unfinished);
        outcome
    }

    async fn shuffle(
        &self,
        job: &Job,
        kernels: &Kernels,
        stream: &Stream,
        table: DeviceTable,
    ) -> Result<DeviceShuffle> {
        if self.keys.is_empty() {
            return Err(Error::Invalid("a shuffle needs a key".to_owned()));
        }
        table.check_columns("key", &self.keys)?;
        let (here, topology) = (job.endpoint().rank(), job.endpoint().topology().clone());
        let everyone: Vec<Rank> = (0..topology.ranks()).collect();
        let levels = match self.levels {
            Levels::One => vec![(everyone.clone(), everyone)],
            Levels::Two => {
                let from = everyone.into_iter().filter(|rank| topology.rail(*rank).contains(&here)).collect();
                let neighbours = topology.neighbours(here).to_vec();
                vec![(topology.rail(here), from), (neighbours.clone(), neighbours)]
            }
        };
        let pool = HostPool::new(stream.device());
        let gpu = Gpu { kernels, stream, pool: &pool, path: self.path };
        let (mut table, mut metrics) = (table, vec![]);
        for (number, (to, from)) in levels.into_iter().enumerate() {
            let level = Level {
                number: self.number * SEEDS.len() as StreamNumber + number as StreamNumber,
                to,
                from,
                seed: SEEDS[number],
            };
            let counted = ExchangeMetrics::default();
            table = level.exchange(job, &gpu, table, &self.keys, &counted).await?;
            metrics.push(counted);
        }
        Ok(DeviceShuffle { table, metrics })
    }
}
