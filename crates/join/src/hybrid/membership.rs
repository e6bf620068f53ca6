//! Which keys a build side has, for rows that are dropped long before they reach the join.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;

use super::build_side::BuildSide;
use crate::error::Result;
use crate::hash_table::{JoinTable, KeySet};
use crate::memory::Grant;
use crate::spec::JoinSpec;

/// The keys of the build side of a join, as a set that may have a few others.
///
/// A bit for each key of a dense range, else a Bloom filter: a test reads at most one cache line of a structure that is much
/// smaller than the hash table.
#[derive(Debug)]
pub struct Membership {
    spec: Arc<JoinSpec>,
    keys: KeySet,
    /// Pays for the set.
    _memory: Grant,
}

/// The hashes of the keys of one build side among several, each of which has some of the keys.
#[derive(Debug)]
pub struct KeyHashes {
    hashes: Vec<u32>,
    memory: Grant,
}

/// The hash table of a build side, if all its rows are in it.
fn whole_table(build: &BuildSide) -> Option<&JoinTable> {
    build.table_in_memory().filter(|_| !build.is_spilled())
}

impl KeyHashes {
    /// The hashes of the keys of a build side. `None` if some keys are in files or on a GPU, or if `memory` does not grow by
    /// what they take. `O(table)`.
    pub fn of(build: &BuildSide, mut memory: Grant) -> Option<Self> {
        let table = whole_table(build)?;
        memory.try_grow(build.rows().saturating_mul(size_of::<u32>())).ok()?;
        Some(Self { hashes: table.key_hashes().ok()?, memory })
    }
}

impl Membership {
    /// The keys of a build side. `None` if some of them are in files or on a GPU, if there are too many, or if `memory` does
    /// not grow by what they take. `O(table)`.
    pub fn of(spec: &Arc<JoinSpec>, build: &BuildSide, mut memory: Grant) -> Option<Self> {
        let table = whole_table(build)?;
        memory.try_grow(table.key_set_bytes()).ok()?;
        let keys = table.key_set().ok()??;
        Some(Self { spec: Arc::clone(spec), keys, _memory: memory })
    }

    /// The keys of all build sides of a join. `None` if there are too many, or if memory does not suffice. `O(keys)`.
    pub fn of_all(spec: &Arc<JoinSpec>, parts: &[KeyHashes]) -> Option<Self> {
        let keys = parts.iter().map(|part| part.hashes.len()).sum();
        let mut memory = parts.last()?.memory.another();
        memory.try_grow(KeySet::bytes_of_hashes(keys)).ok()?;
        let hashes = parts.iter().flat_map(|part| part.hashes.iter().copied());
        let keys = KeySet::of_hashes(keys, hashes).ok()??;
        Some(Self { spec: Arc::clone(spec), keys, _memory: memory })
    }

    /// The rows whose keys are in the set. A row that has a partner on the build side always is. `columns` are keys of the probe
    /// side, in the order of the join condition.
    ///
    /// # Errors
    /// Fails if the keys are not of the types of the join.
    pub fn members(&self, columns: &[ArrayRef]) -> Result<BooleanBuffer> {
        Ok(self.keys.members(&self.spec.codec.encode(columns)?))
    }
}
