//! What the scheduler's thread, its tickets and its users share.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use datafusion::execution::memory_pool::MemoryPool;
use overspill_schedule::{
    Action, Decision, Demand, Entry, Place, QueryId, Reason, Schedule, ScheduleConfig, Slots, UserId,
};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::Scheduler;
use super::config::SchedulerConfig;
use super::grant::GrantPool;
use super::prediction::{self, History, Prediction};
use super::query::{GpuObserver, Query, QueryStatus, Signal, Stop};
use super::user::QueryUser;
use super::work::{Stoppable, Work};
use crate::memory::limit_of;

/// The least memory of a query for each of its partitions. Less has no room for buffers that cannot spill.
const LEAST_BYTES_A_PARTITION: usize = 8_000_000;

/// What the scheduler's thread, its tickets and its users share.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: SchedulerConfig,
    start: Instant,
    pub state: Mutex<State>,
    /// Something has changed that the thread may have to know.
    pub changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    schedule: Schedule,
    queries: BTreeMap<QueryId, Query>,
    /// Numbers of users with queries, and how many each has.
    users: HashMap<String, (UserId, usize)>,
    /// The numbers of the last query and user.
    last_query: u64,
    last_user: u64,
    history: History,
    log: VecDeque<Entry>,
    /// Where shares of the GPU tell what joins find.
    shared: Weak<Shared>,
    pub is_closed: bool,
}

impl Shared {
    pub fn new(config: SchedulerConfig) -> Arc<Self> {
        let schedule = Schedule::new(&ScheduleConfig {
            policy: config.policy,
            limits: config.gpu_limits,
            processors: config.processors,
            slots: Slots { most: config.most_running, brief: config.brief.as_secs_f64() },
        });
        Arc::new_cyclic(|shared| {
            let state = State {
                schedule,
                queries: BTreeMap::new(),
                users: HashMap::new(),
                last_query: 0,
                last_user: 0,
                history: History::default(),
                log: VecDeque::new(),
                shared: Weak::clone(shared),
                is_closed: false,
            };
            Self { config, start: Instant::now(), state: Mutex::new(state), changed: Condvar::new() }
        })
    }

    /// Seconds since the scheduler was made.
    pub fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// A query arrives. Returns its number, and what tells it to run.
    pub fn arrive(
        &self,
        user: QueryUser,
        prediction: Prediction,
        memory: &Arc<dyn MemoryPool>,
        partitions: usize,
    ) -> (QueryId, watch::Receiver<Signal>) {
        let mut state = self.state.lock();
        let now = self.now();
        let (demand, id, signal) = state.arrive(now, user, prediction, memory);
        let most = match limit_of(memory.as_ref()) {
            Some(limit) => self.config.most_running.min(limit / LEAST_BYTES_A_PARTITION / partitions.max(1)),
            None => self.config.most_running,
        };
        state.schedule.set_most_running(most);
        let decisions = state.schedule.arrive(now, demand);
        state.follow(&decisions);
        self.changed.notify_one();
        (id, signal)
    }

    /// A query has read all its rows.
    pub fn complete(&self, id: QueryId) {
        let state = &mut *self.state.lock();
        // A time at several places tells of neither.
        let running =
            state.schedule.board().running.iter().find(|running| running.demand.id == id && running.left == 1.0);
        if let Some((running, query)) = running.zip(state.queries.get(&id)) {
            // What it was served was counted at the last event.
            let since = (self.now() - state.schedule.board().now).max(0.0);
            let speeds = state.schedule.board().speeds();
            let speed = if running.place == Place::Cpu { speeds.cpu } else { speeds.gpu };
            state.history.add(&query.prediction, running.place, running.served + since * speed);
        }
    }

    /// A query ends, in whatever state it is.
    pub fn end(&self, id: QueryId) {
        let mut state = self.state.lock();
        let now = self.now();
        let ended = state.queries.remove(&id);
        if let Some(query) = ended {
            state.forget_user(&query.user.name);
        }
        let decisions = state.schedule.end(now, id);
        state.follow(&decisions);
        self.changed.notify_one();
    }

