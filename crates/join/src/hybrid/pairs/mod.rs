//! Finds which build rows match which probe rows.
//!
//! A [`PairFinder`] takes batches of probe rows with their keys and returns blocks of pairs. It knows neither join types nor
//! residual filters: [`Prober`](super::Prober) builds output rows from the pairs of any finder.
//!
//! ```text
//!   Prober ── push(rows, keys) ──▶ PairFinder          one of
//!          ◀─ Started, Pairs, Done ─                    TableFinder     a hash table in CPU memory
//!                                                       LeftOver        of the two below it, the rows that the first
//!                                                         │             hands back go to the second
//!                                                         ├ RegionFinder, then TableFinder
//!                                                         └ DeviceFinder, then TableFinder or SharedFinder
//! ```

mod block;
mod left_over;

use std::fmt::{self, Debug};
use std::pin::Pin;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;

pub(super) use block::retain;
pub use block::{PairBlock, PairRows};
pub use left_over::LeftOver;

use super::payload::PackedPayload;
use crate::error::Result;
use crate::hash_table::VisitedRows;
use crate::keys::Keys;

/// Finds the build rows that match probe rows.
///
/// The rows of a batch, or of several batches that the finder combines, are a *unit*. Up to two units are searched at once, one
/// in each `Lane`. For each unit the finder returns `Found::Started`, then pairs, then `Found::Done`.
pub trait PairFinder: Debug + Send {
    /// Takes probe rows, or hands them back if another finder must search them. Before the next call, [`PairFinder::next`] must
    /// have searched the rows taken earlier as far as it can.
    fn push(&mut self, rows: ProbeRows) -> Result<Option<ProbeRows>>;

    /// Continues the search, for a time that does not depend on the number of pairs. The pairs found replace the contents of
    /// `pairs`.
    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found>;

    /// Marks all build rows that match the current unit, instead of returning its pairs. Returns false if the finder returns
    /// pairs.
    fn mark(&mut self, _visited: &VisitedRows) -> Result<bool> {
        Ok(false)
    }

    /// Signals that no rows follow. Returns true if [`PairFinder::next`] has more to do; call this again afterwards.
    fn end(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// How words of packed probe rows unpack into columns; `None` if pairs contain only probe row numbers.
    fn packed_rows(&self) -> Option<&PackedPayload> {
        None
    }

    /// Whether most recent rows had no match, so that lookups check a filter before the hash table.
    fn is_filtered(&self) -> bool {
        false
    }

    /// Whether the finder partitions probe rows before it looks them up in a hash table.
    fn partitions_rows(&self) -> bool {
        false
    }
}

/// Probe rows and their keys.
#[derive(Debug)]
pub struct ProbeRows {
    /// The rows.
    pub batch: RecordBatch,
    /// A key for each row.
    pub keys: Keys,
    /// Whether they must be a unit of their own.
    pub is_apart: bool,
}

/// Which pairs a finder must return.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// At most this many at once.
    pub pairs: usize,
    /// Whether one pair for each probe row suffices.
    pub first_only: bool,
}

/// One of two units that are searched at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The unit of the only finder, or of the first of two.
    Main,
    /// Rows that the first finder handed back.
    Beside,
}

/// Resolves when a search can go on. It waits without a thread.
pub struct Wait(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Wait {
    /// Until the future is ready.
    pub fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(future))
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").finish_non_exhaustive()
    }
}

/// The result of a search step.
#[derive(Debug)]
pub enum Found {
    /// A unit of these rows has started. The pairs that follow refer to rows by their numbers in it.
    Started(Lane, RecordBatch),
    /// Pairs of a unit, or of packed rows, which belong to no unit.
    Pairs(Lane),
    /// All pairs of a unit have been found.
    Done(Lane),
    /// All pairs of the unit in [`Lane::Main`] have been found, except for rows not searched: those whose keys are matchable
    /// here.
    Left(ProbeRows),
    /// Rows that were taken earlier and are now handed back.
    HandedBack(ProbeRows),
    /// No result yet.
    Working,
    /// No result before this resolves.
    Waiting(Wait),
    /// No result until more rows are pushed.
    Idle,
}
