//! The policy of paper 5, sections 3.2 to 4.3.
//!
//! The first query that is bound for the GPU starts a round, which gathers queries for a grace period. Those that take longest on the
//! CPU are kept for the GPU, the others start on the CPU at once. When the period is over, those that were kept run on the GPU, and
//! when they have ended, the round has.
//!
//! The paper gives neither the length of the period nor how close to the longest a query must be to run beside it, so both are
//! settings. It does not say what becomes of queries that come while the GPU runs either. [`Arrivals`] has both readings.

use super::{Action, Decision, Policy, Reason};
use crate::board::Board;
use crate::limits::Limits;
use crate::query::{Demand, Place, QueryId};

/// What becomes of queries that come while the GPU runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// They wait for the next round, which gathers until the GPU has ended, and at least for its grace period.
    NextRound,
    /// They run on the CPU.
    Cpu,
}

/// What the paper leaves open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Paper5Settings {
    /// Seconds for which a round gathers queries.
    pub grace: f64,
    /// A query is close to the longest if it takes at least this share of its time on the CPU. At 1 only the longest is.
    pub close: f64,
    /// What becomes of queries that come while the GPU runs.
    pub arrivals: Arrivals,
}

impl Default for Paper5Settings {
    fn default() -> Self {
        Self { grace: 0.1, close: 0.5, arrivals: Arrivals::NextRound }
    }
}

impl Paper5Settings {
    /// The settings that are tried where the paper's policy is to be at its best.
    pub fn to_try() -> impl Iterator<Item = Self> {
        let graces = [0.0, 0.1, 0.5, 2.0].into_iter();
        let with = |grace| [0.1, 0.3, 0.5, 0.8, 1.0].into_iter().map(move |close| (grace, close));
        graces.flat_map(with).flat_map(|(grace, close)| {
            [Arrivals::NextRound, Arrivals::Cpu].map(|arrivals| Self { grace, close, arrivals })
        })
    }
}

/// The state of the rounds.
#[derive(Debug)]
pub(super) struct Paper5 {
    settings: Paper5Settings,
    limits: Limits,
    /// The queries that the round keeps for the GPU, the longest first.
    queue: Vec<Demand>,
    /// When its grace period ends.
    gathers_until: Option<f64>,
    /// Those that were turned away, and start on the CPU.
    to_cpu: Vec<(QueryId, Reason)>,
    /// Those whose turn on the GPU has come.
    to_gpu: Vec<QueryId>,
}

impl Paper5 {
    pub fn new(settings: Paper5Settings, limits: Limits) -> Self {
        Self { settings, limits, queue: vec![], gathers_until: None, to_cpu: vec![], to_gpu: vec![] }
    }

    /// Compares a query with those of the round by their time on the CPU, and turns all but the longest away.
    fn gather(&mut self, demand: Demand) {
        let place = self.queue.partition_point(|other| other.cpu >= demand.cpu);
        self.queue.insert(place, demand);
        let least = self.settings.close * self.queue[0].cpu;
        let mut kept: Vec<Demand> = vec![];
        for query in std::mem::take(&mut self.queue) {
            let is_close = kept.is_empty() || query.cpu >= least;
            if is_close && self.limits.allow(kept.iter().chain([&query])) {
                kept.push(query);
            } else {
                self.to_cpu.push((query.id, Reason::Shorter));
            }
        }
        self.queue = kept;
    }
}

impl Policy for Paper5 {
    fn arrived(&mut self, board: &mut Board, id: QueryId) {
        let Some(demand) = board.waiting(id).map(|waiting| waiting.demand) else { return };
        if demand.gpu.is_none() || !self.limits.allow([demand].iter()) {
            self.to_cpu.push((id, Reason::Only));
        } else if self.settings.arrivals == Arrivals::Cpu && board.at(Place::Gpu).next().is_some() {
            self.to_cpu.push((id, Reason::Shorter));
        } else {
            self.gathers_until.get_or_insert(board.now + self.settings.grace);
            self.gather(demand);
        }
    }

    fn gpu_lost(&mut self) {
        self.gathers_until = None;
        let queued = self.queue.drain(..).map(|query| query.id).chain(self.to_gpu.drain(..));
        self.to_cpu.extend(queued.map(|id| (id, Reason::GpuLost)));
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn decide(&mut self, board: &mut Board) -> Vec<Decision> {
        let start = |id, place, reason| Decision { id, action: Action::Start(place), reason };
        // Some have started, or were given up.
        self.to_cpu.retain(|(id, _)| board.waiting(*id).is_some());
        self.to_gpu.retain(|id| board.waiting(*id).is_some());
        self.queue.retain(|query| board.waiting(query.id).is_some());
        let has_gathered = self.gathers_until.is_some_and(|until| until <= board.now);
        if has_gathered && self.to_gpu.is_empty() && board.at(Place::Gpu).next().is_none() {
            self.gathers_until = None;
            self.to_gpu.extend(self.queue.drain(..).map(|query| query.id));
        }
        let to_cpu = self.to_cpu.iter().map(|(id, reason)| start(*id, Place::Cpu, *reason));
        // One there may take more memory than it was predicted to when the round was made.
        let mut on_gpu: Vec<_> = board.at(Place::Gpu).map(|running| running.demand).collect();
        let to_gpu = self.to_gpu.iter().filter_map(|id| board.waiting(*id)).filter(|waiting| {
            let fits = self.limits.allow(on_gpu.iter().chain([&waiting.demand]));
            on_gpu.extend(fits.then_some(waiting.demand));
            fits
        });
        let to_gpu = to_gpu.map(|waiting| start(waiting.demand.id, Place::Gpu, Reason::Turn));
        to_cpu.chain(to_gpu).collect()
    }

    fn next_tick(&self, board: &Board) -> Option<f64> {
        self.gathers_until.filter(|until| *until > board.now)
    }
}
