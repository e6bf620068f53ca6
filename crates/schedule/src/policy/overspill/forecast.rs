//! When all queries would end if a plan were kept.

use std::cell::RefCell;

use crate::board::Board;
use crate::limits::Limits;
use crate::processors::Processors;
use crate::query::{Class, Demand, Place};

/// What becomes of a waiting query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    /// Where it runs.
    pub place: Place,
    /// Whether it starts at once, beside all others; else when the place has nothing shorter to do.
    pub now: bool,
}

/// What becomes of all queries.
#[derive(Debug)]
pub(super) struct Plan {
    /// Of each waiting query.
    pub choices: Vec<Choice>,
    /// Of each query on the GPU, whether it leaves it.
    pub moved: Vec<bool>,
}

impl Clone for Plan {
    fn clone(&self) -> Self {
        Self { choices: self.choices.clone(), moved: self.moved.clone() }
    }

    fn clone_from(&mut self, other: &Self) {
        self.choices.clone_from(&other.choices);
        self.moved.clone_from(&other.moved);
    }
}

/// A query that runs in the forecast.
#[derive(Debug, Clone, Copy)]
struct Active {
    remaining: f64,
    weight: f64,
    class: Class,
}

/// The most queries that run on the GPU while others queue for it. Together they are not faster than one after the other.
const GPU_SLOTS: usize = 1;

/// The share of its time on the CPU by which a query that is moved is delayed.
const MOVE: f64 = 0.02;

/// What is forecast about.
#[derive(Debug)]
pub(super) struct Forecast {
    processors: Processors,
    limits: Limits,
    cpu: Vec<Active>,
    gpu: Vec<Active>,
    /// What those on the GPU would need on the CPU, and their demands.
    moved: Vec<Active>,
    on_gpu: Vec<Demand>,
    pub jobs: Vec<Demand>,
    /// The jobs at each place, shortest first.
    orders: [Vec<usize>; 2],
    scratch: RefCell<Scratch>,
}

#[derive(Debug, Default)]
struct Scratch {
    cpu: Vec<Active>,
    gpu: Vec<Active>,
}

impl Forecast {
    /// Of those waiting queries that have these numbers.
    pub fn new(board: &Board, numbers: &[usize], limits: Limits) -> Self {
        let weighted = |demand: &Demand| Demand { weight: board.weight(demand), ..*demand };
        let jobs: Vec<Demand> = numbers.iter().map(|number| weighted(&board.waiting[*number].demand)).collect();
        let active = |place| {
            let running = board.in_slots().filter(move |running| running.place == place);
            running.map(|running| Active {
                remaining: running.remaining(),
                weight: board.weight(&running.demand),
                class: running.demand.class,
            })
        };
        let moved = board.at(Place::Gpu).map(|running| {
            let remaining = (running.share_left() + MOVE) * running.demand.cpu;
            Active { remaining, weight: board.weight(&running.demand), class: running.demand.class }
        });
        let orders = [Place::Cpu, Place::Gpu].map(|place| {
            let mut order: Vec<usize> = (0..jobs.len()).collect();
            let key = |job: &usize| jobs[*job].seconds(place) / jobs[*job].weight;
            order.sort_by(|one, other| key(one).total_cmp(&key(other)));
            order
        });
        Self {
            processors: board.processors,
            limits,
            cpu: active(Place::Cpu).collect(),
            gpu: active(Place::Gpu).collect(),
            moved: moved.collect(),
            on_gpu: board.at(Place::Gpu).map(|running| running.demand).collect(),
            jobs,
            orders,
            scratch: RefCell::default(),
        }
    }

    /// The number of queries on the GPU.
    pub fn on_gpu(&self) -> usize {
        self.gpu.len()
    }

    fn active(&self, job: usize, place: Place) -> Active {
        let demand = &self.jobs[job];
        Active { remaining: demand.seconds(place), weight: demand.weight, class: demand.class }
    }

    fn order(&self, place: Place) -> &[usize] {
        &self.orders[usize::from(place == Place::Gpu)]
    }

