//! A join, described by its sizes alone.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Slots per row of a linear probing table, before rounding up to a power of two: 50 % load (paper 1, section 6.1).
const SLOTS_PER_ROW: f64 = 2.0;

/// A side of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The number of rows.
    pub rows: u64,
    /// Bytes of a row that the join needs, including the key.
    pub tuple_bytes: u64,
    /// Bytes of the key.
    pub key_bytes: u64,
}

/// The join to predict. Relations lie in CPU memory, column by column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// The build side.
    pub build: Side,
    /// The probe side.
    pub probe: Side,
    /// The layout of tables that are not partitioned.
    pub hash_table: HashTable,
    /// The share of probe rows with a match, from 0 to 1.
    pub match_rate: f64,
    /// Bytes of a result row written to CPU memory; 0 if results are aggregated immediately.
    pub result_bytes: u64,
    /// Bytes of GPU memory that the join may use; `None` for all.
    pub gpu_memory_limit: Option<u64>,
    /// CPU threads that the join may use; `None` for all.
    pub threads: Option<usize>,
}

/// The layout of a hash table that is not partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HashTable {
    /// One slot per key.
    #[default]
    Perfect,
    /// Linear probing with a power-of-two number of slots, at most half full.
    LinearProbing,
}

/// A join strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// CPU: one hash table, built and probed by all threads.
    NoPartition,
    /// CPU: one hash table. Rows are partitioned by the part of the table that they access, which fits a core's cache
    /// (paper 1's CPU baseline). Probe rows are partitioned a chunk at a time. Build rows are partitioned where the table is
    /// built by partitions; the slots of a perfect table are written as rows come.
    Radix,
    /// CPU: partitions both sides, one partition per thread, and joins each by itself; spills to disk if necessary.
    Hybrid,
    /// GPU: one hash table in GPU memory, and in CPU memory where it exceeds it (paper 2, section 5).
    GpuNoPartition,
    /// GPU: the Triton join (paper 1, section 5).
    Triton,
    /// The CPU partitions, the GPU joins (paper 1, sections 3.1 and 6.2.4).
    CpuPartitioned,
    /// CPU and GPU share one hash table in CPU memory (paper 2, section 6.2).
    Het,
    /// The GPU builds; CPU and GPU probe, each its own copy of the table (paper 2, section 6.2).
    GpuHet,
}

impl Strategy {
    /// All strategies, those of the CPU first.
    pub const ALL: [Self; 8] = [
        Self::NoPartition,
        Self::Radix,
        Self::Hybrid,
        Self::GpuNoPartition,
        Self::Triton,
        Self::CpuPartitioned,
        Self::Het,
        Self::GpuHet,
    ];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoPartition => "no_partition",
            Self::Radix => "radix",
            Self::Hybrid => "hybrid",
            Self::GpuNoPartition => "gpu_no_partition",
            Self::Triton => "triton",
            Self::CpuPartitioned => "cpu_partitioned",
            Self::Het => "het",
            Self::GpuHet => "gpu_het",
        }
    }

    /// Whether the strategy needs a GPU.
    pub fn uses_gpu(self) -> bool {
        !matches!(self, Self::NoPartition | Self::Radix | Self::Hybrid)
    }

    /// Whether a GPU looks up probe rows in a hash table as they arrive.
    pub fn streams_probe_rows(self) -> bool {
        matches!(self, Self::GpuNoPartition | Self::Het | Self::GpuHet)
    }

    /// What the strategy does, in a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NoPartition => "all threads build one hash table and look up rows as they come",
            Self::Radix => "as no_partition, but rows are partitioned first, by the part of the table that they access",
            Self::Hybrid => "both sides are partitioned, and each thread joins partitions of its own",
            Self::GpuNoPartition => "a GPU has the hash table, and probe rows stream past it",
            Self::Triton => "a GPU partitions both sides",
            Self::CpuPartitioned => "the CPU partitions both sides for a GPU",
            Self::Het => "CPU and GPU probe one table in CPU memory",
            Self::GpuHet => "CPU and GPU each probe a copy of a table",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl HashTable {
    /// All layouts.
    pub const ALL: [Self; 2] = [Self::Perfect, Self::LinearProbing];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Perfect => "perfect",
            Self::LinearProbing => "linear_probing",
        }
    }
}

impl fmt::Display for HashTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HashTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|table| table.name() == text)
            .ok_or_else(|| format!("there is no hash table named {text:?}; known are perfect and linear_probing"))
    }
}

impl Side {
    /// A side with a key and a payload of equal width, but keys of at most 8 bytes.
    pub fn new(rows: u64, tuple_bytes: u64) -> Self {
        Self { rows, tuple_bytes, key_bytes: (tuple_bytes / 2).clamp(1, 8) }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> f64 {
        self.rows as f64 * self.tuple_bytes as f64
    }

    pub(crate) fn rows(&self) -> f64 {
        self.rows as f64
    }

    pub(crate) fn key_column(&self) -> f64 {
        self.rows() * self.key_bytes as f64
    }
}

impl Join {
    /// A join of tuples of `tuple_bytes` bytes, key and payload. It uses perfect hashing, every probe row has a match,
    /// results are aggregated, and the whole machine may be used.
    pub fn new(build_rows: u64, probe_rows: u64, tuple_bytes: u64) -> Self {
        Self {
            build: Side::new(build_rows, tuple_bytes),
            probe: Side::new(probe_rows, tuple_bytes),
            hash_table: HashTable::Perfect,
            match_rate: 1.0,
            result_bytes: 0,
            gpu_memory_limit: None,
            threads: None,
        }
    }

    /// Bytes of both relations.
    pub fn data_bytes(&self) -> f64 {
        self.build.bytes() + self.probe.bytes()
    }

    /// Rows of both relations. Rates refer to them, as the papers count |R| + |S|.
    pub fn rows(&self) -> f64 {
        self.build.rows() + self.probe.rows()
    }

    /// Bytes of a hash table that is not partitioned.
    pub fn table_bytes(&self) -> f64 {
        self.slots() * self.build.tuple_bytes as f64
    }

    pub(crate) fn result_bytes(&self) -> f64 {
        self.probe.rows() * self.match_rate() * self.result_bytes as f64
    }

    pub(crate) fn match_rate(&self) -> f64 {
        self.match_rate.clamp(0.0, 1.0)
    }

    fn slots(&self) -> f64 {
        let rows = self.build.rows();
        match self.hash_table {
            HashTable::Perfect => rows,
            HashTable::LinearProbing if rows == 0.0 => 0.0,
            HashTable::LinearProbing => 2f64.powi((rows * SLOTS_PER_ROW).log2().ceil() as i32),
        }
    }

    /// Slots read per lookup of a present key, and per insert of the last key: (1 + 1 / (1 - load)) / 2 with linear probing
    /// (Knuth, volume 3, section 6.4).
    pub(crate) fn accesses_of_hit(&self) -> f64 {
        self.accesses(|free| (1.0 + 1.0 / free) / 2.0)
    }

    /// Slots read per lookup of an absent key.
    pub(crate) fn accesses_of_miss(&self) -> f64 {
        self.accesses(|free| (1.0 + 1.0 / (free * free)) / 2.0)
    }

    fn accesses(&self, expected: impl Fn(f64) -> f64) -> f64 {
        match self.hash_table {
            HashTable::LinearProbing if self.build.rows > 0 => expected(1.0 - self.build.rows() / self.slots()),
            _ => 1.0,
        }
    }
}
