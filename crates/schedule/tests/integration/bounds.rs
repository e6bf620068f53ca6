//! What holds for any events, whatever they are.

use std::collections::HashMap;

use overspill_schedule::{
    Action, Arrivals, Class, CoRun, Cpu, Decision, Demand, Limits, Paper5Settings, Place, PolicyKind, Processors,
    QueryId, Reason, Schedule, ScheduleConfig, Slots, UserId, check,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const LIMITS: Limits = Limits { memory: 100, ..Limits::PAPER };

fn demand(random: &mut ChaCha8Rng, id: u64) -> Demand {
    let odd = [0.0, f64::NAN, f64::INFINITY, -1.0, 1e-30, 1e30];
    let mut seconds = |least: f64, most: f64| match random.random_range(0..60) {
        0 => *odd.choose(random).unwrap(),
        _ => random.random_range(least.ln()..most.ln()).exp(),
    };
    let (cpu, gpu) = (seconds(0.01, 30.0), seconds(0.01, 30.0));
    Demand {
        id: QueryId(id),
        user: UserId(random.random_range(0..6)),
        weight: *[1.0, 1.0, 1.0, 5.0, f64::NAN].choose(random).unwrap(),
        class: *[Class::Join, Class::Aggregate, Class::Both].choose(random).unwrap(),
        cpu,
        gpu: random.random_bool(0.9).then_some(gpu),
        gpu_memory: random.random_range(0..120),
    }
}

/// Of each waiting query, at how many query ends it was there as the first of its user, how many users waited when it became that, and
/// how long it waited for the GPU.
#[derive(Debug, Default)]
struct Bounds {
    heads: HashMap<QueryId, (u64, u64)>,
    /// The users that waited after the event before.
    users: u64,
    starts: usize,
    for_gpu: f64,
}

impl Bounds {
    /// Compares with the state after an event.
    fn check(&mut self, schedule: &Schedule, decisions: &[Decision], what: &str) {
        let board = schedule.board();
        self.starts += decisions.iter().filter(|decision| matches!(decision.action, Action::Start(_))).count();
        for waiting in &board.waiting {
            let (id, limit) = (waiting.demand.id, waiting.demand.cpu);
            // A jump of the clock may exceed the bound. The policy must end the wait at the first event after it.
            let waits = waiting.waits_for_gpu && waiting.for_gpu > limit * 1.001 + 1e-6;
            assert!(!waits, "{what}: {id:?} has waited {} s for the GPU, and goes on", waiting.for_gpu);
            self.for_gpu = self.for_gpu.max(waiting.for_gpu.min(limit));
        }
        let mut first = HashMap::new();
        for waiting in &board.waiting {
            first.entry(waiting.demand.user).or_insert(waiting);
        }
        let users = first.len() as u64;
        // It became the first while those of before may still have waited.
        let before = std::mem::replace(&mut self.users, users);
        let users = users.max(before);
        self.heads.retain(|id, _| first.values().any(|waiting| waiting.demand.id == *id));
        for waiting in first.into_values() {
            let (since, allowed) = *self.heads.entry(waiting.demand.id).or_insert((board.ends, users));
            let ends = board.ends - since;
            // Who waits for the GPU does so by its own bound.
            assert!(
                waiting.waits_for_gpu || ends <= allowed,
                "{what}: the first query of {:?} has seen {ends} ends, with {allowed} users",
                waiting.demand.user
            );
        }
    }
}

fn random_events(
    policy: PolicyKind,
    slots: Slots,
    events: usize,
    seed: u64,
    mut each: impl FnMut(&Schedule, &[Decision], &str),
) -> Schedule {
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let cpu = if seed.is_multiple_of(2) { Cpu::Shared } else { Cpu::CoreEach(6) };
    let processors = Processors { cpu, co_run: CoRun::default() };
    let mut schedule = Schedule::new(&ScheduleConfig { policy, limits: LIMITS, processors, slots });
    let mut now = 0.0;
    for event in 0..events {
        let what = format!("{}, seed {seed}, event {event}", policy.name());
        let (waiting, running) = (schedule.board().waiting.len(), schedule.board().running.len());
        let decisions = match random.random_range(0..100) {
            0..40 if waiting + running < 40 => schedule.arrive(now, demand(random, event as u64)),
            // One that waits is given up.
            40..43 if waiting > 0 => {
                let id = schedule.board().waiting[random.random_range(0..waiting)].demand.id;
                schedule.end(now, id)
            }
            43..50 => schedule.end(now, QueryId(u64::MAX)),
            50 => schedule.lose_gpu(now),
            51..54 if running > 0 => {
                let id = schedule.board().running[random.random_range(0..running)].demand.id;
                schedule.correct_memory(now, id, random.random_range(0..120))
            }
            54..85 if running > 0 => {
                let id = schedule.board().running[random.random_range(0..running)].demand.id;
                schedule.end(now, id)
            }
            _ => {
                let tick = schedule.next_tick();
                now = match random.random_range(0..20) {
                    // The clock jumps.
                    0 => now + 3600.0,
                    1 => f64::NAN,
                    2 => now - 100.0,
                    _ => tick.unwrap_or(now + 0.5),
                };
                let decisions = schedule.tick(now);
                now = schedule.board().now;
                decisions
            }
        };
        each(&schedule, &decisions, &what);
    }
    schedule
}

const POLICIES: [PolicyKind; 3] = [
    PolicyKind::FirstCome,
    PolicyKind::Paper5(Paper5Settings { grace: 0.1, close: 0.3, arrivals: Arrivals::NextRound }),
    PolicyKind::Paper5(Paper5Settings { grace: 0.0, close: 0.3, arrivals: Arrivals::Cpu }),
];

const SLOTS: Slots = Slots { most: 4, brief: 0.05 };

/// No limit of queries at once, or one.
fn some_slots(seed: u64) -> Slots {
    match seed % 3 {
        0 => Slots::ALL,
        1 => SLOTS,
        _ => Slots { most: 1 + seed as usize % 7, ..SLOTS },
    }
}

fn ours() -> PolicyKind {
    PolicyKind::Overspill(Default::default())
}

/// `OVERSPILL_TEST_CASES` is the number of thousands of events.
#[test]
fn waits_are_bounded_whatever_comes() {
    let thousands = std::env::var("OVERSPILL_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(15_u64);
    let (mut starts, mut longest) = (0, 0.0_f64);
    for seed in 0..thousands {
        let slots = some_slots(seed);
        let mut bounds = Bounds::default();
        let mut schedule = random_events(ours(), slots, 1000, seed, |schedule, decisions, what| {
            bounds.check(schedule, decisions, what)
        });
        check(&schedule.take_log(), &LIMITS, slots.most).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        (starts, longest) = (starts + bounds.starts, longest.max(bounds.for_gpu));
    }
    assert!(starts as u64 > thousands * 100 && longest > 1.0, "{starts} starts, at most {longest} s");
}

#[test]
fn limits_and_states_are_kept_whatever_comes() {
    for policy in POLICIES {
        for seed in 0..30 {
            let slots = some_slots(seed);
            let mut schedule = random_events(policy, slots, 1000, seed, |_, _, _| ());
            let log = schedule.take_log();
            check(&log, &LIMITS, slots.most).unwrap_or_else(|error| panic!("{}, seed {seed}: {error}", policy.name()));
            assert!(log.len() > 500);
        }
    }
}

#[test]
fn a_thousand_queries_at_once_all_end() {
    let random = &mut ChaCha8Rng::seed_from_u64(7);
    for policy in POLICIES.into_iter().chain([ours(), PolicyKind::AllCpu, PolicyKind::AllGpu]) {
        let processors = Processors { cpu: Cpu::Shared, co_run: CoRun::default() };
        let mut schedule = Schedule::new(&ScheduleConfig { policy, limits: LIMITS, processors, slots: Slots::ALL });
        for id in 0..1000 {
            schedule.arrive(0.0, demand(random, id));
        }
        for _ in 0..3000 {
            if schedule.board().running.is_empty() {
                let Some(tick) = schedule.next_tick() else { break };
                schedule.tick(tick);
            }
            let Some(id) = schedule.board().running.first().map(|running| running.demand.id) else { continue };
            schedule.end(schedule.board().now + 0.1, id);
        }
        let board = schedule.board();
        let left = (board.waiting.len(), board.running.len());
        assert_eq!((left, board.ends), ((0, 0), 1000), "{}", policy.name());
    }
}

/// A checker that sees no faults would be of no use.
#[test]
fn broken_logs_are_found() {
    let mut schedule = random_events(POLICIES[0], SLOTS, 400, 1, |_, _, _| ());
    let log = schedule.take_log();
    assert_eq!(check(&log, &LIMITS, SLOTS.most), Ok(()));
    let place =
        |wanted: fn(&overspill_schedule::What) -> bool| log.iter().position(|entry| wanted(&entry.what)).unwrap();
    use overspill_schedule::What::{Arrived, Corrected, Decided, Ended};
    let started = place(|what| matches!(what, Decided(Decision { action: Action::Start(Place::Gpu), .. })));
    for fault in 0..6 {
        let mut log = log.clone();
        match fault {
            0 => log.insert(started, log[started]),
            1 => drop(log.remove(place(|what| matches!(what, Arrived(_))))),
            2 => log.insert(started, log[place(|what| matches!(what, Ended(_)))]),
            3 => log[started].at = f64::MAX,
            // It takes more than there is.
            4 => {
                let Decided(Decision { id, .. }) = log[started].what else { panic!("{started}") };
                let what = Corrected { id, gpu_memory: LIMITS.memory + 1 };
                log.insert(started + 1, overspill_schedule::Entry { what, ..log[started] });
            }
            _ => {
                let last = log.last().unwrap().at;
                let of_all = (0..5_u64).flat_map(|number| {
                    let id = QueryId(u64::MAX - number);
                    let (user, gpu) = (UserId(number), Some(1.0));
                    let demand = Demand { id, user, weight: 1.0, class: Class::Join, cpu: 1.0, gpu, gpu_memory: 0 };
                    let start = Decision { id, action: Action::Start(Place::Gpu), reason: Reason::Turn };
                    [Arrived(demand), Decided(start)].map(|what| overspill_schedule::Entry { at: last, what })
                });
                log.extend(of_all);
            }
        }
        assert!(check(&log, &LIMITS, SLOTS.most).is_err(), "fault {fault} is not found");
    }
    // The limit is one less.
    let less = Limits { joins: LIMITS.joins - 1, both: LIMITS.both - 1, ..LIMITS };
    assert!(check(&log, &less, SLOTS.most).unwrap_err().contains("exceeded"));
    assert!(check(&log, &LIMITS, SLOTS.most - 1).unwrap_err().contains("queries run"));
}

#[test]
fn what_is_on_a_lost_gpu_or_waits_for_it_runs_on_the_cpu() {
    for policy in POLICIES.into_iter().chain([ours(), PolicyKind::AllGpu]) {
        let processors = Processors { cpu: Cpu::Shared, co_run: CoRun::default() };
        let mut schedule = Schedule::new(&ScheduleConfig { policy, limits: LIMITS, processors, slots: Slots::ALL });
        for id in 0..8 {
            let (user, class) = (UserId(id), Class::Join);
            let demand =
                Demand { id: QueryId(id), user, weight: 1.0, class, cpu: 10.0, gpu: Some(1.0), gpu_memory: 30 };
            schedule.arrive(0.0, demand);
        }
        while let Some(tick) = schedule.next_tick().filter(|tick| *tick < 0.2) {
            schedule.tick(tick);
        }
        let on_gpu = schedule.board().at(Place::Gpu).count();
        assert!(on_gpu > 0, "{}", policy.name());
        let decisions = schedule.lose_gpu(0.5);
        let moved = decisions.iter().filter(|decision| decision.action == Action::Move);
        assert_eq!(moved.filter(|decision| decision.reason == Reason::GpuLost).count(), on_gpu, "{}", policy.name());
        let mut now = 0.5;
        while !schedule.board().running.is_empty() {
            assert_eq!(schedule.board().at(Place::Gpu).count(), 0, "{}", policy.name());
            let id = schedule.board().running[0].demand.id;
            now += 1.0;
            schedule.end(now, id);
        }
        assert_eq!(schedule.board().waiting, [], "{}", policy.name());
    }
}

#[test]
fn a_query_that_takes_more_gpu_memory_than_there_is_leaves_the_gpu() {
    let policy = PolicyKind::FirstCome;
    let processors = Processors { cpu: Cpu::Shared, co_run: CoRun::default() };
    let mut schedule = Schedule::new(&ScheduleConfig { policy, limits: LIMITS, processors, slots: Slots::ALL });
    let demand = |id, gpu_memory| {
        let (user, class) = (UserId(id), Class::Join);
        Demand { id: QueryId(id), user, weight: 1.0, class, cpu: 10.0, gpu: Some(1.0), gpu_memory }
    };
    schedule.arrive(0.0, demand(0, 60));
    schedule.arrive(0.0, demand(1, 30));
    assert!(schedule.arrive(0.0, demand(2, 30)).is_empty());
    // There is room for the third once the first turns out to be smaller.
    let decisions = schedule.correct_memory(1.0, QueryId(0), 40);
    assert_eq!(
        decisions.iter().map(|decision| (decision.id.0, decision.reason)).collect::<Vec<_>>(),
        [(2, Reason::Turn)]
    );
    let decisions = schedule.correct_memory(2.0, QueryId(1), 31);
    assert_eq!(decisions, [Decision { id: QueryId(1), action: Action::Move, reason: Reason::TooLarge }]);
    // It is not there any more.
    assert!(schedule.correct_memory(2.0, QueryId(1), 1).is_empty());
    check(&schedule.take_log(), &LIMITS, 8).unwrap();
}
