//! Probing region by region of the hash table.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::ScalarBuffer;
use tracing::debug_span;

use super::build_side::BuildSide;
use super::output::{Pairs, SideRows};
use super::payload::PackedPayload;
use super::probe::{Partners, Step};
use crate::error::Result;
use crate::hash_table::{Lookups, Regions};
use crate::join_type::JoinType;
use crate::keys::{KeyData, Keys};
use crate::memory::{Grant, LentVec, SideSizes, UnitMemory};
use crate::radix::{PartitionCursor, PartitionMethod, ProbeRegions, RadixPartitioner};
use crate::spec::{JoinSpec, Side};

/// More partitions than this miss the TLB and the cache when rows are dealt out, even line by line.
pub(super) const MAX_FANOUT_BITS: u32 = 11;

/// A chunk has as many bytes as the hash table, which is read once for each chunk; but not fewer rows than this, and not
/// more.
const MIN_CHUNK_ROWS: usize = 1 << 18;
const MAX_CHUNK_ROWS: usize = 1 << 25;

/// A key and the packed columns of its row.
const COLUMNS: usize = 2;

/// What they take.
const ROW_BYTES: usize = COLUMNS * size_of::<u64>();

/// The probe phase of a radix join (paper 1, section 2.1; Balkesen et al., 2013), over a hash table that lies in memory as
/// partitions of the build side would.
///
/// Rows are collected in chunks, partitioned as they come, with the columns that are needed, by the region of the table that they
/// look into; a region, with what it takes, fits a cache. A chunk belongs to one stream: whatever the skew, no stream
/// waits for another.
#[derive(Debug)]
pub struct RadixProbe {
    regions: Regions,
    fanout: usize,
    payload: PackedPayload,
    chunk_rows: usize,
    partitioner: RadixPartitioner<COLUMNS>,
    /// Rows that have come for which the chunk has no room.
    waiting: Option<[ScalarBuffer<u64>; COLUMNS]>,
    /// Where the joining of a chunk stands; `None` while it is collected.
    joining: Option<PartitionCursor>,
    /// The keys that are looked up together, and the packed columns of their rows.
    keys: Vec<u64>,
    words: LentVec<u64>,
    partners: Partners,
    /// Pairs that have been found and wait for those before them, as partners and packed columns.
    found_before: Option<(Partners, Vec<u64>)>,
    /// Which of the keys were found.
    found: Vec<u32>,
    _memory: Grant,
}

impl RadixProbe {
    /// For a build side that is larger than the regions and the size asked for, if the join puts out nothing but pairs, without a
    /// residual filter, its build keys are unique and fit a word, as do the columns of the probe side that are needed, and
    /// there is memory for a chunk.
    pub fn for_join(spec: &JoinSpec, build: &BuildSide, memory: &Arc<UnitMemory>) -> Option<Self> {
        let ProbeRegions { region, beyond } = spec.probe_regions?;
        let bytes = build.probed_bytes();
        let bits = bytes.div_ceil(region.max(1)).next_power_of_two().ilog2().min(MAX_FANOUT_BITS);
        if bits == 0
            || bytes <= beyond
            || build.is_spilled()
            || spec.join_type != JoinType::Inner
            || spec.filter.is_some()
        {
            return None;
        }
        let regions = build.table_in_memory()?.regions(bits)?;
        let payload = PackedPayload::of(spec, Side::Probe)?;
        let fanout = 1 << bits;
        let mut chunk_rows = (bytes / ROW_BYTES).clamp(MIN_CHUNK_ROWS, MAX_CHUNK_ROWS);
        let mut grant = memory.grant();
        while grant.try_grow(RadixPartitioner::<COLUMNS>::bytes(chunk_rows, fanout)).is_err() {
            chunk_rows /= 2;
            if chunk_rows < MIN_CHUNK_ROWS {
                return None;
            }
        }
        let partitioner = RadixPartitioner::new(PartitionMethod::WriteCombining).ok()?;
        Some(Self {
            regions,
            fanout,
            payload,
            chunk_rows,
            partitioner,
            waiting: None,
            joining: None,
            keys: Vec::new(),
            words: LentVec::default(),
            partners: Partners::none_of(build),
            found_before: None,
            found: Vec::new(),
            _memory: grant,
        })
    }

