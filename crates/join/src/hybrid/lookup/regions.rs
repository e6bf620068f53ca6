//! Finds pairs in a hash table, region by region.

use std::sync::Arc;

use arrow::buffer::ScalarBuffer;
use tracing::debug_span;

use crate::error::Result;
use crate::hash_table::{Lookups, Regions};
use crate::hybrid::build_side::BuildSide;
use crate::hybrid::pairs::{Found, Lane, PairBlock, PairFinder, ProbeRows, Wanted};
use crate::hybrid::payload::PackedPayload;
use crate::hybrid::plan::JoinPlan;
use crate::keys::KeyData;
use crate::memory::{Grant, UnitMemory};
use crate::radix::{PartitionCursor, PartitionMethod, ProbeRegions, RadixPartitioner};
use crate::spec::Side;

/// More partitions miss the TLB and the cache when rows are partitioned, even line by line.
pub(in crate::hybrid) const MAX_FANOUT_BITS: u32 = 11;

/// Bounds on the rows of a chunk. Within them a chunk has as many bytes as the hash table, which is read once per chunk.
const MIN_CHUNK_ROWS: usize = 1 << 18;
const MAX_CHUNK_ROWS: usize = 1 << 25;

/// A key and the packed columns of its row.
const COLUMNS: usize = 2;

/// Bytes of a key and the packed columns.
const ROW_BYTES: usize = COLUMNS * size_of::<u64>();

/// The probe phase of a radix join (paper 1, section 2.1; Balkesen et al., 2013), over a hash table laid out in memory like
/// partitions of the build side.
///
/// Rows are collected in chunks. Each row arrives with its needed columns and is partitioned by the region of the table that it
/// probes. A region, with the build columns it refers to, fits a cache. A chunk belongs to one stream: whatever the skew, no
/// stream waits for another.
#[derive(Debug)]
pub(super) struct RegionFinder {
    plan: Arc<JoinPlan>,
    build: Arc<BuildSide>,
    regions: Regions,
    fanout: usize,
    payload: PackedPayload,
    chunk_rows: usize,
    partitioner: RadixPartitioner<COLUMNS>,
    /// Rows that arrived when the chunk was full.
    waiting: Option<[ScalarBuffer<u64>; COLUMNS]>,
    /// The progress of joining a chunk; `None` while the chunk is collected.
    joining: Option<PartitionCursor>,
    /// The keys that are looked up together.
    keys: Vec<u64>,
    /// Which of the keys were found.
    found: Vec<u32>,
    _memory: Grant,
}

impl RegionFinder {
    /// Creates the finder, or returns `None` if the join does not qualify. The build side must be in memory, and larger than a
    /// region and the configured minimum. The join must emit only pairs, without a residual filter. Build keys must be unique
    /// and fit a word, as must the needed probe columns. There must be memory for a chunk.
    pub(super) fn for_join(plan: &Arc<JoinPlan>, build: &Arc<BuildSide>, memory: &Arc<UnitMemory>) -> Option<Self> {
        let ProbeRegions { region, beyond } = plan.probe_regions?;
        let bytes = build.probed_bytes();
        let bits = bytes.div_ceil(region.max(1)).next_power_of_two().ilog2().min(MAX_FANOUT_BITS);
        if bits == 0 || bytes <= beyond || build.is_spilled() {
            return None;
        }
        let regions = build.table_in_memory()?.regions(bits)?;
        let payload = PackedPayload::of(&plan.spec, Side::Probe)?;
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
            plan: Arc::clone(plan),
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

    /// Moves waiting rows into the chunk, as far as it has room, and starts joining a full chunk.
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
    /// Takes rows into the chunk. Hands them back if they cannot be packed because a column has nulls, or cannot be mixed with
    /// others.
    fn push(&mut self, rows: ProbeRows) -> Result<Option<ProbeRows>> {
        let words = match &rows.keys.data {
            KeyData::Word64(words)
                if !rows.is_apart && rows.keys.matchable.is_none() && self.payload.takes(&rows.batch) =>
            {
                words.clone()
            }
            _ => return Ok(Some(rows)),
        };
        // If no probe column is needed, any word serves as the payload.
        let packed = if self.payload.is_empty() { words.clone() } else { self.payload.pack(&rows.batch) };
        self.waiting = Some([words, packed]);
        if self.partitioner.fanout() == 0 {
            self.partitioner.begin(self.fanout, self.chunk_rows)?;
        }
        self.collect();
        Ok(None)
    }

    /// Joins some more rows of the chunk, and then continues with the waiting rows.
    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        let Some(cursor) = &mut self.joining else { return Ok(Found::Idle) };
        self.keys.resize(wanted.pairs, 0);
        let words = pairs.probe.packed();
        words.resize(wanted.pairs, 0);
        let mut count = 0;
        // Fills the block: rows of the next region follow in the same block.
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
        self.build.table(&self.plan)?.find_in_region(lookups, &mut pairs.build, &mut self.found);
        if self.found.len() < count {
            for (place, row) in self.found.iter().enumerate() {
                // Moves words to the left, over words that have been read already.
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

    /// Starts joining the collected rows.
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
