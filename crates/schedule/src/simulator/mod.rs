//! A machine in virtual time, on which schedules run mixes of queries.
//!
//! The GPU is shared by its queries as [`Processors`] says, and so is the CPU. A query takes a true time. The schedule sees a
//! predicted one, which may differ.

mod bound;
mod mix;
mod optimum;

use std::collections::HashMap;

pub use bound::{least_mean, least_overall};
pub use mix::{ArrivalPattern, Mix, MixConfig, PredictionError, SimulatedQuery};
pub use optimum::least_mean_turnaround;

use crate::log::Entry;
use crate::policy::{Action, Decision};
use crate::processors::Processors;
use crate::query::{Place, QueryId};
use crate::schedule::{Schedule, ScheduleConfig};

/// What has become of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Seconds from arrival to end, of each query.
    pub turnarounds: Vec<f64>,
    /// Seconds from the first arrival to the last end.
    pub overall: f64,
    /// What the schedule has noted.
    pub log: Vec<Entry>,
}

impl Outcome {
    /// The mean turnaround.
    pub fn mean(&self) -> f64 {
        self.turnarounds.iter().sum::<f64>() / self.turnarounds.len().max(1) as f64
    }

    /// How many times as long as alone at its better place the query took that was slowed most.
    pub fn worst_slowdown(&self, mix: &Mix) -> f64 {
        let slowdowns =
            self.turnarounds.iter().zip(&mix.queries).map(|(turnaround, query)| turnaround / query.cpu.min(query.gpu));
        slowdowns.fold(0.0, f64::max)
    }
}

/// A query that runs.
#[derive(Debug, Clone, Copy)]
struct Running {
    place: Place,
    /// Seconds at full speed that it needs.
    remaining: f64,
}

/// The machine while it runs a mix.
struct Simulation<'a> {
    mix: &'a Mix,
    processors: Processors,
    schedule: Schedule,
    now: f64,
    running: HashMap<QueryId, Running>,
    ends: HashMap<QueryId, f64>,
}

/// Runs a mix with a schedule. The machine is as the schedule believes.
///
/// # Panics
/// If the schedule leaves queries waiting though nothing runs, which is a fault of a policy.
pub fn run(mix: &Mix, config: &ScheduleConfig) -> Outcome {
    let schedule = Schedule::new(config);
    let (running, ends) = (HashMap::new(), HashMap::new());
    let mut simulation = Simulation { mix, processors: config.processors, schedule, now: 0.0, running, ends };
    simulation.run();
    let Simulation { ends, mut schedule, .. } = simulation;
    let end = |query: &SimulatedQuery| ends[&query.demand.id];
    let first = mix.queries.iter().map(|query| query.arrival).fold(f64::INFINITY, f64::min);
    Outcome {
        turnarounds: mix.queries.iter().map(|query| end(query) - query.arrival).collect(),
        overall: mix.queries.iter().map(end).fold(first, f64::max) - first,
        log: schedule.take_log(),
    }
}

impl Simulation<'_> {
    fn run(&mut self) {
        let mut arrivals = self.mix.queries.iter().peekable();
        while self.ends.len() < self.mix.queries.len() {
            let end = self.next_end();
            let arrival = arrivals.peek().map(|query| query.arrival);
            let tick = self.schedule.next_tick().map(|tick| tick.max(self.now));
            let next = [end.map(|(at, _)| at), arrival, tick].into_iter().flatten().min_by(f64::total_cmp);
            let Some(next) = next else {
                panic!("{} queries wait for nothing", self.mix.queries.len() - self.ends.len())
            };
            self.advance(next);
            let decisions = match (end, arrival) {
                (Some((at, id)), _) if at <= next => {
                    self.running.remove(&id);
                    self.ends.insert(id, next);
                    self.schedule.end(next, id)
                }
                (_, Some(at)) if at <= next => {
                    arrivals.next().map(|query| self.schedule.arrive(next, query.demand)).unwrap_or_default()
                }
                _ => self.schedule.tick(next),
            };
            self.follow(&decisions);
        }
    }

    fn follow(&mut self, decisions: &[Decision]) {
        for Decision { id, action, .. } in decisions {
            let query = &self.mix.queries[id.0 as usize];
            match action {
                Action::Start(place) => {
                    let remaining = if *place == Place::Cpu { query.cpu } else { query.gpu };
                    self.running.insert(*id, Running { place: *place, remaining });
                }
                Action::Move => {
                    if let Some(running) = self.running.get_mut(id) {
                        // A unit of work that has begun is done again.
                        let left = (running.remaining / query.gpu + self.mix.move_cost).min(1.0);
                        *running = Running { place: Place::Cpu, remaining: left * query.cpu };
                    }
                }
            }
        }
    }

    /// The speed of a query at each place.
    fn speeds(&self) -> [f64; 2] {
        let at = |place| self.running.iter().filter(move |(_, running)| running.place == place);
        let classes = at(Place::Gpu).map(|(id, _)| self.mix.queries[id.0 as usize].demand.class);
        [self.processors.cpu_speed(at(Place::Cpu).count()), self.processors.gpu_speed(classes)]
    }

    fn next_end(&self) -> Option<(f64, QueryId)> {
        let speeds = self.speeds();
        let ends = self.running.iter().map(|(id, running)| {
            (self.now + running.remaining / speeds[usize::from(running.place == Place::Gpu)], *id)
        });
        ends.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))
    }

    fn advance(&mut self, to: f64) {
        let (speeds, elapsed) = (self.speeds(), (to - self.now).max(0.0));
        for running in self.running.values_mut() {
            running.remaining -= elapsed * speeds[usize::from(running.place == Place::Gpu)];
        }
        self.now = to;
    }
}
