//! The repartitioned join of rows in GPU memory (paper 4, algorithms 1 and 2).

use std::time::{Duration, Instant};

use overspill_advisor::Levels;
use overspill_kernels::{Gather, Kernels, LocalJoin, MovedColumn, RowNumbers};
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;

use super::GpuPath;
use super::shuffle::{DeviceShuffle, DeviceShuffleSpec};
use super::table::{DeviceColumn, DeviceTable, KeyBits};
use crate::all_to_all::ExchangeMetrics;
use crate::error::{Error, Result};
use crate::shuffle::failure;
use crate::transport::Job;

/// A side of a join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceJoinSide {
    /// The columns with the key. Those of both sides have the same types, in the same order.
    pub keys: Vec<usize>,
    /// The columns of the result.
    pub output: Vec<usize>,
}

/// What is joined, and how rows meet. It must be the same on all ranks, but for the path.
#[derive(Debug, Clone)]
pub struct DeviceJoinSpec {
    /// The number of the join in its job, whose shuffles are those of twice this number and the next.
    pub number: u64,
    /// The side of the hash table, best the one with fewer rows.
    pub build: DeviceJoinSide,
    /// The other side.
    pub probe: DeviceJoinSide,
    /// The way of rows.
    pub levels: Levels,
    /// The path of the messages that this rank sends and receives.
    pub path: GpuPath,
}

/// The pairs that a rank has found.
#[derive(Debug)]
pub struct DeviceJoin {
    /// The columns of the build side, and behind them those of the probe side.
    pub table: DeviceTable,
    /// What was exchanged for both sides, on each level.
    pub metrics: Vec<ExchangeMetrics>,
    /// Until both sides were shuffled.
    pub shuffle_time: Duration,
    /// Until the hash table was built.
    pub build_time: Duration,
    /// Until the pairs were there, with their columns.
    pub probe_time: Duration,
}

impl DeviceJoinSpec {
    /// Runs an inner join over the rows of all ranks. Each rank must have a GPU, and a null key has no partner. The ranks shuffle the build side,
    /// then the probe side, and then each rank joins the rows it has received. The pairs of a rank are in the order of the probe rows that it has.
    ///
    /// Takes GPU memory for what a [`DeviceShuffleSpec`] takes beside the other side, then for both sides, 16 bytes for each build row, 4 for each
    /// probe row and 8 for each pair, and for the columns of the pairs. The thread that polls this waits for the GPU.
    ///
    /// # Errors
    /// As [`DeviceShuffleSpec::run`], or if a side of a rank has more than 2^32 - 2 rows, columns are missing, or the types of the keys differ.
    pub async fn run(
        &self,
        job: &Job,
        kernels: &Kernels,
        stream: &Stream,
        build: DeviceTable,
        probe: DeviceTable,
    ) -> Result<DeviceJoin> {
        let began = Instant::now();
        let shuffle = |side: &DeviceJoinSide, place: u64| DeviceShuffleSpec {
            number: 2 * self.number + place,
            keys: side.keys.clone(),
            levels: self.levels,
            path: self.path,
        };
        let build = shuffle(&self.build, 0).run(job, kernels, stream, build).await?;
        let probe = shuffle(&self.probe, 1).run(job, kernels, stream, probe).await?;
        let shuffle_time = began.elapsed();
        self.join(kernels, stream, build, probe, shuffle_time).map_err(|error| failure(job, error))
    }

    /// Joins what is on this rank (section 3.3).
    fn join(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        build: DeviceShuffle,
        probe: DeviceShuffle,
        shuffle_time: Duration,
    ) -> Result<DeviceJoin> {
        let (metrics, build, probe) = ([build.metrics, probe.metrics].concat(), build.table, probe.table);
        build.check_columns("column", &self.build.output)?;
        probe.check_columns("column", &self.probe.output)?;
        let began = Instant::now();
        let local = LocalJoin::new(kernels)?;
        let bits = [(&build, &self.build), (&probe, &self.probe)]
            .map(|(table, side)| KeyBits::new(kernels, stream, table, &side.keys));
        let [build_bits, probe_bits] = bits;
        let (build_bits, probe_bits) = (build_bits?, probe_bits?);
        let table = local.build(stream, build.rows(), &build_bits.keys(&build))?;
        let build_time = began.elapsed();
        let began = Instant::now();
        let pairs = local.probe(stream, &table, probe.rows(), &probe_bits.keys(&probe))?;
        drop(table);
        let mut columns = gathered(kernels, stream, &build, &self.build.output, &pairs.build)?;
        columns.extend(gathered(kernels, stream, &probe, &self.probe.output, &pairs.probe)?);
        let table = DeviceTable::new(pairs.probe.count(), columns)?;
        Ok(DeviceJoin { table, metrics, shuffle_time, build_time, probe_time: began.elapsed() })
    }
}

/// Columns of the rows with these numbers.
fn gathered(
    kernels: &Kernels,
    stream: &Stream,
    table: &DeviceTable,
    columns: &[usize],
    numbers: &RowNumbers,
) -> Result<Vec<DeviceColumn>> {
    let room = |width: u64| {
        let bytes = numbers.count().checked_mul(width);
        let bytes = bytes.ok_or_else(|| Error::Invalid("a join of more pairs than memory can have".to_owned()))?;
        Ok::<_, Error>(DeviceBuffer::new(stream.device(), bytes)?)
    };
    let columns: Vec<&DeviceColumn> = columns.iter().map(|column| &table.columns()[*column]).collect();
    let mut made = vec![];
    for column in &columns {
        let validity = column.validity.as_ref().map(|_| room(1)).transpose()?;
        made.push(DeviceColumn {
            values: room(column.width)?,
            width: column.width,
            is_float: column.is_float,
            validity,
        });
    }
    let moved = columns.iter().zip(&mut made).flat_map(|(from, to)| {
        let values = MovedColumn { from: from.values.view(), to: to.values.view_mut(), width: from.width };
        let validity = from.validity.as_ref().zip(to.validity.as_mut());
        let validity = validity.map(|(from, to)| MovedColumn { from: from.view(), to: to.view_mut(), width: 1 });
        std::iter::once(values).chain(validity)
    });
    Gather::new(kernels)?.run(stream, numbers, &mut moved.collect::<Vec<_>>())?;
    Ok(made)
}
