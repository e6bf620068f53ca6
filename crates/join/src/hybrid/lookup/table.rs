//! Finds pairs in a hash table in CPU memory.

use std::sync::Arc;

use arrow::array::RecordBatch;

use crate::error::Result;
use crate::hash_table::{MatchCursor, VisitedRows};
use crate::hybrid::build_side::BuildSide;
use crate::hybrid::pairs::{Found, Lane, PairBlock, PairFinder, ProbeRows, Wanted};
use crate::hybrid::plan::JoinPlan;
use crate::keys::Keys;

/// Looks up every key in the hash table of a build side, one batch after the other.
#[derive(Debug)]
pub(super) struct TableFinder {
    plan: Arc<JoinPlan>,
    build: Arc<BuildSide>,
    unit: Unit,
    cursor: MatchCursor,
}

/// The search state of a batch.
#[derive(Debug, Default)]
enum Unit {
    #[default]
    None,
    Taken(RecordBatch, Keys),
    Searched(Keys),
    /// Nothing is left to find.
    Exhausted,
}

impl TableFinder {
    pub(super) fn new(plan: &Arc<JoinPlan>, build: &Arc<BuildSide>) -> Self {
        let (plan, build) = (Arc::clone(plan), Arc::clone(build));
        Self { plan, build, unit: Unit::None, cursor: MatchCursor::default() }
    }
}

impl PairFinder for TableFinder {
    fn push(&mut self, ProbeRows { batch, keys, .. }: ProbeRows) -> Result<Option<ProbeRows>> {
        debug_assert!(matches!(self.unit, Unit::None), "one batch at a time");
        self.build.table(&self.plan)?.start(&keys, &mut self.cursor);
        self.unit = Unit::Taken(batch, keys);
        Ok(None)
    }

    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        match std::mem::take(&mut self.unit) {
            Unit::None => Ok(Found::Idle),
            Unit::Taken(batch, keys) => {
                self.unit = if self.build.rows() == 0 { Unit::Exhausted } else { Unit::Searched(keys) };
                Ok(Found::Started(Lane::Main, batch))
            }
            Unit::Searched(keys) => {
                let table = self.build.table(&self.plan)?;
                let PairBlock { build, probe } = pairs;
                let (first_only, probe) = (wanted.first_only, probe.numbers());
                let more = table.next_pairs(&keys, &mut self.cursor, wanted.pairs, first_only, build, probe);
                self.unit = if more { Unit::Searched(keys) } else { Unit::Exhausted };
                Ok(Found::Pairs(Lane::Main))
            }
            Unit::Exhausted => Ok(Found::Done(Lane::Main)),
        }
    }

    fn mark(&mut self, visited: &VisitedRows) -> Result<bool> {
        let Unit::Searched(keys) = &self.unit else { return Ok(false) };
        self.build.table(&self.plan)?.mark_matches(keys, &mut self.cursor, visited);
        self.unit = Unit::Exhausted;
        Ok(true)
    }

    fn is_filtered(&self) -> bool {
        self.build.table_in_memory().is_some_and(|table| table.is_filtered(&self.cursor))
    }
}
