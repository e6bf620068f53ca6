//! DataFusion's settings for a memory limit, so that its operators work in a small one.
//!
//! All settings derived from the memory limit are decided here; the settings of the session and `SET` override them.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;

/// The minimum memory limit per thread. Each thread has a partition of every operator, with buffers that cannot spill. The
/// files that it reads and the memory that its allocator keeps are not counted in the limit.
const LEAST_BYTES_A_THREAD: usize = 8_000_000;

/// The number of threads, and of partitions of a query, for a memory limit: `wanted`, or as many as fit.
pub fn threads(wanted: usize, memory_limit: usize) -> usize {
    wanted.min(memory_limit / LEAST_BYTES_A_THREAD).max(1)
}

/// The memory per partition of a query below which DataFusion's defaults are too large.
const AMPLE_BYTES_A_PARTITION: usize = 128 << 20;

/// DataFusion's default row group size for Parquet files. It cannot spill a row group.
const DEFAULT_ROW_GROUP_ROWS: usize = 1 << 20;

/// The memory limit, in bytes, per row of a row group. A COPY to a partitioned folder buffers one row group per partition.
const LIMIT_PER_ROW_GROUP_ROW: usize = 2048;

/// The minimum and maximum number of runs that an aggregate merges at a time, and the memory limit, in bytes, per run.
/// Reading a file takes about 400 KB that DataFusion does not count, in each partition of each aggregate.
const LEAST_MERGED_RUNS: usize = 4;
const MOST_MERGED_RUNS: usize = 64;
const LIMIT_PER_MERGED_RUN: usize = 16 << 20;

const DEFAULT_BATCH_ROWS: usize = 8192;
const DEFAULT_SORT_RESERVATION: usize = 10 << 20;
const DEFAULT_SORT_PUSHDOWN_BUFFER: usize = 1 << 30;
const DEFAULT_METADATA_CACHE: usize = 50 << 20;

/// Sizes derived from the memory limit and the number of partitions that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Rows of a batch. An operator holds several batches that it cannot spill, so they shrink with the limit.
    pub batch_rows: usize,
    /// Memory that each sort reserves to merge its runs. Every sort of every partition reserves it at its start and does not
    /// release it, so that the default of 10 MB would exhaust a small limit.
    pub sort_reservation: usize,
    /// The maximum that a scan in sort order reads ahead.
    pub sort_pushdown_buffer: usize,
    /// Rows per row group of written Parquet files.
    pub row_group_rows: usize,
    /// The maximum number of runs that DataFusion merges at a time.
    pub merged_runs: usize,
    /// The maximum memory for file footers, which the memory limit does not include.
    pub metadata_cache: usize,
}

impl Budget {
    pub fn of(memory_limit: usize, partitions: usize) -> Self {
        let share = memory_limit / partitions.max(1);
        let scaled = |default: usize, least: usize| {
            if share >= AMPLE_BYTES_A_PARTITION {
                return default;
            }
            let scaled = (default as u128 * share as u128 / AMPLE_BYTES_A_PARTITION as u128) as usize;
            scaled.max(least)
        };
        Self {
            batch_rows: scaled(DEFAULT_BATCH_ROWS, 1024).next_power_of_two().min(DEFAULT_BATCH_ROWS),
            sort_reservation: scaled(DEFAULT_SORT_RESERVATION, 64 << 10),
            sort_pushdown_buffer: DEFAULT_SORT_PUSHDOWN_BUFFER.min(memory_limit / 8),
            row_group_rows: (memory_limit / LIMIT_PER_ROW_GROUP_ROW).clamp(1024, DEFAULT_ROW_GROUP_ROWS),
            merged_runs: (memory_limit / LIMIT_PER_MERGED_RUN).clamp(LEAST_MERGED_RUNS, MOST_MERGED_RUNS),
            metadata_cache: DEFAULT_METADATA_CACHE.min(memory_limit / 8),
        }
    }

    pub fn apply(&self, options: &mut ConfigOptions) -> Result<()> {
        options.set("datafusion.execution.batch_size", &self.batch_rows.to_string())?;
        options.set("datafusion.execution.parquet.max_row_group_size", &self.row_group_rows.to_string())?;
        options.set("datafusion.execution.sort_spill_reservation_bytes", &self.sort_reservation.to_string())?;
        options.set("datafusion.execution.sort_pushdown_buffer_capacity", &self.sort_pushdown_buffer.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ample_limit_keeps_the_defaults() {
        let budget = Budget::of(16 << 30, 8);
        assert_eq!(budget.batch_rows, DEFAULT_BATCH_ROWS);
        assert_eq!(budget.sort_reservation, DEFAULT_SORT_RESERVATION);
        assert_eq!(budget.row_group_rows, DEFAULT_ROW_GROUP_ROWS);
        assert_eq!(budget.metadata_cache, DEFAULT_METADATA_CACHE);
    }

    #[test]
    fn sorts_of_a_small_limit_reserve_a_small_part_of_it() {
        for limit in [4 << 20, 64_000_000, 300_000_000] {
            let budget = Budget::of(limit, 2);
            assert!(budget.sort_reservation * 2 * 4 <= limit, "{budget:?} of {limit}");
            assert!(budget.batch_rows.is_power_of_two());
        }
    }

    #[test]
    fn a_small_limit_has_room_for_few_threads() {
        assert_eq!([0, 8_000_000, 32_000_000, 64_000_000, 1 << 40].map(|limit| threads(64, limit)), [1, 1, 4, 8, 64]);
        assert_eq!(threads(2, 16_000_000), 2);
    }

    #[test]
    fn no_limit_is_too_small_to_compute_with() {
        let mut options = ConfigOptions::default();
        for limit in [0, 1, 1000] {
            Budget::of(limit, 64).apply(&mut options).unwrap();
            assert_eq!(options.execution.batch_size.get(), 1024);
        }
    }
}
