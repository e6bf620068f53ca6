//! The GPU in the order of arrival, as a pool of connections or a lock gives it.

use super::{Action, Decision, Policy, Reason};
use crate::board::Board;
use crate::limits::Limits;
use crate::query::Place;

/// Queries that can use the GPU wait for it in the order of arrival.
#[derive(Debug)]
pub(super) struct FirstCome {
    pub limits: Limits,
}

impl Policy for FirstCome {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn decide(&mut self, board: &mut Board) -> Vec<Decision> {
        let mut decisions = vec![];
        let mut on_gpu: Vec<_> = board.at(Place::Gpu).map(|running| running.demand).collect();
        let mut is_full = false;
        for demand in board.waiting.iter().map(|waiting| waiting.demand) {
            let start = |place, reason| Decision { id: demand.id, action: Action::Start(place), reason };
            if demand.gpu.is_none() || !self.limits.allow([demand].iter()) {
                decisions.push(start(Place::Cpu, Reason::Only));
                continue;
            }
            on_gpu.push(demand);
            is_full |= !self.limits.allow(on_gpu.iter());
            if !is_full {
                decisions.push(start(Place::Gpu, Reason::Turn));
            }
        }
        decisions
    }
}
