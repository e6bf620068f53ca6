//! A table of groups that stays in a cache.

use std::sync::LazyLock;

use arrow::array::ArrayRef;
use datafusion::common::Result;
use datafusion::logical_expr::EmitTo;
use overspill_join::grouping::Groups;
use overspill_machine::topology::Cpu;

use super::Accumulators;
use crate::join_execution::to_datafusion;

/// A table of groups is worth its work if its groups have this many rows on average.
const WORTHWHILE_ROWS: usize = 2;

/// After a table that was not worth its work, that many times its groups are not grouped.
const UNGROUPED: usize = 32;

/// The share of a full table that tells whether more rows would be worth their work.
const SAMPLE: usize = 8;

/// After a sample, the groups of all rows are estimated as if each row were of any group with equal probability. More than this many times the
/// most groups of a table are too many.
const TOO_MANY: usize = 2;

/// Bytes of a group, about: its key and slot in the table, and the state of a function or two.
const GROUP_BYTES: usize = 48;

/// The most bytes of the groups of a stream: a share of the cache that cores share, as a miss there costs less than to move a row. It is bounded, as
/// machines share the largest caches.
static MOST_BYTES: LazyLock<usize> = LazyLock::new(|| {
    let cpu = Cpu::of_this_machine();
    let shared = (cpu.shared_cache().unwrap_or(0) / 8).min(16 << 20);
    usize::try_from(shared.max(cpu.private_cache().unwrap_or(1 << 20))).unwrap_or(usize::MAX)
});

/// The most groups of a stream.
static MOST_GROUPS: LazyLock<usize> = LazyLock::new(|| (*MOST_BYTES / GROUP_BYTES).clamp(8 << 10, 512 << 10));

/// Groups with the states of their functions. When the table is full its states are taken, and it starts anew.
pub(super) struct CachedGroups {
    /// `None` if all rows are of one group.
    groups: Option<Groups>,
    pub accumulators: Accumulators,
    /// The groups of the rows that came last.
    numbers: Vec<usize>,
    /// Rows of the groups.
    rows: usize,
    /// How many further rows are not worth to be grouped.
    ungrouped: usize,
    /// Whether the groups of this table have been estimated.
    is_estimated: bool,
}

impl CachedGroups {
    /// A table without rows. `groups` is `None` if all rows are of one group.
    pub fn new(groups: Option<Groups>, accumulators: Accumulators) -> Self {
        Self { groups, accumulators, numbers: vec![], rows: 0, ungrouped: 0, is_estimated: false }
    }

    /// Whether the next rows are not worth to be grouped.
    pub fn is_paused(&self) -> bool {
        self.ungrouped > 0
    }

    /// Tells that this many rows were not grouped.
    pub fn skip(&mut self, rows: usize) {
        self.ungrouped = self.ungrouped.saturating_sub(rows);
    }

    /// Numbers the groups of rows with these keys.
    pub fn number(&mut self, keys: &[ArrayRef], rows: usize) -> Result<()> {
        self.numbers.clear();
        match &mut self.groups {
            Some(groups) => groups.number(keys, &mut self.numbers).map_err(to_datafusion)?,
            None => self.numbers.resize(rows, 0),
        }
        self.rows += rows;
        Ok(())
    }

    /// The groups of the rows that were numbered last, the number of all groups, and their accumulators.
    pub fn numbered(&mut self) -> (&[usize], usize, &mut Accumulators) {
        let groups = self.len();
        (&self.numbers, groups, &mut self.accumulators)
    }

    /// Whether all rows would be of one group, and there are none.
    pub fn is_total_of_no_rows(&self) -> bool {
        self.groups.is_none() && self.rows == 0
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        self.groups.as_ref().map_or(1, Groups::len)
    }

    /// Whether the groups are to be taken: they fill the cache, or are not worth their work.
    pub fn is_done(&mut self) -> bool {
        let Some(groups) = &self.groups else { return false };
        // Keys of long texts fill a cache before there are many.
        let is_full = groups.len() >= *MOST_GROUPS || groups.row_bytes() > *MOST_BYTES;
        let groups = groups.len();
        let are_too_many = !self.is_estimated && self.rows >= *MOST_GROUPS / SAMPLE && self.are_too_many(groups);
        self.is_estimated |= self.rows >= *MOST_GROUPS / SAMPLE;
        if are_too_many || (is_full && self.rows < WORTHWHILE_ROWS * groups) {
            self.ungrouped = UNGROUPED * groups;
        }
        is_full || are_too_many
    }

    /// Whether the first rows show that the table will not be worth its work. `rows` of `n` equally probable groups have about `rows^2 / 2n`
    /// rows of a group that another row has as well.
    fn are_too_many(&self, groups: usize) -> bool {
        let repeated = (self.rows - groups) as f64;
        (self.rows as f64).powi(2) > 2.0 * repeated * (TOO_MANY * *MOST_GROUPS) as f64
    }

    /// The keys and states of all groups. No group is left.
    pub fn take(&mut self) -> Result<Vec<ArrayRef>> {
        let mut columns = match &mut self.groups {
            Some(groups) => groups.take().map_err(to_datafusion)?,
            None => vec![],
        };
        for accumulator in &mut self.accumulators {
            columns.extend(accumulator.state(EmitTo::All)?);
        }
        self.rows = 0;
        self.is_estimated = false;
        Ok(columns)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let states = self.accumulators.iter().map(|accumulator| accumulator.size()).sum::<usize>();
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        groups + states + self.numbers.capacity() * size_of::<usize>()
    }
}
