//! Finds pairs in the hash table that a GPU reads as well.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::device::take_numbers;
use super::{Found, Lane, PairBlock, PairFinder, ProbeRows, Wanted};
use crate::co_processing::Morsel;
use crate::error::{JoinError, Result};
use crate::hash_table::VisitedRows;
use crate::hybrid::build_side::BuildSide;

/// Looks up keys while a GPU does the same, in the table that both read or in a copy of it (paper 2, section 6).
#[derive(Debug)]
pub(super) struct SharedFinder {
    build: Arc<BuildSide>,
    unit: Unit,
    build_values: Vec<u64>,
    probe_rows: Vec<u64>,
}

/// The search state of a batch.
#[derive(Debug, Default)]
enum Unit {
    #[default]
    None,
    Taken(RecordBatch, Morsel),
    Searched(Morsel),
    /// Nothing is left to find.
    Exhausted,
}

impl SharedFinder {
    /// Returns `None` if the build side has no such table.
    pub(super) fn for_join(build: &Arc<BuildSide>) -> Option<Self> {
        build.device.as_ref()?.table.shared()?;
        Some(Self { build: Arc::clone(build), unit: Unit::None, build_values: vec![], probe_rows: vec![] })
    }
}

impl PairFinder for SharedFinder {
    fn push(&mut self, ProbeRows { batch, keys, .. }: ProbeRows) -> Result<Option<ProbeRows>> {
        debug_assert!(matches!(self.unit, Unit::None), "one batch at a time");
        self.unit = Unit::Taken(batch, Morsel::new(keys));
        Ok(None)
    }

    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        let Some(device) = &self.build.device else { return Ok(Found::Idle) };
        match std::mem::take(&mut self.unit) {
            Unit::None => Ok(Found::Idle),
            Unit::Taken(batch, morsel) => {
                self.unit = Unit::Searched(morsel);
                Ok(Found::Started(Lane::Main, batch))
            }
            Unit::Searched(mut morsel) => {
                let Some(shared) = device.table.shared() else { return Ok(Found::Idle) };
                let (build, probe) = (&mut self.build_values, &mut self.probe_rows);
                build.clear();
                probe.clear();
                // If the words are hashes, the first match may belong to another key.
                let first_only = wanted.first_only && device.keys.is_none();
                let slots = shared.slots().map_err(JoinError::host)?;
                let more = morsel.next(slots, wanted.pairs, first_only, build, probe);
                if device.keys.is_some() {
                    device.keep_equal(&morsel.keys, build, probe);
                }
                device.take_values(build, &mut pairs.build);
                take_numbers(probe, &mut pairs.probe);
                self.unit = if more { Unit::Searched(morsel) } else { Unit::Exhausted };
                Ok(Found::Pairs(Lane::Main))
            }
            Unit::Exhausted => Ok(Found::Done(Lane::Main)),
        }
    }

    fn mark(&mut self, visited: &VisitedRows) -> Result<bool> {
        let Some(device) = &self.build.device else { return Ok(false) };
        // If the words are hashes, they do not decide which rows match.
        if device.keys.is_some() {
            return Ok(false);
        }
        let (Unit::Searched(morsel), Some(shared)) = (&self.unit, device.table.shared()) else { return Ok(false) };
        morsel.mark(shared.slots().map_err(JoinError::host)?, visited);
        self.unit = Unit::Exhausted;
        Ok(true)
    }
}
