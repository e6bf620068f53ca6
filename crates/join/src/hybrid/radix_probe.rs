//! Probing region by region of the hash table.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::ScalarBuffer;

use super::build_side::BuildSide;
use super::output::{Pairs, SideRows};
use super::payload::PackedPayload;
use super::probe::{Partners, Step};
use crate::error::Result;
use crate::hash_table::{Lookups, Regions};
use crate::join_type::JoinType;
use crate::keys::{KeyData, Keys};
use crate::memory::{Grant, LentVec, UnitMemory};
use crate::radix::{PartitionMethod, ProbeRegions, RadixPartitioner};
use crate::spec::{JoinSpec, Side};

/// More partitions than this miss the TLB and the cache when rows are dealt out, even line by line.
const MAX_FANOUT_BITS: u32 = 11;

/// A chunk has as many bytes as the hash table, which is read once for each chunk; but not fewer rows than this, and not
/// more.
const MIN_CHUNK_ROWS: usize = 1 << 18;
const MAX_CHUNK_ROWS: usize = 1 << 25;

/// A key and the packed columns of its row.
const COLUMNS: usize = 2;

/// What a row of a chunk takes while it is collected.
const ROW_BYTES: usize = COLUMNS * size_of::<u64>();

/// The probe phase of a radix join (paper 1, section 2.1; Balkesen et al., 2013), over a hash table that lies in memory as
/// partitions of the build side would.
///
/// Rows are collected in chunks and partitioned, with the columns that are needed, by the region of the table that they
/// look into; a region, with what it takes, fits a cache. A chunk belongs to one stream: whatever the skew, no stream
/// waits for another.
#[derive(Debug)]
pub struct RadixProbe {
    regions: Regions,
    fanout: usize,
    payload: PackedPayload,
    max_rows: usize,
    rows: usize,
    /// Keys and packed columns of the chunk that is collected.
    collected: Vec<[ScalarBuffer<u64>; COLUMNS]>,
    partitioner: RadixPartitioner<COLUMNS>,
    /// The partition and the row of it where the joining of a chunk stands.
    joining: Option<(usize, usize)>,
    partners: Partners,
    probe_rows: Vec<u32>,
    /// The packed columns of the probe rows found last.
    found: LentVec<u64>,
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
        let regions = build.table.regions(bits)?;
        let payload = PackedPayload::of(spec, Side::Probe)?;
        let fanout = 1 << bits;
        let mut max_rows = (bytes / ROW_BYTES).clamp(MIN_CHUNK_ROWS, MAX_CHUNK_ROWS);
        let mut grant = memory.grant();
        // In its batches and, at last, in its partitions.
        let taken_by = |rows: usize| rows * ROW_BYTES + RadixPartitioner::<COLUMNS>::bytes(rows, fanout);
        while grant.try_grow(taken_by(max_rows)).is_err() {
            max_rows /= 2;
            if max_rows < MIN_CHUNK_ROWS {
                return None;
            }
        }
        Some(Self {
            regions,
            fanout,
            payload,
            max_rows,
            rows: 0,
            collected: Vec::new(),
            partitioner: RadixPartitioner::new(PartitionMethod::WriteCombining).ok()?,
            joining: None,
            partners: Partners::none_of(build),
            probe_rows: Vec::new(),
            found: LentVec::default(),
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
        self.collected.push([words.clone(), packed]);
        self.rows += batch.num_rows();
        if self.rows >= self.max_rows {
            self.partition()?;
        }
        Ok(true)
    }

    /// Starts joining what has been collected; whether there is anything.
    pub(super) fn end(&mut self) -> Result<bool> {
        let is_there = self.rows > 0;
        if is_there {
            self.partition()?;
        }
        Ok(is_there)
    }

    fn partition(&mut self) -> Result<()> {
        let regions = self.regions;
        let mut counts = vec![0; self.fanout];
        for [keys, _] in &self.collected {
            regions.count(keys, &mut counts);
        }
        self.partitioner.begin(counts)?;
        for [keys, words] in self.collected.drain(..) {
            regions.partition([&keys, &words], &mut self.partitioner);
        }
        self.partitioner.finish();
        self.rows = 0;
        self.joining = Some((0, 0));
        Ok(())
    }

    /// Joins some more rows of the chunk that is joined.
    pub(super) fn step(&mut self, spec: &JoinSpec, build: &BuildSide) -> Result<Step> {
        let Some((partition, row)) = self.joining else { return Ok(Step::Finished) };
        if partition == self.fanout {
            self.joining = None;
            return Ok(Step::Finished);
        }
        let [keys, words] = self.partitioner.columns(partition);
        let end = (row + spec.batch_size).min(keys.len());
        self.joining = Some(if end == keys.len() { (partition + 1, 0) } else { (partition, end) });
        let (keys, words) = (&keys[row..end], &words[row..end]);
        let lookups = Lookups { first: 0, keys, matchable: None, is_cached: true, filter: None };
        match &mut self.partners {
            Partners::Rows(rows) => build.table.find_rows(lookups, rows.refill(), &mut self.probe_rows),
            Partners::Payloads(words) => build.table.find_payloads(lookups, words.refill(), &mut self.probe_rows),
        }
        if self.probe_rows.is_empty() {
            return Ok(Step::Working);
        }
        let found = self.found.refill();
        found.clear();
        if self.probe_rows.len() == words.len() {
            found.extend_from_slice(words);
        } else {
            found.extend(self.probe_rows.iter().map(|row| words[*row as usize]));
        }
        let probe = SideRows::Packed(&self.payload, self.found.lend());
        let pairs = Pairs { build: self.partners.take(build), probe, mark: None };
        pairs.output(spec).map(Step::Output)
    }
}
