//! Our policy: whatever makes the sum of all turnarounds least, as far as predictions tell.
//!
//! At each event it plans for every waiting query where it runs, and whether it starts now or queues up, shortest first. A
//! [forecast] tells when all would end. The plan begins with simple ones, and is improved query by query ([search]). Then those
//! queries start whose turn it is. A query on the GPU may be moved to the CPU, which leaves the GPU to one that gains more by it.
//!
//! Shortest-first alone would let long queries wait forever. Two bounds hold for every plan ([fairness]): a query waits for the GPU at
//! most as long as it would take on the CPU, and the first query of each user starts after at most as many query ends as users waited.

mod fairness;
mod forecast;
mod search;

use super::{Action, Decision, Policy, Reason};
use crate::board::{Board, Waiting};
use crate::limits::Limits;
use crate::query::Place;
use crate::slots::due;
use forecast::{Choice, Forecast};

/// The settings of our policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverspillSettings {
    /// Whether queries are moved off the GPU.
    pub moves: bool,
    /// The most waiting queries that are planned at once; more wait as if they had not come.
    pub most_planned: usize,
}

impl Default for OverspillSettings {
    fn default() -> Self {
        Self { moves: true, most_planned: 24 }
    }
}

/// The policy.
#[derive(Debug)]
pub(super) struct Overspill {
    settings: OverspillSettings,
    limits: Limits,
}

impl Overspill {
    pub fn new(settings: OverspillSettings, limits: Limits) -> Self {
        Self { settings, limits }
    }

    /// The queries to plan: those that must start now, then the shortest.
    fn planned(&self, board: &Board, due: &[usize]) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..board.waiting.len()).collect();
        let most = self.settings.most_planned.max(due.len());
        if numbers.len() > most {
            let key = |number: &usize| {
                let demand = &board.waiting[*number].demand;
                let shortest = demand.cpu.min(demand.seconds(Place::Gpu)) / board.weight(demand);
                (!due.contains(number), shortest)
            };
            numbers.sort_by(|one, other| {
                let ((one_waits, one), (other_waits, other)) = (key(one), key(other));
                one_waits.cmp(&other_waits).then(one.total_cmp(&other))
            });
            numbers.truncate(most);
            numbers.sort_unstable();
        }
        numbers
    }

    /// What may become of a waiting query.
    fn choices(&self, waiting: &Waiting, is_due: bool) -> Vec<Choice> {
        let mut choices = vec![Choice { place: Place::Cpu, now: true }];
        if !is_due {
            choices.push(Choice { place: Place::Cpu, now: false });
        }
        if waiting.demand.gpu.is_some() && self.limits.allow([waiting.demand].iter()) {
            choices.push(Choice { place: Place::Gpu, now: true });
            // The wait for the GPU has a bound of its own.
            if fairness::may_wait_for_gpu(waiting) {
                choices.push(Choice { place: Place::Gpu, now: false });
            }
        }
        choices
    }
}

impl Policy for Overspill {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn decide(&mut self, board: &mut Board) -> Vec<Decision> {
        let mut due = due(board);
        due.extend((0..board.waiting.len()).filter(|number| board.waiting[*number].has_slot));
        if due.is_empty() && !fairness::is_time_to_plan(board) {
            return vec![];
        }
        for waiting in &mut board.waiting {
            waiting.waits_for_gpu = false;
        }
        let numbers = self.planned(board, &due);
        let choices = numbers.iter().map(|number| self.choices(&board.waiting[*number], due.contains(number)));
        let choices: Vec<_> = choices.collect();
        let forecast = Forecast::new(board, &numbers, self.limits);
        let plan = search::best(&forecast, &choices, self.settings.moves);
        let mut decisions = vec![];
        let gpu = board.at(Place::Gpu).collect::<Vec<_>>();
        for (running, is_moved) in gpu.iter().zip(&plan.moved) {
            if *is_moved {
                decisions.push(Decision { id: running.demand.id, action: Action::Move, reason: Reason::Sooner });
            }
        }
        let starts = forecast.starts(&plan);
        for (job, number) in numbers.iter().enumerate() {
            let demand = board.waiting[*number].demand;
            let place = plan.choices[job].place;
            if starts.contains(&job) {
                let reason = match (demand.gpu, due.contains(number)) {
                    (None, _) => Reason::Only,
                    (_, true) => Reason::WaitedEnough,
                    _ => Reason::Sooner,
                };
                decisions.push(Decision { id: demand.id, action: Action::Start(place), reason });
            }
        }
        for (job, number) in numbers.iter().enumerate() {
            // One that starts may find no slot. Then it waits for that.
            board.waiting[*number].waits_for_gpu = plan.choices[job].place == Place::Gpu && !starts.contains(&job);
        }
        decisions
    }

    fn next_tick(&self, board: &Board) -> Option<f64> {
        fairness::next_tick(board)
    }
}
