//! Policies that put all queries at one place at once.

use super::{Action, Decision, Policy, Reason};
use crate::board::Board;
use crate::limits::Limits;
use crate::query::{Demand, Place};

/// All queries at this place, if they can run there.
#[derive(Debug)]
pub(super) struct All(pub Place);

impl Policy for All {
    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn decide(&mut self, board: &mut Board) -> Vec<Decision> {
        let start = |demand: &Demand| {
            let place = if demand.gpu.is_some() { self.0 } else { Place::Cpu };
            Decision { id: demand.id, action: Action::Start(place), reason: Reason::Only }
        };
        board.waiting.iter().map(|waiting| start(&waiting.demand)).collect()
    }
}
