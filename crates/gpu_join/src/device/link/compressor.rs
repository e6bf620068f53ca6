//! Chooses whether a join compresses what crosses the link, and how.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use overspill_advisor::compression_gain;
use overspill_codec::{CHUNK, Cascade, Chosen, Selector, Stack};
use overspill_machine::Result;

use super::column::LinkColumn;

/// When rows cross the link compressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinkCompression {
    /// Never.
    Off,
    /// If they become smaller.
    Always,
    /// If the cost model says that they arrive sooner.
    WhereFaster {
        /// Bytes per second that the link transfers to the GPU.
        link: f64,
        /// The number of threads that compress.
        threads: usize,
    },
}

/// Chooses the layers of compression of a join's columns. The streams of the join share it.
#[derive(Debug)]
pub struct LinkCompressor {
    when: LinkCompression,
    chosen: Mutex<[Option<Plan>; COLUMNS]>,
}

/// A column, whose rows are alike in all chunks or partitions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ColumnOf {
    BuildKeys,
    BuildValues,
    ProbeKeys,
    ProbeValues,
}

const COLUMNS: usize = 4;

/// What was chosen for a column.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    /// `None` if it is not compressed.
    stack: Option<Stack>,
    /// How many times smaller the sample became.
    ratio: f64,
    /// How often a column was not compressed because of it.
    refusals: usize,
}

/// A column is sampled again when its ratio has fallen by this share (paper 4 samples each column once; partitions differ).
const FALL: f64 = 0.2;

/// A column that was not worth it is sampled again when it has come this often.
const PATIENCE: usize = 64;

/// A column is compressed if rows arrive this many times as fast.
const GAIN: f64 = 1.1;

/// Fewer rows cross a link of 12 GB/s in 22 µs, in which a GPU can do little more than launch the kernel that decompresses.
const FEWEST_ROWS: usize = 1 << 15;

/// Rows whose compression is timed, and how often.
const TIMED_ROWS: usize = 1 << 16;
const TIMES: usize = 3;

impl LinkCompressor {
    /// Compresses columns when `when` says so.
    pub fn new(when: LinkCompression) -> Self {
        Self { when, chosen: Mutex::default() }
    }

    /// Compresses a column of a chunk or partition, with `threads` threads, if it should be. Samples the first one, the one after one that
    /// became a fifth larger than its sample, and now and then one if they are not compressed. `O(n)`.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn compress(&self, of: ColumnOf, column: &mut LinkColumn, threads: usize) -> Result<()> {
        if let Some(stack) = self.stack(of, column.words_mut()?) {
            self.observe(of, column.compress(stack, threads)?);
        }
        Ok(())
    }

    /// The layers for a column with these rows; `None` if it is not compressed.
    fn stack(&self, of: ColumnOf, rows: &[u64]) -> Option<Stack> {
        let fewest = match self.when {
            LinkCompression::Off => return None,
            LinkCompression::Always => 1,
            LinkCompression::WhereFaster { .. } => FEWEST_ROWS,
        };
        if rows.len() < fewest {
            return None;
        }
        // Streams that ask meanwhile wait for the answer.
        let mut chosen = self.chosen();
        let plan = chosen[of as usize].get_or_insert_with(|| self.plan(rows));
        let stack = plan.stack;
        plan.refusals += usize::from(stack.is_none());
        // A few rows say little of others.
        if stack.is_none() && (plan.refusals > PATIENCE || rows.len() < CHUNK) {
            chosen[of as usize] = None;
        }
        stack
    }

    /// Notes how many times smaller a column became.
    fn observe(&self, of: ColumnOf, ratio: f64) {
        let plan = &mut self.chosen()[of as usize];
        if plan.is_some_and(|plan| plan.stack.is_some() && ratio < plan.ratio * (1.0 - FALL)) {
            *plan = None;
        }
    }

    /// Whether some columns may be compressed.
    pub(crate) fn is_on(&self) -> bool {
        self.when != LinkCompression::Off
    }

    fn chosen(&self) -> MutexGuard<'_, [Option<Plan>; COLUMNS]> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, rows: &[u64]) -> Plan {
        let Chosen { stack, ratio } = Selector::default().choose(&[rows]);
        let pays = match self.when {
            LinkCompression::Off => false,
            LinkCompression::Always => ratio > 1.0,
            LinkCompression::WhereFaster { link, threads } => {
                // It saves the time to measure the rate if not even the ratio is enough.
                ratio > GAIN && compression_gain(link, ratio, threads as f64 * rate(rows, stack)) > GAIN
            }
        };
        Plan { stack: pays.then_some(stack), ratio, refusals: 0 }
    }
}

/// Bytes of rows that one thread compresses per second.
fn rate(rows: &[u64], stack: Stack) -> f64 {
    let sample = &rows[..rows.len().min(TIMED_ROWS)];
    let (mut cascade, mut column) = (Cascade::new(), Vec::with_capacity(2 * size_of_val(sample)));
    let seconds = (0..TIMES).map(|_| {
        column.clear();
        let begin = Instant::now();
        // A sample is not too large for a column.
        let _ = cascade.compress(sample, stack, &mut column);
        begin.elapsed().as_secs_f64()
    });
    size_of_val(sample) as f64 / seconds.fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_compressed_where_that_is_faster_and_sampled_again_when_they_change() {
        let ascending: Vec<u64> = (0..100_000).collect();
        // A generator of numbers, so that this needs no crate.
        let random: Vec<u64> =
            (0..100_000_u64).map(|row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_pow(3)).collect();
        let stack = |when, rows: &[u64]| LinkCompressor::new(when).stack(ColumnOf::ProbeKeys, rows);
        assert_eq!(stack(LinkCompression::Off, &ascending), None);
        assert!(stack(LinkCompression::Always, &ascending).is_some_and(|stack| stack.deltas() > 0));
        assert_eq!(stack(LinkCompression::Always, &random), None);
        let slow = LinkCompression::WhereFaster { link: 1e6, threads: 1 };
        assert_eq!(stack(slow, &ascending[..1000]), None);
        // A link of 1 MB/s, and one faster than any memory.
        assert!(stack(slow, &ascending).is_some());
        assert_eq!(stack(LinkCompression::WhereFaster { link: 1e15, threads: 1 }, &ascending), None);

        let compressor = LinkCompressor::new(LinkCompression::Always);
        let first = compressor.stack(ColumnOf::ProbeKeys, &ascending);
        // What was chosen is kept, also for other rows, and for each column.
        assert_eq!(compressor.stack(ColumnOf::ProbeKeys, &random), first);
        assert_eq!(compressor.stack(ColumnOf::ProbeValues, &random), None);
        let ratio = compressor.chosen()[ColumnOf::ProbeKeys as usize].unwrap().ratio;
        compressor.observe(ColumnOf::ProbeKeys, ratio * 0.9);
        assert_eq!(compressor.stack(ColumnOf::ProbeKeys, &random), first);
        compressor.observe(ColumnOf::ProbeKeys, ratio * 0.7);
        assert_eq!(compressor.stack(ColumnOf::ProbeKeys, &random), None);
        // What was not worth it is, once the column has changed for long; a few rows never count.
        let until = (0..).find(|_| compressor.stack(ColumnOf::ProbeKeys, &ascending).is_some());
        assert_eq!(until, Some(PATIENCE));
        assert_eq!(compressor.stack(ColumnOf::BuildKeys, &random[..2]), None);
        assert_eq!(compressor.stack(ColumnOf::BuildKeys, &ascending), first);
    }
}
