//! Aggregates of pairs that a finder computes instead of returning the pairs.

use std::sync::{Mutex, PoisonError};

use crate::selection::{Aggregate, Selection, SelectionState};

/// The aggregates over the output of a join's stream. Pairs that a finder aggregates are not emitted as output rows: to
/// aggregate all rows, add the aggregates taken here to those of the output once the stream has ended.
#[derive(Debug)]
pub struct PairAggregation {
    /// Selects all rows. Columns are output columns of the join.
    selection: Selection,
    found: Mutex<SelectionState>,
}

impl PairAggregation {
    /// Starts with no pairs.
    pub fn new(aggregates: &[Aggregate]) -> Self {
        let selection = Selection { ranges: Vec::new(), aggregates: aggregates.to_vec() };
        Self { found: Mutex::new(SelectionState::new(&selection)), selection }
    }

    /// The aggregates.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Takes the aggregates of pairs found since the last call. They are complete once the stream has ended.
    pub fn take(&self) -> SelectionState {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut found, SelectionState::new(&self.selection))
    }

    /// Adds the aggregates of more pairs.
    pub fn add(&self, state: &SelectionState) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).merge(&self.selection, state);
    }
}
