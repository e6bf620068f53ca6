//! Which build rows match which probe rows.
//!
//! A [`PairFinder`] takes batches of probe rows with their keys and gives blocks of pairs. It knows neither join types nor
//! residual filters: [`Prober`](super::Prober) makes rows of the pairs, whoever has found them.
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
mod device;
mod left_over;
mod regions;
mod shared;
mod table;

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::ScalarBuffer;

pub use block::PairBlock;
pub(super) use block::{PairRows, retain};
use device::DeviceFinder;
use left_over::LeftOver;
pub(super) use regions::MAX_FANOUT_BITS;
use regions::RegionFinder;
use shared::SharedFinder;
use table::TableFinder;

use super::build_side::BuildSide;
use super::output::SideRows;
use super::payload::PackedPayload;
use crate::device::PairAggregation;
use crate::error::Result;
use crate::hash_table::VisitedRows;
use crate::keys::Keys;
use crate::memory::{RowSizes, UnitMemory};
use crate::spec::JoinSpec;

/// Finds the build rows that match probe rows.
///
/// The rows of a batch, or of several that it puts together, are a *unit*. Two units may be at work at once, one in each
/// `Lane`. Of each, it gives `Found::Started`, then pairs, then `Found::Done`.
pub trait PairFinder: Debug + Send {
    /// Takes probe rows, or hands them back: then somebody else has to find their pairs. What it took before has been searched,
    /// as far as [`PairFinder::next`] goes.
    fn push(&mut self, rows: ProbeRows) -> Result<Option<ProbeRows>>;

    /// Goes on, for a time that does not depend on how many pairs there are. The pairs replace what `pairs` has.
    fn next(&mut self, wanted: Wanted, pairs: &mut PairBlock) -> Result<Found>;

    /// Marks all build rows that match the unit at hand, in place of giving its pairs; false if it gives pairs.
    fn mark(&mut self, _visited: &VisitedRows) -> Result<bool> {
        Ok(false)
    }

    /// Says that no rows follow; whether [`PairFinder::next`] has more to do, after which this is asked again.
    fn end(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// How the words of packed probe rows are columns; `None` if it gives pairs by the numbers of probe rows alone.
    fn packed_rows(&self) -> Option<&PackedPayload> {
        None
    }

    /// Whether most rows were lately found to have no partner, so that a filter is asked before the hash table.
    fn is_filtered(&self) -> bool {
        false
    }

    /// Whether it partitions probe rows before they look into a hash table.
    fn partitions_rows(&self) -> bool {
        false
    }
}

/// Probe rows and their keys.
#[derive(Debug)]
pub struct ProbeRows {
    pub(super) batch: RecordBatch,
    pub(super) keys: Keys,
    /// Whether they have to be a unit by themselves.
    pub(super) is_apart: bool,
}

/// Which pairs are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// At most this many at once.
    pub(super) pairs: usize,
    /// Whether one of each probe row is enough.
    pub(super) first_only: bool,
}

/// One of two units that are searched at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The unit of a finder that stands alone, or first.
    Main,
    /// Rows that it has handed back.
    Beside,
}

/// What a search for pairs came to.
#[derive(Debug)]
pub enum Found {
    /// A unit that consists of these rows. Their numbers are those of the pairs that follow.
    Started(Lane, RecordBatch),
    /// Pairs of a unit, or of packed rows, which have no unit.
    Pairs(Lane),
    /// All pairs of a unit have been found.
    Done(Lane),
    /// The same of the unit in [`Lane::Main`], but for rows that were not searched: those that can match by their keys.
    Left(ProbeRows),
    /// Rows that were taken and are handed back.
    HandedBack(ProbeRows),
    /// Nothing yet.
    Working,
    /// Nothing, until rows come.
    Idle,
}

/// The build rows that pairs are made of.
pub trait BuildRows: Debug + Send + Sync {
    /// Rows by their numbers.
    fn numbered(&self, rows: ScalarBuffer<u32>) -> SideRows<'_>;

    /// Rows as their packed columns.
    fn packed(&self, words: ScalarBuffer<u64>) -> SideRows<'_>;

    /// Rows of nulls.
    fn nulls(&self, rows: usize) -> SideRows<'_>;

    /// What copies of rows take.
    fn sizes(&self) -> &RowSizes;

    /// The rows that have found a match.
    fn visited(&self) -> &VisitedRows;
}

/// The finder for a build side in memory: on the GPU that has it, else, if the rows may be partitioned and it pays, by regions of
/// the hash table, else in the table. `memory` pays for rows that are collected. Pairs that kernels aggregate are not given:
/// `aggregation` gets what they come to; without it there are none.
pub fn pair_finder(
    spec: &Arc<JoinSpec>,
    build: &Arc<BuildSide>,
    memory: &Arc<UnitMemory>,
    aggregation: Option<&Arc<PairAggregation>>,
    may_partition: bool,
) -> Box<dyn PairFinder> {
    let table = || Box::new(TableFinder::new(spec, build));
    if let Some(device) = DeviceFinder::for_join(spec, build, memory, aggregation) {
        let rest: Box<dyn PairFinder> = match SharedFinder::for_join(build) {
            Some(shared) => Box::new(shared),
            None => table(),
        };
        return Box::new(LeftOver::new(Box::new(device), rest));
    }
    let regions = if may_partition { RegionFinder::for_join(spec, build, memory) } else { None };
    match regions {
        Some(regions) => Box::new(LeftOver::new(Box::new(regions), table())),
        None => table(),
    }
}
