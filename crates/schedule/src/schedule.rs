//! The schedule of one machine.

use crate::board::Board;
use crate::limits::Limits;
use crate::log::{Entry, What};
use crate::policy::{Action, Decision, Policy, PolicyKind};
use crate::processors::Processors;
use crate::query::{Demand, QueryId};

/// What a schedule goes by.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleConfig {
    /// Who decides.
    pub policy: PolicyKind,
    /// How many queries may be on the GPU.
    pub limits: Limits,
    /// How queries slow each other.
    pub processors: Processors,
}

/// Tells queries where to run, and when.
#[derive(Debug)]
pub struct Schedule {
    board: Board,
    policy: Box<dyn Policy>,
    log: Vec<Entry>,
}

impl Schedule {
    /// Without queries, at time 0.
    pub fn new(config: &ScheduleConfig) -> Self {
        let policy = config.policy.policy(config.limits);
        Self { board: Board::new(config.processors), policy, log: vec![] }
    }

    /// The queries that there are.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// What has happened, in order, since it was last taken.
    pub fn take_log(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.log)
    }

    /// A query arrives.
    pub fn arrive(&mut self, now: f64, demand: Demand) -> Vec<Decision> {
        self.board.advance(now);
        let demand = demand.sound();
        self.board.arrive(demand);
        self.note(What::Arrived(demand));
        self.policy.arrived(&mut self.board, demand.id);
        self.decide()
    }

    /// A query has ended, or is given up, in whatever state it is.
    pub fn end(&mut self, now: f64, id: QueryId) -> Vec<Decision> {
        self.board.advance(now);
        if !self.board.end(id) {
            return vec![];
        }
        self.note(What::Ended(id));
        self.decide()
    }

    /// The time has come that [`Self::next_tick`] has asked for.
    pub fn tick(&mut self, now: f64) -> Vec<Decision> {
        self.board.advance(now);
        self.decide()
    }

    /// When the policy wants to be asked again, if nothing happens before.
    pub fn next_tick(&self) -> Option<f64> {
        self.policy.next_tick(&self.board)
    }

    fn decide(&mut self) -> Vec<Decision> {
        let mut decisions = self.policy.decide(&mut self.board);
        decisions.retain(|decision| match decision.action {
            Action::Start(place) => self.board.start(decision.id, place),
            Action::Move => self.board.move_to_cpu(decision.id),
        });
        decisions.iter().for_each(|decision| self.note(What::Decided(*decision)));
        decisions
    }

    fn note(&mut self, what: What) {
        self.log.push(Entry { at: self.board.now, what });
    }
}
