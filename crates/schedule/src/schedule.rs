//! The schedule of one machine.

use crate::board::Board;
use crate::limits::Limits;
use crate::log::{Entry, What};
use crate::policy::{Action, Decision, Policy, PolicyKind, Reason};
use crate::processors::Processors;
use crate::query::{Demand, Place, QueryId};
use crate::slots::{Slots, due};

/// What a schedule goes by.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleConfig {
    /// Who decides.
    pub policy: PolicyKind,
    /// How many queries may be on the GPU.
    pub limits: Limits,
    /// How queries slow each other.
    pub processors: Processors,
    /// How many queries may run at once.
    pub slots: Slots,
}

/// Tells queries where to run, and when.
#[derive(Debug)]
pub struct Schedule {
    board: Board,
    policy: Box<dyn Policy>,
    slots: Slots,
    log: Vec<Entry>,
}

impl Schedule {
    /// Without queries, at time 0.
    pub fn new(config: &ScheduleConfig) -> Self {
        let policy = config.policy.policy(config.limits);
        Self { board: Board::new(config.processors), policy, slots: config.slots, log: vec![] }
    }

    /// The queries that there are.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Changes how many queries may run at once. Those that run go on.
    pub fn set_most_running(&mut self, most: usize) {
        self.slots.most = most;
    }

    /// What has happened, in order, since it was last taken.
    pub fn take_log(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.log)
    }

    /// A query arrives.
    pub fn arrive(&mut self, now: f64, demand: Demand) -> Vec<Decision> {
        self.board.advance(now);
        let demand = demand.sound();
        self.note(What::Arrived(demand));
        if self.slots.is_brief(&self.board, &demand) {
            self.board.start_brief(demand);
            let decision = Decision { id: demand.id, action: Action::Start(Place::Cpu), reason: Reason::Brief };
            self.note(What::Decided(decision));
            return std::iter::once(decision).chain(self.decide()).collect();
        }
        self.board.arrive(demand);
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

    /// The GPU is lost. Queries that run there go on on the CPU, and those that wait start there. Queries that arrive later say for
    /// themselves whether they can use the GPU again.
    pub fn lose_gpu(&mut self, now: f64) -> Vec<Decision> {
        self.board.advance(now);
        let on_gpu: Vec<_> = self.board.at(Place::Gpu).map(|running| running.demand.id).collect();
        let mut decisions: Vec<_> = on_gpu.into_iter().map(|id| self.move_to_cpu(id, Reason::GpuLost)).collect();
        self.board.forget_gpu();
        self.policy.gpu_lost();
        decisions.extend(self.decide());
        decisions
    }

    /// A query on the GPU takes `bytes` bytes of its memory, and not what was predicted. It leaves the GPU if they do not fit beside the
    /// others there.
    pub fn correct_memory(&mut self, now: f64, id: QueryId, bytes: u64) -> Vec<Decision> {
        self.board.advance(now);
        if !self.board.correct_memory(id, bytes) {
            return vec![];
        }
        let mut decisions = vec![];
        if !self.policy.limits().allow(self.board.at(Place::Gpu).map(|running| &running.demand)) {
            decisions.push(self.move_to_cpu(id, Reason::TooLarge));
        }
        self.note(What::Corrected { id, gpu_memory: bytes });
        decisions.extend(self.decide());
        decisions
    }

    /// Moves a query off the GPU, whatever the policy says.
    fn move_to_cpu(&mut self, id: QueryId, reason: Reason) -> Decision {
        let decision = Decision { id, action: Action::Move, reason };
        self.board.move_to_cpu(id);
        self.note(What::Decided(decision));
        decision
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
        let due = due(&self.board).into_iter().map(|number| self.board.waiting[number].demand.id).collect::<Vec<_>>();
        let mut decisions = self.policy.decide(&mut self.board);
        self.keep_slots(&mut decisions, &due);
        decisions.retain(|decision| match decision.action {
            Action::Start(place) => self.board.start(decision.id, place),
            Action::Move => self.board.move_to_cpu(decision.id),
        });
        decisions.iter().for_each(|decision| self.note(What::Decided(*decision)));
        decisions
    }

    /// Leaves out starts for which there are no slots. The policy decides on these queries again. First those start that must, so that
    /// no user waits too long.
    fn keep_slots(&mut self, decisions: &mut Vec<Decision>, due: &[QueryId]) {
        let mut free = self.slots.free(&self.board);
        let board = &mut self.board;
        // Those that wait for the GPU, though they had to start, get slots to start in later.
        let is_start = |id| decisions.iter().any(|decision| decision.id == id);
        for id in due.iter().filter(|id| !is_start(**id)) {
            let waiting = board.waiting.iter_mut().find(|waiting| waiting.demand.id == *id);
            if let Some(waiting) = waiting.filter(|waiting| waiting.waits_for_gpu && free > 0) {
                waiting.has_slot = true;
                free -= 1;
            }
        }
        decisions.sort_by_key(|decision| (decision.action != Action::Move, !due.contains(&decision.id)));
        let for_gpu = decisions.iter().filter(|decision| decision.action == Action::Start(Place::Gpu)).count();
        decisions.retain(|decision| {
            let has_slot = board.waiting(decision.id).is_some_and(|waiting| waiting.has_slot);
            if decision.action == Action::Move || has_slot {
                return true;
            }
            let is_free = free > 0;
            free = free.saturating_sub(1);
            is_free
        });
        // No query leaves the GPU for one that has no slot.
        if for_gpu > 0 && decisions.iter().all(|decision| decision.action != Action::Start(Place::Gpu)) {
            decisions.retain(|decision| decision.action != Action::Move);
        }
    }

    fn note(&mut self, what: What) {
        self.log.push(Entry { at: self.board.now, what });
    }
}
