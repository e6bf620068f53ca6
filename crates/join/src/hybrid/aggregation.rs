//! Aggregates of pairs that a finder computes instead of returning the pairs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

    /// Takes the aggregates of pairs found since the last call. Those of all streams are complete once all have ended.
    pub fn take(&self) -> SelectionState {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut found, SelectionState::new(&self.selection))
    }

    /// Adds the aggregates of more pairs.
    pub fn add(&self, state: &SelectionState) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).merge(&self.selection, state);
    }
}

/// Counts the streams that probe one build side and aggregate their pairs.
///
/// A finder may leave probe rows to another stream of them, which finds their pairs: to which stream's aggregates a pair is added
/// makes no difference to the aggregates of all.
#[derive(Debug, Default)]
pub struct AggregatingStreams {
    reading: AtomicUsize,
}

impl AggregatingStreams {
    /// Counts a stream until what is returned is dropped. Add streams before they wait for the build side: a stream that is not
    /// counted yet would be taken for one that has ended.
    pub fn add(self: &Arc<Self>, aggregation: Arc<PairAggregation>) -> AggregatingStream {
        self.reading.fetch_add(1, Ordering::Relaxed);
        AggregatingStream { aggregation, among: Arc::clone(self) }
    }
}

/// A stream that may read more probe rows, or join those that others have left to it.
#[derive(Debug)]
pub struct AggregatingStream {
    /// Receives the aggregates of pairs.
    pub aggregation: Arc<PairAggregation>,
    among: Arc<AggregatingStreams>,
}

impl AggregatingStream {
    /// Whether no other stream is left. Finders that leave rows check and drop the stream under a lock.
    pub fn is_last(&self) -> bool {
        self.among.reading.load(Ordering::Relaxed) == 1
    }
}

impl Drop for AggregatingStream {
    fn drop(&mut self) {
        self.among.reading.fetch_sub(1, Ordering::Relaxed);
    }
}
