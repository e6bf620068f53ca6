//! The queries that there are.

use std::collections::HashMap;

use crate::processors::Processors;
use crate::query::{Demand, Place, QueryId, UserId};

/// A query that has not started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    /// What it asks for.
    pub demand: Demand,
    /// When it arrived.
    pub since: f64,
    /// How long it has waited for the GPU: for that time, its plan was to run there.
    pub for_gpu: f64,
    /// Whether that is its plan now.
    pub waits_for_gpu: bool,
    /// If it is the first of its user's queue: the number of the query end at which it starts at the latest.
    pub deadline: Option<u64>,
    /// Whether it has a slot to run in, because it had to start and waits for the GPU.
    pub has_slot: bool,
}

/// A query that runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Running {
    /// What it asks for.
    pub demand: Demand,
    /// Where it runs.
    pub place: Place,
    /// When it started there.
    pub since: f64,
    /// Seconds of the place's full speed that it has had there.
    pub served: f64,
    /// What was left when it started there, as a share of what was predicted of the whole query: 1 unless it was moved.
    pub left: f64,
    /// Whether it is so short that it takes no slot.
    pub is_brief: bool,
}

/// A query is overdue once it has run for this multiple of its predicted time. Before that, the forecast assumes that it ends soon.
const OVERDUE: f64 = 1.05;

/// The least share of its predicted time that the forecast assumes a query still needs, as long as it is not overdue.
const ENDING: f64 = 0.01;

/// The forecast assumes that an overdue query goes on for this share of the time that it has run.
const GOES_ON: f64 = 0.5;

impl Running {
    /// Seconds at the place's full speed that it was predicted to need there.
    fn predicted(&self) -> f64 {
        self.demand.seconds(self.place) * self.left
    }

    /// Seconds at the place's full speed that it still needs, as far as the prediction tells.
    pub fn remaining(&self) -> f64 {
        let all = self.predicted();
        if self.is_overdue() { GOES_ON * self.served } else { (all - self.served).max(ENDING * all) }
    }

    /// What it still needs, as a share of what was predicted of the whole query. It may be more than 1: a query that is overdue has more to
    /// do than was predicted, at any place.
    pub fn share_left(&self) -> f64 {
        self.remaining() / self.demand.seconds(self.place)
    }

    /// Whether it has run for longer than predicted.
    pub fn is_overdue(&self) -> bool {
        self.served >= OVERDUE * self.predicted()
    }

    /// Seconds at full speed until it is overdue, or until it is by half as long again.
    pub(crate) fn until_overdue(&self) -> f64 {
        let mut next = OVERDUE * self.predicted();
        while next <= self.served * (1.0 + 1e-9) {
            next *= 1.0 + GOES_ON;
        }
        next - self.served
    }
}

/// The speed of each query at a place, where 1 is that of one alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    /// Of those on the CPU.
    pub cpu: f64,
    /// Of those on the GPU.
    pub gpu: f64,
}

/// The queries that there are, and the time.
#[derive(Debug, Clone)]
pub struct Board {
    /// The time of the last event.
    pub now: f64,
    /// In the order of arrival.
    pub waiting: Vec<Waiting>,
    /// In the order of their starts.
    pub running: Vec<Running>,
    /// How many queries have ended after they started, without brief ones.
    pub ends: u64,
    /// How queries slow each other.
    pub processors: Processors,
    /// How many queries each user has here, without brief ones.
    users: HashMap<UserId, usize>,
}

impl Board {
    /// Without queries, at time 0.
    pub fn new(processors: Processors) -> Self {
        Self { now: 0.0, waiting: vec![], running: vec![], ends: 0, processors, users: HashMap::new() }
    }

    /// Those that run at a place.
    pub fn at(&self, place: Place) -> impl Iterator<Item = &Running> + Clone {
        self.running.iter().filter(move |running| running.place == place)
    }

    /// Those that run in slots: all but brief ones.
    pub fn in_slots(&self) -> impl Iterator<Item = &Running> + Clone {
        self.running.iter().filter(|running| !running.is_brief)
    }

    /// How much the turnaround of a query counts: its queries share what a user counts.
    pub(crate) fn weight(&self, demand: &Demand) -> f64 {
        demand.weight / self.users.get(&demand.user).copied().unwrap_or(1) as f64
    }

    /// How many slots are taken.
    pub(crate) fn taken_slots(&self) -> usize {
        self.in_slots().count() + self.waiting.iter().filter(|waiting| waiting.has_slot).count()
    }

    /// How fast the queries that run are.
    pub fn speeds(&self) -> Speeds {
        Speeds {
            cpu: self.processors.cpu_speed(self.at(Place::Cpu).count()),
            gpu: self.processors.gpu_speed(self.at(Place::Gpu).map(|running| running.demand.class)),
        }
    }

