//! The shuffle of the repartitioned join in GPU memory.

use overspill_advisor::Levels;
use overspill_kernels::Kernels;
use overspill_machine::driver::Stream;
use overspill_machine::transfer::HostPool;

use super::level::{Gpu, Level};
use super::table::DeviceTable;
use crate::all_to_all::ExchangeMetrics;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shuffle::{SEEDS, failure};
use crate::transport::{Job, StreamNumber};

/// What is shuffled, and how. It must be the same on all ranks.
#[derive(Debug, Clone)]
pub struct DeviceShuffleSpec {
    /// The number of the shuffle in its job.
    pub number: u64,
    /// The columns with the key.
    pub keys: Vec<usize>,
    /// The way of rows. Those that change the node on two levels move twice.
    pub levels: Levels,
}

/// The rows of a rank after a shuffle.
#[derive(Debug)]
pub struct DeviceShuffle {
    /// The rows.
    pub table: DeviceTable,
    /// What was exchanged, on each level.
    pub metrics: Vec<ExchangeMetrics>,
}

impl DeviceShuffleSpec {
    /// Shuffles the rows of this rank, which has a GPU. A row comes to the rank that a [`ShuffleSpec`](crate::ShuffleSpec) of as many levels
    /// brings it to, so that ranks with and without a GPU agree. Rows of a rank keep their order.
    ///
    /// Takes GPU memory for the rows in partitions and, while these are sent, for the rows that are received. The thread that polls this
    /// waits for the GPU. If it fails, the job fails on all ranks.
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
        self.shuffle(job, kernels, stream, table).await.map_err(|error| failure(job, error))
    }

    async fn shuffle(
        &self,
        job: &Job,
        kernels: &Kernels,
        stream: &Stream,
        table: DeviceTable,
    ) -> Result<DeviceShuffle> {
        if self.keys.is_empty() || self.keys.iter().any(|key| *key >= table.columns().len()) {
            return Err(Error::Invalid(format!(
                "rows of {} columns have no key {:?}",
                table.columns().len(),
                self.keys
            )));
        }
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
        let gpu = Gpu { kernels, stream, pool: &pool };
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
