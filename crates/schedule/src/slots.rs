//! How many queries may run at once, and whose turn it is.

use crate::board::Board;
use crate::query::Demand;

/// How many queries may run at once, on whatever processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slots {
    /// The most queries that run at once. At least one does.
    pub most: usize,
    /// A query that is predicted to take less than this number of seconds on the CPU runs there at once, beside others: as many of
    /// these as of all others.
    pub brief: f64,
}

impl Slots {
    /// Without a limit.
    pub const ALL: Self = Self { most: usize::MAX, brief: 0.0 };

    /// Whether a query runs beside the others.
    pub(crate) fn is_brief(&self, board: &Board, demand: &Demand) -> bool {
        demand.cpu < self.brief && board.running.len() - board.in_slots().count() < self.most.max(1)
    }

    /// How many more may start.
    pub(crate) fn free(&self, board: &Board) -> usize {
        self.most.max(1).saturating_sub(board.taken_slots())
    }
}

/// The numbers, among the waiting, of the queries that must start now: first queries of users.
///
/// Each has a deadline, a number of query ends. If at least one of them starts at each end, all keep theirs: a new one gets as
/// many ends as there are users that wait, itself included. So of those with deadlines in the next `n` ends there are never
/// more than `n`, and one must start now only where another start would break that. One that has a slot has as good as started.
pub(crate) fn due(board: &Board) -> Vec<usize> {
    let without_slot = board.waiting.iter().enumerate().filter(|(_, waiting)| !waiting.has_slot);
    let mut heads: Vec<(u64, usize)> =
        without_slot.filter_map(|(number, waiting)| Some((waiting.deadline?, number))).collect();
    heads.sort_unstable();
    let mut due = vec![];
    loop {
        let rest = &heads[due.len()..];
        // The first of them has one more end to start at, the second two, and so on.
        let is_late = rest.iter().zip(1..).any(|((deadline, _), place)| deadline.saturating_sub(board.ends) < place);
        match rest.first() {
            Some((_, number)) if is_late => due.push(*number),
            _ => return due,
        }
    }
}