    /// Stops a query. Its streams end with an error, and with them it does. Returns whether it was there.
    pub fn stop(&self, id: QueryId, stop: Stop) -> bool {
        let stopped = {
            let mut state = self.state.lock();
            let now = self.now();
            state.stop(now, id, stop)
        };
        self.changed.notify_one();
        stopped.map(Work::stop).is_some()
    }

    /// Work that is stopped with a query. Returns false if the query has been stopped.
    pub fn stop_too(&self, id: QueryId, work: Weak<dyn Stoppable>) -> bool {
        let mut state = self.state.lock();
        let query = state.queries.get_mut(&id).filter(|query| !query.is_stopped());
        query.map(|query| query.work.0.push(work)).is_some()
    }

    pub fn queries(&self) -> Vec<QueryStatus> {
        let state = self.state.lock();
        let now = self.now();
        state.queries.iter().map(|(id, query)| query.status(*id, now)).collect()
    }

    pub fn log(&self) -> Vec<Entry> {
        self.state.lock().log.iter().copied().collect()
    }

    pub fn expected_grant(&self, limit: usize) -> usize {
        let running = self.state.lock().schedule.board().in_slots().count();
        limit / (running + 1).clamp(1, self.config.most_running.max(1))
    }

    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
    }
}

impl GpuObserver for Shared {
    fn build_side_read(&self, id: QueryId, rows: u64) {
        let mut state = self.state.lock();
        let now = self.now();
        let running = state.schedule.board().running.iter().find(|running| running.demand.id == id);
        let bytes = prediction::table_bytes(rows);
        // A query may have several joins, and a join several build sides, which are predicted together: fewer rows tell nothing.
        if running.is_some_and(|running| bytes > running.demand.gpu_memory) {
            let decisions = state.schedule.correct_memory(now, id, bytes);
            state.follow(&decisions);
            self.changed.notify_one();
        }
    }

    fn gpu_lost(&self) {
        let mut state = self.state.lock();
        let now = self.now();
        let decisions = state.schedule.lose_gpu(now);
        state.follow(&decisions);
        self.changed.notify_one();
    }
}

impl State {
    fn arrive(
        &mut self,
        now: f64,
        user: QueryUser,
        prediction: Prediction,
        memory: &Arc<dyn MemoryPool>,
    ) -> (Demand, QueryId, watch::Receiver<Signal>) {
        self.last_query += 1;
        let id = QueryId(self.last_query);
        let corrected = self.history.corrected(&prediction);
        let demand = Demand {
            id,
            user: self.number_user(&user.name),
            weight: user.weight,
            class: corrected.class,
            cpu: corrected.cpu,
            gpu: corrected.gpu,
            gpu_memory: corrected.gpu_memory,
        };
        let (signal, receiver) = watch::channel(Signal::Wait);
        let session_memory = Arc::clone(memory);
        let query = Query {
            user,
            prediction,
            predicted: (corrected.cpu, corrected.gpu),
            arrived: now,
            signal,
            session_memory,
            grant: None,
            place: None,
            has_left_gpu: Arc::default(),
            is_brief: false,
            work: Work::default(),
        };
        self.queries.insert(id, query);
        (demand, id, receiver)
    }

    fn number_user(&mut self, name: &str) -> UserId {
        if let Some((id, queries)) = self.users.get_mut(name) {
            *queries += 1;
            return *id;
        }
        self.last_user += 1;
        let id = UserId(self.last_user);
        self.users.insert(name.to_owned(), (id, 1));
        id
    }

    fn forget_user(&mut self, name: &str) {
        if let Some((_, queries)) = self.users.get_mut(name) {
            *queries -= 1;
            if *queries == 0 {
                self.users.remove(name);
            }
        }
    }