    /// The waiting query of this number.
    pub fn waiting(&self, id: QueryId) -> Option<&Waiting> {
        self.waiting.iter().find(|waiting| waiting.demand.id == id)
    }

    /// The number of users with a query that waits.
    pub fn waiting_users(&self) -> usize {
        self.waiting.iter().filter(|waiting| waiting.deadline.is_some()).count()
    }

    /// Goes on to a time. One that is before the last, or no number, is the last: a clock may jump.
    pub(crate) fn advance(&mut self, now: f64) {
        let elapsed = (now - self.now).max(0.0);
        if elapsed.is_finite() {
            self.now += elapsed;
            let speeds = self.speeds();
            for running in &mut self.running {
                running.served += elapsed * if running.place == Place::Cpu { speeds.cpu } else { speeds.gpu };
            }
            for waiting in self.waiting.iter_mut().filter(|waiting| waiting.waits_for_gpu) {
                waiting.for_gpu += elapsed;
            }
        }
    }

    pub(crate) fn arrive(&mut self, demand: Demand) {
        let waiting =
            Waiting { demand, since: self.now, for_gpu: 0.0, waits_for_gpu: false, deadline: None, has_slot: false };
        self.waiting.push(waiting);
        *self.users.entry(demand.user).or_default() += 1;
        self.name_head(demand.user);
    }

    /// Removes a query, wherever it is. Returns whether it was there.
    pub(crate) fn end(&mut self, id: QueryId) -> bool {
        let Some(place) = self.running.iter().position(|running| running.demand.id == id) else {
            let taken = self.take(id);
            taken.inspect(|waiting| self.forget(waiting.demand.user));
            return taken.is_some();
        };
        let ended = self.running.remove(place);
        if !ended.is_brief {
            self.ends += 1;
            self.forget(ended.demand.user);
        }
        true
    }

    /// A query of the user has gone.
    fn forget(&mut self, user: UserId) {
        if let Some(queries) = self.users.get_mut(&user) {
            *queries -= 1;
            if *queries == 0 {
                self.users.remove(&user);
            }
        }
    }

    pub(crate) fn start(&mut self, id: QueryId, place: Place) -> bool {
        let taken = self.take(id);
        let demand = taken.map(|waiting| waiting.demand);
        self.running.extend(demand.map(|demand| self.starting(demand, place)));
        demand.is_some()
    }

    /// Starts a query that takes no slot and has not waited.
    pub(crate) fn start_brief(&mut self, demand: Demand) {
        self.running.push(Running { is_brief: true, ..self.starting(demand, Place::Cpu) });
    }

    fn starting(&self, demand: Demand, place: Place) -> Running {
        Running { demand, place, since: self.now, served: 0.0, left: 1.0, is_brief: false }
    }

    /// Moves a query off the GPU. Returns whether it was there.
    pub(crate) fn move_to_cpu(&mut self, id: QueryId) -> bool {
        let now = self.now;
        let on_gpu = self.running.iter_mut().find(|running| running.demand.id == id && running.place == Place::Gpu);
        let Some(running) = on_gpu else { return false };
        (running.left, running.served, running.since) = (running.share_left(), 0.0, now);
        running.place = Place::Cpu;
        true
    }

    /// No query that waits can use the GPU any more.
    pub(crate) fn forget_gpu(&mut self) {
        for waiting in &mut self.waiting {
            (waiting.demand.gpu, waiting.waits_for_gpu) = (None, false);
        }
    }

    /// A query on the GPU takes other GPU memory than was predicted. Returns whether it is there.
    pub(crate) fn correct_memory(&mut self, id: QueryId, bytes: u64) -> bool {
        let on_gpu = self.running.iter_mut().find(|running| running.demand.id == id && running.place == Place::Gpu);
        on_gpu.map(|running| running.demand.gpu_memory = bytes).is_some()
    }

    /// Takes a query out of its queue.
    fn take(&mut self, id: QueryId) -> Option<Waiting> {
        let place = self.waiting.iter().position(|waiting| waiting.demand.id == id)?;
        let taken = self.waiting.remove(place);
        self.name_head(taken.demand.user);
        Some(taken)
    }

    /// Gives the first query of a user's queue its deadline, if it has none: as many query ends as users wait.
    fn name_head(&mut self, user: UserId) {
        let users = self.waiting_users() as u64;
        let first = self.waiting.iter_mut().find(|waiting| waiting.demand.user == user);
        if let Some(first) = first.filter(|first| first.deadline.is_none()) {
            first.deadline = Some(self.ends + users + 1);
        }
    }
}