    /// The sum of the weighted times until each query ends; infinite if the plan exceeds the limits of the GPU.
    pub fn cost(&self, plan: &Plan) -> f64 {
        if !self.keeps_limits(plan) {
            return f64::INFINITY;
        }
        let mut scratch = self.scratch.borrow_mut();
        let Scratch { cpu, gpu } = &mut *scratch;
        cpu.clear();
        gpu.clear();
        cpu.extend_from_slice(&self.cpu);
        for ((running, moved), is_moved) in self.gpu.iter().zip(&self.moved).zip(&plan.moved) {
            if *is_moved { cpu.push(*moved) } else { gpu.push(*running) }
        }
        for (job, choice) in plan.choices.iter().enumerate().filter(|(_, choice)| choice.now) {
            let active = self.active(job, choice.place);
            if choice.place == Place::Cpu { cpu.push(active) } else { gpu.push(active) }
        }
        let queue = |place| {
            let in_queue = move |job: &&usize| plan.choices[**job] == Choice { place, now: false };
            self.order(place).iter().filter(in_queue)
        };
        let (mut for_cpu, mut for_gpu) = (queue(Place::Cpu), queue(Place::Gpu));
        let cpu_slots = self.processors.cpu_slots();
        let (mut now, mut cost) = (0.0, 0.0);
        loop {
            while cpu.len() < cpu_slots
                && let Some(job) = for_cpu.next()
            {
                cpu.push(self.active(*job, Place::Cpu));
            }
            while gpu.len() < GPU_SLOTS
                && let Some(job) = for_gpu.next()
            {
                gpu.push(self.active(*job, Place::Gpu));
            }
            let cpu_speed = self.processors.cpu_speed(cpu.len());
            let gpu_speed = self.processors.gpu_speed(gpu.iter().map(|active| active.class));
            let next = |active: &[Active], speed: f64| {
                active.iter().map(|active| active.remaining).min_by(f64::total_cmp).map(|least| least / speed)
            };
            let soonest = match (next(cpu, cpu_speed), next(gpu, gpu_speed)) {
                (Some(cpu), Some(gpu)) => cpu.min(gpu),
                (Some(soonest), None) | (None, Some(soonest)) => soonest,
                (None, None) => return cost,
            };
            now += soonest;
            for (active, speed) in [(&mut *cpu, cpu_speed), (&mut *gpu, gpu_speed)] {
                active.retain_mut(|active| {
                    active.remaining -= soonest * speed;
                    let has_ended = active.remaining <= 1e-9 * (1.0 + now);
                    cost += if has_ended { active.weight * now } else { 0.0 };
                    !has_ended
                });
            }
        }
    }

    fn keeps_limits(&self, plan: &Plan) -> bool {
        let stay = self.on_gpu.iter().zip(&plan.moved).filter(|(_, is_moved)| !**is_moved).map(|(demand, _)| demand);
        let start = self.starts_at(plan, Place::Gpu).map(|job| &self.jobs[job]);
        self.limits.allow(stay.chain(start))
    }

    /// The jobs that start at a place at once.
    fn starts_at<'a>(&'a self, plan: &'a Plan, place: Place) -> impl Iterator<Item = usize> + 'a {
        let moved = plan.moved.iter().filter(|is_moved| **is_moved).count();
        let (running, slots) = match place {
            Place::Cpu => (self.cpu.len() + moved, self.processors.cpu_slots()),
            Place::Gpu => (self.gpu.len() - moved, GPU_SLOTS),
        };
        let of = move |now| {
            let is_so = move |job: &usize| plan.choices[*job] == Choice { place, now };
            self.order(place).iter().copied().filter(is_so)
        };
        let free = slots.saturating_sub(running + of(true).count());
        of(true).chain(of(false).take(free))
    }

    /// The jobs that start at once.
    pub fn starts(&self, plan: &Plan) -> Vec<usize> {
        self.starts_at(plan, Place::Cpu).chain(self.starts_at(plan, Place::Gpu)).collect()
    }
}
