//! Finds a plan.

use super::forecast::{Choice, Forecast, Plan};
use crate::query::Place;

/// The most times that all queries are looked at again.
const PASSES: usize = 6;

/// A plan is better if it is by this share.
const BETTER: f64 = 1e-6;

/// The best plan that is found, in which each query has one of its choices.
pub(super) fn best(forecast: &Forecast, choices: &[Vec<Choice>], moves: bool) -> Plan {
    let simple = |wanted: fn(&Forecast, usize) -> Choice| {
        let allowed = |(job, choices): (usize, &Vec<Choice>)| {
            let wanted = wanted(forecast, job);
            let same_place = choices.iter().find(|choice| choice.place == wanted.place);
            *choices.iter().find(|choice| **choice == wanted).or(same_place).unwrap_or(&choices[0])
        };
        let choices = choices.iter().enumerate().map(allowed).collect();
        Plan { choices, moved: vec![false; forecast.on_gpu()] }
    };
    let shorter = |forecast: &Forecast, job: usize| {
        let demand = &forecast.jobs[job];
        let place = if demand.seconds(Place::Gpu) < demand.cpu { Place::Gpu } else { Place::Cpu };
        Choice { place, now: false }
    };
    let plans = [
        simple(shorter),
        simple(|_, _| Choice { place: Place::Cpu, now: false }),
        simple(|_, _| Choice { place: Place::Gpu, now: false }),
        simple(|_, _| Choice { place: Place::Cpu, now: true }),
    ];
    let mut climbs = plans.map(|plan| Climb::new(forecast, plan));
    climbs.sort_by(|one, other| one.cost.total_cmp(&other.cost));
    let [first, second, ..] = climbs;
    let [first, second] = [first, second].map(|climb| climb.climb(choices, moves));
    if second.cost < first.cost { second.plan } else { first.plan }
}

/// A plan that is improved.
struct Climb<'a> {
    forecast: &'a Forecast,
    plan: Plan,
    cost: f64,
    /// A changed plan.
    tried: Plan,
}

impl<'a> Climb<'a> {
    fn new(forecast: &'a Forecast, plan: Plan) -> Self {
        let cost = forecast.cost(&plan);
        Self { forecast, tried: plan.clone(), plan, cost }
    }

    /// Improves the plan by one change after the other until none helps.
    fn climb(mut self, choices: &[Vec<Choice>], moves: bool) -> Self {
        for _ in 0..PASSES {
            let before = self.cost;
            self.change_one(choices);
            if moves {
                self.change_gpu(choices);
            }
            self.exchange(choices);
            if self.cost.is_infinite() || before - self.cost <= BETTER * before {
                break;
            }
        }
        self
    }

    /// Tries every choice of every query.
    fn change_one(&mut self, choices: &[Vec<Choice>]) {
        for (job, choices) in choices.iter().enumerate() {
            for choice in choices {
                self.try_out(|plan| plan.choices[job] = *choice);
            }
        }
    }

    /// Tries to move each query off the GPU, for nothing or for another that takes its place.
    fn change_gpu(&mut self, choices: &[Vec<Choice>]) {
        for number in 0..self.plan.moved.len() {
            self.try_out(|plan| plan.moved[number] = true);
            for (job, choices) in choices.iter().enumerate() {
                for choice in choices.iter().filter(|choice| choice.place == Place::Gpu) {
                    self.try_out(|plan| (plan.moved[number], plan.choices[job]) = (true, *choice));
                }
            }
        }
    }

    /// Tries to exchange the choices of any two queries.
    fn exchange(&mut self, choices: &[Vec<Choice>]) {
        for one in 0..choices.len() {
            for other in 0..one {
                let [of_one, of_other] = [one, other].map(|job| self.plan.choices[job]);
                if of_one != of_other && choices[one].contains(&of_other) && choices[other].contains(&of_one) {
                    self.try_out(|plan| plan.choices.swap(one, other));
                }
            }
        }
    }

    /// Keeps a change if it makes the plan better.
    fn try_out(&mut self, change: impl FnOnce(&mut Plan)) {
        self.tried.clone_from(&self.plan);
        change(&mut self.tried);
        let cost = self.forecast.cost(&self.tried);
        if cost < self.cost * (1.0 - BETTER) || (self.cost.is_infinite() && cost.is_finite()) {
            self.cost = cost;
            std::mem::swap(&mut self.plan, &mut self.tried);
        }
    }
}
