//! Pairs of a hash table, region by region.

use std::sync::Arc;

use arrow::buffer::ScalarBuffer;
use tracing::debug_span;

use super::{Found, Lane, PairBlock, PairFinder, ProbeRows, Wanted};
use crate::error::Result;
use crate::hash_table::{Lookups, Regions};
use crate::hybrid::build_side::BuildSide;
use crate::hybrid::payload::PackedPayload;
use crate::join_type::JoinType;
use crate::keys::KeyData;
use crate::memory::{Grant, UnitMemory};
use crate::radix::{PartitionCursor, PartitionMethod, ProbeRegions, RadixPartitioner};
use crate::spec::{JoinSpec, Side};

/// More partitions than this miss the TLB and the cache when rows are dealt out, even line by line.
pub(in crate::hybrid) const MAX_FANOUT_BITS: u32 = 11;

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
pub(super) struct RegionFinder {
    spec: Arc<JoinSpec>,
    build: Arc<BuildSide>,
    regions: Regions,
    fanout: usize,
    payload: PackedPayload,
    chunk_rows: usize,
    partitioner: RadixPartitioner<COLUMNS>,
    /// Rows that have come for which the chunk has no room.
    waiting: Option<[ScalarBuffer<u64>; COLUMNS]>,
    /// Where the joining of a chunk stands; `None` while it is collected.
    joining: Option<PartitionCursor>,
    /// The keys that are looked up together.
    keys: Vec<u64>,
    /// Which of the keys were found.
    found: Vec<u32>,
    _memory: Grant,
}

impl RegionFinder {
    /// For a build side that is larger than the regions and the size asked for, if the join puts out nothing but pairs, without a
    /// residual filter, its build keys are unique and fit a word, as do the columns of the probe side that are needed, and
    /// there is memory for a chunk.
    pub(super) fn for_join(spec: &Arc<JoinSpec>, build: &Arc<BuildSide>, memory: &Arc<UnitMemory>) -> Option<Self> {
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
            spec: Arc::clone(spec),
            build: Arc::clone(build),
            regions,
            fanout,
            payload,
            chunk_rows,
            partitioner,
            waiting: None,
            joining: None,
            keys: Vec::new(),
            found: Vec::new(),
            _memory: grant,
        })
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

    fn start_joining(&mut self) {
        self.partitioner.finish();
        self.joining = Some(PartitionCursor::new(&self.partitioner, 0));
    }
}

impl PairFinder for RegionFinder {
    /// Takes rows into the chunk, or hands them back if they cannot be packed, as a column has nulls.
    fn push(&mut self, rows: ProbeRows) -> Result<Option<ProbeRows>> {
        let words = match &rows.keys.data {
            KeyData::Word64(words)
                if !rows.is_apart && rows.keys.matchable.is_none() && self.payload.takes(&rows.batch) =>
            {
                words.clone()
            }
            _ => return Ok(Some(rows)),
        };
        // Rows of which nothing is needed are packed as anything.
        let packed = if self.payload.is_empty() { words.clone() } else { self.payload.pack(&rows.batch) };
        self.waiting = Some([words, packed]);
        if self.partitioner.fanout() == 0 {
            self.partitioner.begin(self.fanout, self.chunk_rows)?;
        }
        self.collect();
        Ok(None)
    }

    /// Joins some more rows of the chunk that is joined, and then goes on with rows that wait.
    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        let Some(cursor) = &mut self.joining else { return Ok(Found::Idle) };
        self.keys.resize(wanted.pairs, 0);
        let words = pairs.probe.packed();
        words.resize(wanted.pairs, 0);
        let mut count = 0;
        // Blocks are full: the next region follows in the same.
        let mut is_last = false;
        while !is_last && count < wanted.pairs {
            count += self.partitioner.read(cursor, [&mut self.keys[count..], &mut words[count..]]);
            if count < wanted.pairs {
                is_last = cursor.partition() + 1 == self.fanout;
                *cursor = PartitionCursor::new(&self.partitioner, (cursor.partition() + 1) % self.fanout);
            }
        }
        words.truncate(count);
        let keys = &self.keys[..count];
        let _looking = debug_span!("look up by region", rows = count).entered();
        let lookups = Lookups { first: 0, keys, matchable: None, are_few: false, filter: None };
        let table = self.build.table(&self.spec)?;
        if self.build.payload.is_some() {
            table.find_payloads(lookups, pairs.build.packed(), &mut self.found);
        } else {
            table.find_rows(lookups, pairs.build.numbers(), &mut self.found);
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
        Ok(Found::Pairs(Lane::Main))
    }

    /// Starts joining what has been collected.
    fn end(&mut self) -> Result<bool> {
        let is_there = self.partitioner.fanout() > 0 && self.partitioner.room() < self.chunk_rows;
        if is_there {
            self.start_joining();
        }
        Ok(is_there)
    }

    fn packed_rows(&self) -> Option<&PackedPayload> {
        Some(&self.payload)
    }

    fn partitions_rows(&self) -> bool {
        true
    }
}