    /// Takes rows into the chunk; false if they cannot be packed, as a column has nulls.
    pub(super) fn push(&mut self, batch: &RecordBatch, keys: &Keys) -> Result<bool> {
        let KeyData::Word64(words) = &keys.data else { return Ok(false) };
        if keys.matchable.is_some() || !self.payload.takes(batch) {
            return Ok(false);
        }
        // Rows of which nothing is needed are packed as anything.
        let packed = if self.payload.is_empty() { words.clone() } else { self.payload.pack(batch) };
        self.waiting = Some([words.clone(), packed]);
        if self.partitioner.fanout() == 0 {
            self.partitioner.begin(self.fanout, self.chunk_rows)?;
        }
        self.collect();
        Ok(true)
    }

    /// Takes what is waiting into the chunk, as far as there is room, and starts joining a chunk that is full.
    fn collect(&mut self) {
        let Some([keys, words]) = self.waiting.take() else { return };
        let count = keys.len().min(self.partitioner.room());
        let _partitioning = debug_span!("partition by region", rows = count).entered();
        self.regions.partition([&keys[..count], &words[..count]], &mut self.partitioner);
        if count < keys.len() {
            self.waiting = Some([keys, words].map(|column| column.slice(count, column.len() - count)));
            self.start_joining();
        }
    }

    /// Starts joining what has been collected, when no rows follow; whether there is anything.
    pub(super) fn end(&mut self) -> bool {
        let is_there = self.partitioner.fanout() > 0 && self.partitioner.room() < self.chunk_rows;
        if is_there {
            self.start_joining();
        }
        is_there
    }

    fn start_joining(&mut self) {
        self.partitioner.finish();
        self.joining = Some(PartitionCursor::new(&self.partitioner, 0));
    }

    /// Joins some more rows of the chunk that is joined, and then goes on with rows that wait.
    pub(super) fn step(&mut self, spec: &JoinSpec, build: &BuildSide) -> Result<Step> {
        if let Some((partners, words)) = self.found_before.take() {
            self.partners = partners;
            *self.words.refill() = words;
            return self.output(spec, build).map(Step::Output);
        }
        let Some(cursor) = &mut self.joining else { return Ok(Step::Finished) };
        self.keys.resize(spec.batch_size, 0);
        let words = self.words.refill();
        words.resize(spec.batch_size, 0);
        let mut count = 0;
        // Batches are full: the next region follows in the same.
        let mut is_last = false;
        while !is_last && count < spec.batch_size {
            count += self.partitioner.read(cursor, [&mut self.keys[count..], &mut words[count..]]);
            if count < spec.batch_size {
                is_last = cursor.partition() + 1 == self.fanout;
                *cursor = PartitionCursor::new(&self.partitioner, (cursor.partition() + 1) % self.fanout);
            }
        }
        words.truncate(count);
        let keys = &self.keys[..count];
        let _looking = debug_span!("look up by region", rows = count).entered();
        let lookups = Lookups { first: 0, keys, matchable: None, are_few: false, filter: None };
        match &mut self.partners {
            Partners::Rows(rows) => build.table(spec)?.find_rows(lookups, rows.refill(), &mut self.found),
            Partners::Payloads(words) => build.table(spec)?.find_payloads(lookups, words.refill(), &mut self.found),
        }
        if self.found.len() < count {
            for (place, row) in self.found.iter().enumerate() {
                // To the left, where words have been taken already.
                words[place] = words[*row as usize];
            }
            words.truncate(self.found.len());
        }
        if is_last {
            self.joining = None;
            self.partitioner.begin(self.fanout, self.chunk_rows)?;
            self.collect();
        }
        if self.found.is_empty() {
            return Ok(Step::Working);
        }
        self.output(spec, build).map(Step::Output)
    }

    /// Puts pairs out: those that fit a batch, while the others wait.
    fn output(&mut self, spec: &JoinSpec, build: &BuildSide) -> Result<RecordBatch> {
        let fitting = self.partners.fitting(build, SideSizes::Fixed(size_of::<u64>()));
        if fitting < self.words.len() {
            self.found_before = Some((self.partners.split_off(fitting), self.words.split_off(fitting)));
        }
        let probe = SideRows::Packed(&self.payload, self.words.lend());
        Pairs { build: self.partners.take(build), probe, mark: None }.output(spec)
    }
}
