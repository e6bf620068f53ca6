//! What a join costs.

use crate::JoinKind;

/// An input or the output of a join.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Estimated rows, at least 1.
    pub rows: f64,
    /// Bytes of a row.
    pub width: f64,
}

impl Size {
    /// Bytes of all rows.
    pub fn bytes(&self) -> f64 {
        self.rows * self.width
    }
}

/// What one join has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinWork {
    /// What it gives.
    pub kind: JoinKind,
    /// Whether a hash table finds its pairs. If not, all pairs of rows are tried.
    pub hashed: bool,
    /// The left side, whose rows are stored.
    pub build: Size,
    /// The right side, whose rows are looked up.
    pub probe: Size,
    /// What it gives.
    pub output: Size,
}

/// A model of what joins cost, in any unit. Only sums of costs are compared.
///
/// A kind of join that cannot run, or should not, is avoided by a very high cost, except by random orders.
///
/// What is not a number, or negative, is taken as 0, and what is infinite as 10^300.
pub trait CostModel {
    /// The cost of one join, without its inputs. It must be the same for equal work.
    fn cost(&self, work: &JoinWork) -> f64;
}

/// A cost that can be added and compared.
pub(crate) fn sound(cost: f64) -> f64 {
    if cost.is_nan() { 0.0 } else { cost.clamp(0.0, 1e300) }
}

/// The cost of hash joins on one processor core, in nanoseconds.
///
/// Storing a build row costs a hash, an insertion and its bytes; looking a row up a hash and an access; an output row its bytes. Accesses
/// are dearer the less of the table fits into a cache. Where most rows of an inner join find nothing, a filter of some bits a key tells so, and
/// only the others access the table. A table beyond the memory moves that share of both sides to disk and back.
/// Joins without an equality try all pairs. The defaults are those of a server of 2024, rounded: what matters is their ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HashJoinCost {
    /// Bytes of the cache of a core.
    pub core_cache: f64,
    /// Bytes of the cache that cores share.
    pub shared_cache: f64,
    /// Bytes that the build side of a join may take.
    pub memory: f64,
}

impl Default for HashJoinCost {
    fn default() -> Self {
        Self { core_cache: 2e6, shared_cache: 32e6, memory: 4e9 }
    }
}

const HASH_ROW: f64 = 3.0;
const INSERT_ROW: f64 = 6.0;
const COPY_BYTE: f64 = 0.15;
const ACCESS: f64 = 2.0;
const CORE_CACHE_MISS: f64 = 6.0;
const SHARED_CACHE_MISS: f64 = 25.0;
const OUTPUT_ROW: f64 = 2.0;
/// A byte is written and read.
const SPILL_BYTE: f64 = 1.5;
const COMPARE_PAIR: f64 = 1.0;
/// What a hash table keeps beside the bytes of a row.
const ENTRY_BYTES: f64 = 16.0;
/// What a filter keeps of a key.
const FILTER_BYTES: f64 = 1.5;

impl HashJoinCost {
    /// The cost of one access to a table of so many bytes.
    fn access(&self, bytes: f64) -> f64 {
        let miss = |cache: f64| (1.0 - cache / bytes.max(1.0)).max(0.0);
        ACCESS + CORE_CACHE_MISS * miss(self.core_cache) + SHARED_CACHE_MISS * miss(self.shared_cache)
    }
}

impl CostModel for HashJoinCost {
    fn cost(&self, work: &JoinWork) -> f64 {
        let JoinWork { build, probe, output, .. } = work;
        let table = build.rows * (build.width + ENTRY_BYTES);
        let find = if work.hashed {
            let access = self.access(table);
            let found = if work.kind == JoinKind::Inner { output.rows.min(probe.rows) } else { probe.rows };
            let filtered = probe.rows * self.access(build.rows * FILTER_BYTES) + found * access;
            let accesses = filtered.min(probe.rows * access);
            build.rows * (HASH_ROW + INSERT_ROW + access) + probe.rows * HASH_ROW + accesses
        } else {
            build.rows + build.rows * probe.rows * COMPARE_PAIR
        };
        let spilled = (1.0 - self.memory / table.max(1.0)).max(0.0);
        let spill = spilled * (table + probe.bytes()) * SPILL_BYTE;
        find + build.bytes() * COPY_BYTE + spill + output.rows * (OUTPUT_ROW + output.width * COPY_BYTE)
    }
}
