//! Measures the processor time of a probe row without waits for memory.

use std::time::Instant;

use arrow::buffer::ScalarBuffer;
use overspill_machine::measure::RowWork;

use super::lookup::MAX_FANOUT_BITS;
use super::pairs::PairRows;
use crate::error::Result;
use crate::hash_table::{ChunkKeys, JoinTable, Lookups, PayloadRows, TableChoice};
use crate::parallel::in_parallel;
use crate::radix::{PartitionCursor, PartitionMethod, RadixPartitioner, region_of_this_machine};

/// Rows that each thread partitions and looks up: more than a core's own caches hold.
const ROWS: usize = 1 << 21;

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;

/// Measurement runs, the fastest counts: other programs only ever make a run slower.
const RUNS: usize = 5;

/// Unique keys that are far apart, in a table that fits a core's cache. They use linear probing, so keys are hashed.
struct Build(ScalarBuffer<u64>);

impl PayloadRows for Build {
    fn chunks(&self) -> usize {
        1
    }

    fn rows(&self, _: usize) -> usize {
        self.0.len()
    }

    fn keys(&self, _: usize) -> ChunkKeys {
        ChunkKeys { keys: self.0.clone(), matchable: None }
    }

    fn payloads(&self, _: usize) -> ScalarBuffer<u64> {
        self.0.clone()
    }

    fn is_narrow(&self) -> bool {
        false
    }
}

/// Measures the seconds that a probe row takes on the slowest of `threads` concurrent threads. Each thread partitions rows like
/// a radix join, with the maximum fan-out, and looks them up in a part of a table that fits a core's cache. Takes some tenths
/// of a second.
///
/// # Errors
/// Fails if the system does not provide the memory.
pub fn measure_row_work(threads: usize) -> Result<RowWork> {
    let works = in_parallel(threads, vec![(); threads.max(1)], |()| work_of_one());
    let slowest = |all: RowWork, one: RowWork| RowWork {
        partition: all.partition.max(one.partition),
        lookup: all.lookup.max(one.lookup),
    };
    works.into_iter().try_fold(RowWork { partition: 0.0, lookup: 0.0 }, |all, one| Ok(slowest(all, one?)))
}

fn work_of_one() -> Result<RowWork> {
    let key = |number: usize| (number as u64).wrapping_mul(0xA24B_AED4_963E_E407);
    // Keys of one partition of the table; partition sizes must not differ by much.
    let count = (region_of_this_machine() / JoinTable::UNIQUE_ROW_BYTES).clamp(1, 32 << 10);
    let build = Build((0..count).map(key).collect());
    let table = JoinTable::of_payloads(&build, count, TableChoice::LinearProbing, 1)?;
    let regions = table.as_ref().and_then(|table| table.regions(MAX_FANOUT_BITS));
    let (Some(table), Some(regions)) = (table, regions) else { unreachable!("keys that are there once each") };
    // In an order that no prefetcher predicts.
    let keys: Vec<u64> =
        (0..ROWS).map(|row| key((row as u64).wrapping_mul(0x9E37_79B1) as u32 as usize % count)).collect();
    let mut partitioner = RadixPartitioner::<2>::new(PartitionMethod::WriteCombining)?;
    let (mut columns, mut found) = ([vec![0; BATCH_ROWS], vec![0; BATCH_ROWS]], vec![]);
    let mut payloads = PairRows::default();
    let mut best = RowWork { partition: f64::INFINITY, lookup: f64::INFINITY };
    for _ in 0..RUNS {
        partitioner.begin(1 << MAX_FANOUT_BITS, ROWS)?;
        let begin = Instant::now();
        for keys in keys.chunks(BATCH_ROWS) {
            regions.partition([keys, keys], &mut partitioner);
        }
        partitioner.finish();
        let partitioned = begin.elapsed().as_secs_f64();
        for partition in 0..1 << MAX_FANOUT_BITS {
            let mut cursor = PartitionCursor::new(&partitioner, partition);
            let [keys, words] = &mut columns;
            loop {
                let count = partitioner.read(&mut cursor, [keys, words]);
                let lookups = Lookups { first: 0, keys: &keys[..count], matchable: None, are_few: false, filter: None };
                table.find_in_region(lookups, &mut payloads, &mut found);
                if count < BATCH_ROWS {
                    break;
                }
            }
        }
        let both = begin.elapsed().as_secs_f64();
        let of_a_row = |seconds: f64| seconds / ROWS as f64;
        best.partition = best.partition.min(of_a_row(partitioned));
        best.lookup = best.lookup.min(of_a_row(both - partitioned));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_some_nanoseconds() {
        let work = measure_row_work(2).unwrap();
        for seconds in [work.partition, work.lookup] {
            assert!((1e-11..1e-5).contains(&seconds), "{work:?}");
        }
    }
}
