//! Rows that are collected for a chunk, and rows that streams leave to one another.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::buffer::ScalarBuffer;

use crate::device::{PAIR_BYTES, ProbeKeys};
use crate::table::DeviceTable;
use overspill_join::hybrid::{AggregatingStream, PackedPayload, ProbeRows};
use overspill_join::keys::Keys;
use overspill_join::memory::{Grant, HeldMemory, UnitMemory, add_offset_bytes};

/// Pairs that memory is reserved for: per row of a chunk, and at least per chunk. If rows have more matches, units are shorter.
pub(crate) const PAIRS_PER_ROW: usize = 2;
pub(crate) const FEWEST_PAIRS: usize = 1 << 16;

/// Probe rows with their keys, and the memory that pays for them and for joining them.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) keys: Vec<Keys>,
    /// The packed columns of the rows; `None` if a row cannot be packed, or none must be.
    pub(crate) words: Option<Vec<ScalarBuffer<u64>>>,
    pub(crate) rows: usize,
    /// Number of streams whose rows they are.
    pub(crate) streams: usize,
    /// For each column whose arrays address their values by 32-bit offsets, the bytes of values so far.
    offsets: Vec<usize>,
    held: HeldMemory,
    grant: Grant,
    /// The grants of the other streams.
    other_grants: Vec<Grant>,
}

/// What became of rows.
pub(crate) enum Added {
    /// They were added.
    Taken,
    /// The chunk is too large with them.
    Full(ProbeRows),
    /// There is no memory for them.
    NoMemory(ProbeRows),
}

impl Collected {
    /// No rows yet, of probe sides with `columns` columns. `packs` says whether rows are to be packed.
    pub(crate) fn new(memory: &Arc<UnitMemory>, columns: usize, packs: bool) -> Self {
        Self {
            batches: Vec::new(),
            keys: Vec::new(),
            words: packs.then(Vec::new),
            rows: 0,
            streams: 0,
            offsets: vec![0; columns],
            held: HeldMemory::default(),
            grant: memory.grant(),
            other_grants: Vec::new(),
        }
    }

    /// Adds a batch, unless there are others already and more than `most` rows with it.
    ///
    /// A packed key takes `key_bytes` bytes; 0 if its column's values are used without a copy.
    pub(crate) fn add(
        &mut self,
        probe_rows: ProbeRows,
        table: &DeviceTable,
        payload: Option<&PackedPayload>,
        key_bytes: usize,
        most: usize,
    ) -> Added {
        let ProbeRows { batch, keys, .. } = &probe_rows;
        let rows = batch.num_rows();
        let is_addressable = add_offset_bytes(batch.columns(), &mut self.offsets);
        if self.rows > 0 && (self.rows + rows > most || !is_addressable) {
            return Added::Full(probe_rows);
        }
        let is_packable = payload.is_some_and(|payload| keys.matchable.is_none() && payload.takes(batch));
        // The columns are copied once, when the chunk is complete. Keys and columns are transferred from separate memory, and
        // partitioning makes one more copy.
        let partitions = match table.chunk_rows() {
            Some(_) => {
                let paid = if self.rows > 0 { DeviceTable::partitioned_bytes(self.rows) } else { 0 };
                DeviceTable::partitioned_bytes(self.rows + rows).saturating_sub(paid)
            }
            None => 0,
        };
        let copies = ProbeKeys::bytes(rows, true) + table.staged_bytes(rows) + partitions;
        // Packed keys stay in memory until they are copied, and exist again if pairs are checked. Packed columns stay until
        // they are copied.
        let packed = rows * (2 * key_bytes + size_of::<u64>());
        // The pairs that are being handed on, and those found meanwhile.
        let pairs = |rows: usize| 2 * (rows * PAIRS_PER_ROW).max(FEWEST_PAIRS) * PAIR_BYTES as usize;
        let pairs = pairs(self.rows + rows) - if self.rows > 0 { pairs(self.rows) } else { 0 };
        let held = 2 * self.held.add(batch) + 2 * keys.hold(&mut self.held);
        if self.grant.try_grow(held + packed + copies + pairs).is_err() {
            return Added::NoMemory(probe_rows);
        }
        match (&mut self.words, payload) {
            (Some(words), Some(payload)) if is_packable => words.push(payload.pack(batch)),
            (words, _) => *words = None,
        }
        self.rows += rows;
        self.streams = 1;
        self.batches.push(probe_rows.batch);
        self.keys.push(probe_rows.keys);
        Added::Taken
    }

    /// The number of threads that may prepare them for the GPU. Streams that have left their rows need theirs no more; others
    /// prepare chunks of their own.
    pub(crate) fn threads(&self) -> usize {
        self.streams.min(self.rows / ROWS_PER_THREAD).max(1)
    }

    /// Whether all rows can match by their keys.
    pub(crate) fn are_matchable(&self) -> bool {
        self.keys.iter().all(|keys| keys.matchable.is_none())
    }

    /// The rows of both, unless they are more than `most` rows or could not be concatenated.
    fn with(mut self, other: Self, most: usize) -> Result<Self, Box<[Self; 2]>> {
        let fit = |(one, other): (&usize, &usize)| one + other <= i32::MAX as usize;
        if self.rows + other.rows > most || !self.offsets.iter().zip(&other.offsets).all(fit) {
            return Err(Box::new([self, other]));
        }
        self.batches.extend(other.batches);
        self.keys.extend(other.keys);
        self.words = self.words.zip(other.words).map(|(words, others)| [words, others].concat());
        self.streams += other.streams;
        self.rows += other.rows;
        self.offsets.iter_mut().zip(other.offsets).for_each(|(bytes, more)| *bytes += more);
        self.other_grants.extend(other.other_grants.into_iter().chain([other.grant]));
        Ok(self)
    }
}

