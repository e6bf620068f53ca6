//! A relation partitioned by the CPU.

use std::sync::Arc;

use overspill_kernels::Radix;
use overspill_machine::{Error, Result};
use tracing::debug_span;

use crate::device::{ColumnOf, Gpu, LinkColumn, LinkCompressor};
use crate::radix::{FirstPass, Tuples};
use overspill_join::error::JoinError;
use overspill_join::parallel::{in_parallel, ranges, split};
use overspill_join::radix::{PartitionCursor, PartitionMethod, RadixPartitioner};

/// Number of columns: a key and a value.
const COLUMNS: usize = 2;

/// Number of row numbers generated at a time.
const NUMBERED_TOGETHER: usize = 4096;

/// Number of tuples that are worth a thread that copies them.
const TUPLES_PER_THREAD: usize = 64 << 10;

/// Maximum number of partitions of a first pass.
const MOST_FANOUT: usize = 1 << 10;

/// Partitions in CPU memory. Each thread has written a part of every partition.
#[derive(Debug)]
pub(crate) struct HostPartitions {
    parts: Vec<RadixPartitioner<COLUMNS>>,
    tuples: Vec<u64>,
    /// How its keys and values are compressed for kernels.
    compressor: Arc<LinkCompressor>,
    columns: [ColumnOf; COLUMNS],
}

impl HostPartitions {
    /// Partitions keys with their values, or with their row numbers if there are none, with `threads` threads. `compressor`
    /// compresses each partition that kernels read. `columns` names the keys and the values to it.
    pub(crate) fn new(
        keys: &[u64],
        values: Option<&[u64]>,
        radix: Radix,
        threads: usize,
        (compressor, columns): (&Arc<LinkCompressor>, [ColumnOf; COLUMNS]),
    ) -> Result<Self> {
        let fanout = radix.fanout() as usize;
        let _partitioning = debug_span!("partition on the CPU", rows = keys.len()).entered();
        let parts = in_parallel(threads, ranges(keys.len(), threads), |range| {
            let mut part = RadixPartitioner::new(PartitionMethod::WriteCombining)?;
            part.begin(fanout, range.len())?;
            let of = |key| radix.partition(key) as usize;
            match values {
                Some(values) => part.push([&keys[range.clone()], &values[range]], of),
                None => {
                    let mut numbers = Vec::with_capacity(NUMBERED_TOGETHER);
                    for start in range.clone().step_by(NUMBERED_TOGETHER) {
                        let end = (start + NUMBERED_TOGETHER).min(range.end);
                        numbers.clear();
                        numbers.extend(start as u64..end as u64);
                        part.push([&keys[start..end], &numbers], of);
                    }
                }
            }
            part.finish();
            Ok(part)
        });
        let parts = parts.into_iter().collect::<Result<Vec<_>, JoinError>>().map_err(|error| {
            Error::OutOfHostMemory { bytes: Self::bytes_of(keys.len()) as u64, reason: error.to_string() }
        })?;
        let tuples = (0..fanout).map(|partition| parts.iter().map(|part| part.rows(partition) as u64).sum()).collect();
        Ok(Self { parts, tuples, compressor: Arc::clone(compressor), columns })
    }

    /// Copies a partition to memory that kernels read, each thread's part of it by another thread.
    fn stage(&self, gpu: &Gpu, partition: usize) -> Result<Tuples> {
        // Few tuples are copied before a thread starts.
        let threads = self.parts.len().min(self.tuples[partition] as usize / TUPLES_PER_THREAD + 1);
        let mut columns = staged(gpu, self.tuples[partition], |[keys, values]| {
            let rows = || self.parts.iter().map(|part| part.rows(partition));
            let places = split(keys, rows()).into_iter().zip(split(values, rows())).zip(&self.parts).collect();
            in_parallel(threads, places, |((keys, values), part): ((&mut [u64], &mut [u64]), _)| {
                let mut cursor = PartitionCursor::new(part, partition);
                let mut done = 0;
                while done < keys.len() {
                    match part.read(&mut cursor, [&mut keys[done..], &mut values[done..]]) {
                        0 => break,
                        read => done += read,
                    }
                }
            });
        })?;
        for (column, of) in columns.iter_mut().zip(self.columns) {
            self.compressor.compress(of, column, threads)?;
        }
        Tuples::staged(columns, self.tuples[partition])
    }

    pub(crate) fn bytes_of(rows: usize) -> usize {
        RadixPartitioner::<COLUMNS>::bytes(rows, MOST_FANOUT.min(rows / 1024 + 1))
    }
}

/// Returns the columns of `count` tuples in memory that kernels read, as written by `write`.
fn staged(gpu: &Gpu, count: u64, write: impl FnOnce([&mut [u64]; COLUMNS])) -> Result<[LinkColumn; COLUMNS]> {
    let rows = usize::try_from(count).map_err(|_| Error::Invalid(format!("{count} rows")))?;
    let column = || Ok::<_, Error>(LinkColumn::new(gpu.host.take(rows * 8)?, count));
    let [mut keys, mut values] = [column()?, column()?];
    write([keys.words_mut()?, values.words_mut()?]);
    Ok([keys, values])
}

impl FirstPass for HostPartitions {
    fn is_staged(&self) -> bool {
        true
    }

    fn fanout(&self) -> usize {
        self.tuples.len()
    }

    fn tuples(&self, partition: usize) -> u64 {
        self.tuples[partition]
    }

    fn pieces<'a>(
        &'a self,
        gpu: &'a Gpu,
        partition: usize,
        most: u64,
    ) -> Box<dyn Iterator<Item = Result<Tuples>> + 'a> {
        let tuples = self.tuples[partition];
        if tuples <= most {
            return Box::new((tuples > 0).then(|| self.stage(gpu, partition)).into_iter());
        }
        let mut left = tuples;
        let mut parts = self.parts.iter().map(move |part| (part, PartitionCursor::new(part, partition)));
        let mut reading = parts.next();
        Box::new(std::iter::from_fn(move || {
            let count = left.min(most);
            if count == 0 {
                return None;
            }
            left -= count;
            // A piece is not compressed: the GPU waits for it, and for one thread.
            let columns = staged(gpu, count, |[keys, values]| {
                let mut done = 0;
                while done < keys.len()
                    && let Some((part, cursor)) = &mut reading
                {
                    match part.read(cursor, [&mut keys[done..], &mut values[done..]]) {
                        0 => reading = parts.next(),
                        read => done += read,
                    }
                }
            });
            Some(columns.and_then(|columns| Tuples::staged(columns, count)))
        }))
    }

    fn spilled_bytes(&self) -> u64 {
        self.bytes()
    }

    fn bytes(&self) -> u64 {
        self.tuples.iter().sum::<u64>() * (COLUMNS * size_of::<u64>()) as u64
    }
}
