//! Chains two finders: the second searches the rows that the first does not.

use super::{Found, Lane, PairBlock, PairFinder, ProbeRows, Wanted};
use crate::error::Result;
use crate::hash_table::VisitedRows;
use crate::hybrid::payload::PackedPayload;

/// Gives rows to the first finder, and the rows that it hands back or leaves to the second.
#[derive(Debug)]
pub struct LeftOver {
    first: Box<dyn PairFinder>,
    rest: Box<dyn PairFinder>,
    /// The lane of the unit that the second finder searches, if it does.
    searched: Option<Lane>,
}

impl LeftOver {
    /// Chains two finders.
    pub fn new(first: Box<dyn PairFinder>, rest: Box<dyn PairFinder>) -> Self {
        Self { first, rest, searched: None }
    }

    /// Gives rows of the unit in `lane` to the second finder.
    fn give(&mut self, rows: ProbeRows, lane: Lane) -> Result<Option<ProbeRows>> {
        debug_assert!(self.searched.is_none(), "one batch at a time");
        let handed_back = self.rest.push(rows)?;
        self.searched = handed_back.is_none().then_some(lane);
        Ok(handed_back)
    }

    /// Translates a result of the second finder to the unit in `lane`.
    fn of_rest(&mut self, found: Found, lane: Lane) -> Found {
        match found {
            // The rows that the first finder left belong to a unit that has already started.
            Found::Started(..) if lane == Lane::Main => Found::Working,
            Found::Started(_, batch) => Found::Started(lane, batch),
            Found::Pairs(_) => Found::Pairs(lane),
            Found::Done(_) => {
                self.searched = None;
                Found::Done(lane)
            }
            other => other,
        }
    }
}

impl PairFinder for LeftOver {
    fn push(&mut self, rows: ProbeRows) -> Result<Option<ProbeRows>> {
        match self.first.push(rows)? {
            Some(rows) => self.give(rows, Lane::Beside),
            None => Ok(None),
        }
    }

    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found> {
        if let Some(lane) = self.searched {
            let found = self.rest.next(wanted, pairs)?;
            return Ok(self.of_rest(found, lane));
        }
        let handed_back = match self.first.next(wanted, pairs)? {
            Found::Left(rows) => self.give(rows, Lane::Main)?,
            Found::HandedBack(rows) => self.give(rows, Lane::Beside)?,
            found => return Ok(found),
        };
        Ok(handed_back.map_or(Found::Working, Found::HandedBack))
    }

    fn mark(&mut self, visited: &VisitedRows) -> Result<bool> {
        if self.searched.is_some() { self.rest.mark(visited) } else { Ok(false) }
    }

    fn end(&mut self) -> Result<bool> {
        self.first.end()
    }

    fn packed_rows(&self) -> Option<&PackedPayload> {
        self.first.packed_rows()
    }

    fn is_filtered(&self) -> bool {
        self.rest.is_filtered()
    }

    fn partitions_rows(&self) -> bool {
        self.first.partitions_rows()
    }
}