/// Rows that are worth a thread of their own.
const ROWS_PER_THREAD: usize = 64 << 10;

/// The last rows of the streams that have ended, for as long as others of the join have not: rows that kernels aggregate, whose
/// pairs belong to no stream.
///
/// Rows joined together fetch each partition of the build side once, and have launches and waits in common. No stream waits for
/// another: whichever ends last joins the rows of all.
#[derive(Debug, Default)]
pub(crate) struct LeftRows(Mutex<Option<Collected>>);

impl LeftRows {
    /// Adds the rows that other streams have left to `rows`, to join all of them now. Together they are at most `most` rows:
    /// otherwise the others' stay where they are.
    pub(crate) fn take(&self, rows: Collected, most: usize) -> Collected {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(others) = left.take() else { return rows };
        others.with(rows, most).unwrap_or_else(|both| {
            let [others, rows] = *both;
            *left = Some(others);
            rows
        })
    }

    /// Leaves `rows`, the last rows of the stream `leaving`, to the other streams. Returns the rows that this stream must join: those
    /// of all streams if it is the last one, or those that others have left if `rows` do not fit one chunk of `most` rows with them.
    /// In the second case `leaving` stays, and the stream calls again after that join.
    pub(crate) fn leave(
        &self,
        rows: Collected,
        leaving: &mut Option<AggregatingStream>,
        most: usize,
    ) -> Option<Collected> {
        // Whether a stream is the last is decided under the lock, so that its predecessor's rows are there.
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = match left.take() {
            None => Ok(rows),
            Some(others) => others.with(rows, most),
        };
        let all = match all {
            Ok(all) => all,
            Err(both) => {
                let [others, rows] = *both;
                *left = Some(rows);
                return Some(others);
            }
        };
        match leaving.take() {
            Some(stream) if !stream.is_last() => {
                *left = Some(all);
                None
            }
            _ => Some(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use overspill_join::hybrid::{AggregatingStreams, PairAggregation};
    use overspill_join::memory::Unlimited;

    use super::*;

    /// Rows of a stream whose memory pays for them.
    fn rows(memory: &Arc<UnitMemory>, rows: usize) -> Collected {
        let mut collected = Collected::new(memory, 1, false);
        collected.rows = rows;
        collected.streams = usize::from(rows > 0);
        collected.offsets = vec![rows];
        collected.grant.grow(rows);
        collected
    }

    fn streams<const N: usize>() -> [Option<AggregatingStream>; N] {
        let all = Arc::<AggregatingStreams>::default();
        [(); N].map(|()| Some(all.add(Arc::new(PairAggregation::new(&[])))))
    }

    #[test]
    fn the_last_stream_joins_the_rows_of_all() {
        let memory = UnitMemory::new(Box::new(Unlimited));
        let (left, mut streams) = (LeftRows::default(), streams::<4>());
        assert!(left.leave(rows(&memory, 3), &mut streams[1], 10).is_none());
        assert!(left.leave(rows(&memory, 0), &mut streams[3], 10).is_none());
        assert!(left.leave(rows(&memory, 5), &mut streams[0], 10).is_none());
        assert_eq!(memory.used(), 8);
        let all = left.leave(rows(&memory, 1), &mut streams[2], 10).unwrap();
        assert_eq!((all.rows, all.streams, memory.used()), (9, 3, 9));
        assert!(streams.iter().all(Option::is_none));
        drop(all);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn more_rows_than_a_chunk_are_joined_before_the_last_stream_ends() {
        let memory = UnitMemory::new(Box::new(Unlimited));
        let (left, [mut first, mut second]) = (LeftRows::default(), streams());
        assert!(left.leave(rows(&memory, 7), &mut first, 10).is_none());
        // The stream joins the rows of the other, and its own remain.
        assert_eq!(left.leave(rows(&memory, 4), &mut second, 10).map(|rows| rows.rows), Some(7));
        assert!(second.is_some());
        assert_eq!(left.leave(rows(&memory, 0), &mut second, 10).map(|rows| rows.rows), Some(4));
        assert!(second.is_none());
    }

    #[test]
    fn rows_that_others_left_are_taken_where_memory_is_short() {
        let memory = UnitMemory::new(Box::new(Unlimited));
        let (left, [mut first, _second]) = (LeftRows::default(), streams());
        assert_eq!(left.take(rows(&memory, 2), 10).rows, 2);
        assert!(left.leave(rows(&memory, 7), &mut first, 10).is_none());
        assert_eq!(left.take(rows(&memory, 4), 10).rows, 4);
        assert_eq!(left.take(rows(&memory, 3), 10).rows, 10);
        assert_eq!(left.take(rows(&memory, 0), 10).rows, 0);
    }

    #[test]
    fn rows_that_cannot_be_concatenated_stay_apart() {
        let memory = UnitMemory::new(Box::new(Unlimited));
        let half = || {
            let mut rows = rows(&memory, 1);
            rows.offsets = vec![i32::MAX as usize / 2 + 1];
            rows
        };
        assert!(half().with(half(), 10).is_err());
        assert_eq!(half().with(rows(&memory, 2), 10).unwrap().rows, 3);
    }
}