    /// When the thread must do something, if nothing happens before; in seconds.
    pub fn next_time(&self, config: &SchedulerConfig) -> Option<f64> {
        let limit = config.time_limit.and_then(|limit| {
            let arrivals = self.queries.values().filter(|query| !query.is_stopped()).map(|query| query.arrived);
            arrivals.min_by(f64::total_cmp).map(|arrived| arrived + limit.as_secs_f64())
        });
        // Who runs has no use for a tick.
        let tick = (!self.schedule.board().waiting.is_empty()).then(|| self.schedule.next_tick()).flatten();
        limit.into_iter().chain(tick).min_by(f64::total_cmp)
    }

    /// Does what is to be done at a time. Returns what must be stopped, without any lock.
    pub fn at(&mut self, now: f64, config: &SchedulerConfig) -> Vec<Work> {
        let mut stopped = vec![];
        if let Some(limit) = config.time_limit {
            let is_late = |query: &Query| query.arrived + limit.as_secs_f64() <= now && !query.is_stopped();
            let late: Vec<_> = self.queries.iter().filter(|(_, query)| is_late(query)).map(|(id, _)| *id).collect();
            stopped.extend(late.into_iter().filter_map(|id| self.stop(now, id, Stop::TimeLimit(limit))));
        }
        let decisions = self.schedule.tick(now);
        self.follow(&decisions);
        stopped
    }

    /// Stops a query, if it is there. Returns what must be stopped, without any lock.
    fn stop(&mut self, now: f64, id: QueryId, stop: Stop) -> Option<Work> {
        let query = self.queries.get_mut(&id)?;
        let work = query.stop(stop);
        if query.place.is_none() {
            // A waiting query leaves the schedule at once. Otherwise it could get a slot that no stream uses.
            let decisions = self.schedule.end(now, id);
            self.follow(&decisions);
        }
        Some(work)
    }

    /// Tells queries what was decided.
    fn follow(&mut self, decisions: &[Decision]) {
        for Decision { id, action, reason } in decisions {
            let Some(query) = self.queries.get_mut(id) else { continue };
            let Action::Start(place) = action else {
                query.leave_gpu();
                continue;
            };
            query.place = Some(*place);
            query.is_brief = *reason == Reason::Brief;
            query.grant = limit_of(query.session_memory.as_ref())
                .map(|limit| Arc::new(GrantPool::new(&format!("Query {}", id.0), &query.session_memory, limit)));
            let memory = query.grant.clone().map_or_else(|| Arc::clone(&query.session_memory), |grant| grant as _);
            let signal =
                Signal::Run { place: *place, reason: *reason, memory, gpu: query.share(*id, self.shared.clone()) };
            // One that was stopped meanwhile stays so.
            query.signal.send_if_modified(|before| {
                let waits = matches!(before, Signal::Wait);
                if waits {
                    *before = signal;
                }
                waits
            });
        }
        self.divide_memory();
        self.log.extend(self.schedule.take_log());
        let excess = self.log.len().saturating_sub(Scheduler::LOGGED);
        self.log.drain(..excess);
    }

    /// Divides the memory of sessions among their queries that run.
    fn divide_memory(&self) {
        let address = |memory: &Arc<dyn MemoryPool>| Arc::as_ptr(memory).cast::<()>();
        let mut sharing: HashMap<*const (), usize> = HashMap::new();
        let running = || self.queries.values().filter_map(|query| Some((query, query.grant.as_ref()?)));
        for (query, _) in running().filter(|(query, _)| !query.is_brief) {
            *sharing.entry(address(&query.session_memory)).or_default() += 1;
        }
        for (query, grant) in running() {
            let sharing = sharing.get(&address(&query.session_memory)).copied().unwrap_or(0).max(1);
            if let Some(limit) = limit_of(query.session_memory.as_ref()) {
                grant.set_limit(limit / sharing, sharing);
            }
        }
    }
}
