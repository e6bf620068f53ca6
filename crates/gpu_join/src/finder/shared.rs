//! Finds pairs in the hash table that a GPU reads as well.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::take_numbers;
use crate::build::DeviceBuild;
use crate::co_processing::Morsel;
use overspill_join::hash_table::VisitedRows;
use overspill_join::hybrid::{Found, Lane, PairBlock, PairFinder, ProbeRows, Wanted};
use overspill_join::{JoinError, Result};

/// Looks up keys while a GPU does the same, in the table that both read or in a copy of it (paper 2, section 6).
#[derive(Debug)]
pub(super) struct SharedFinder {
    device: Arc<DeviceBuild>,
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
    /// Creates the finder for a build side with such a table.
    pub(super) fn new(device: &Arc<DeviceBuild>) -> Self {
        Self { device: Arc::clone(device), unit: Unit::None, build_values: vec![], probe_rows: vec![] }
    }
}

impl PairFinder for SharedFinder {
    fn push(&mut self, ProbeRows { batch, keys, .. }: ProbeRows) -> Result<Option<ProbeRows>> {
        debug_assert!(matches!(self.unit, Unit::None), "one batch at a time");
        self.unit = Unit::Taken(batch, Morsel::new(keys));
        Ok(None)
    }

    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        let device = &self.device;
        match std::mem::take(&mut self.unit) {
            Unit::None => Ok(Found::Idle),
            Unit::Taken(batch, morsel) => {
                self.unit = Unit::Searched(morsel);
                Ok(Found::Started(Lane::Main, batch))
            }
            Unit::Searched(mut morsel) => {
                let Some(shared) = device.shared() else { return Ok(Found::Idle) };
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
        let device = &self.device;
        // If the words are hashes, they do not decide which rows match.
        if device.keys.is_some() {
            return Ok(false);
        }
        let (Unit::Searched(morsel), Some(shared)) = (&self.unit, device.shared()) else { return Ok(false) };
        morsel.mark(shared.slots().map_err(JoinError::host)?, visited);
        self.unit = Unit::Exhausted;
        Ok(true)
    }
}
