//! What clients did, as a table and as JSON.

use std::fmt::Write;

use overspill_machine::topology::Topology;
use serde_json::{Value, json};

use super::machine::Query;
use super::mixes::{Compared, Times};
use super::{Load, LoadArgs, LoadUsers, Predicted};
use crate::report::{machine, median, size, value_name};

pub(super) struct Report<'a> {
    pub args: &'a LoadArgs,
    pub threads: usize,
    pub topology: &'a Topology,
    pub queries: &'a [Query],
    pub loads: &'a [Load],
    pub predicted: Option<Predicted>,
    pub compared: &'a [Compared],
}

/// The value below which this share of the values lies.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The numbers of a load.
struct Numbers {
    a_minute: f64,
    mean: f64,
    slow: f64,
    /// Times as long as alone, the mean.
    slowdown: f64,
    /// Mean seconds of the first client.
    of_first: f64,
    brief: f64,
}

impl Report<'_> {
    fn numbers(&self, load: &Load) -> Numbers {
        let seconds: Vec<f64> = load.ran.iter().map(|ran| ran.seconds).collect();
        let slowdowns: Vec<f64> = load.ran.iter().map(|ran| ran.seconds / self.queries[ran.query].alone).collect();
        let of_first: Vec<f64> = load.ran.iter().filter(|ran| ran.client == 0).map(|ran| ran.seconds).collect();
        Numbers {
            a_minute: load.ran.len() as f64 / load.elapsed * 60.0,
            mean: mean(&seconds),
            slow: quantile(seconds, 0.99),
            slowdown: mean(&slowdowns),
            of_first: mean(&of_first),
            brief: quantile(load.brief.clone(), 0.99),
        }
    }

    fn title(&self) -> String {
        let names: Vec<&str> = self.queries.iter().map(|query| query.name.as_str()).collect();
        let users = match self.args.users {
            LoadUsers::Each => "a user each",
            LoadUsers::First => "the first of one user, all others of another",
        };
        format!(
            "Clients that run queries at the same time, {}, {} threads, {} of memory, clients of {users}; queries: {}",
            machine(self.topology),
            self.threads,
            size(self.args.memory_limit.as_u64()),
            names.join(" "),
        )
    }

    pub fn table(&self) -> String {
        let mut text = self.title();
        _ = writeln!(
            text,
            "\n{:<11}{:>8}{:>12}{:>9}{:>9}{:>12}{:>12}{:>14}{:>12}",
            "policy", "clients", "queries/min", "mean s", "99 % s", "x alone", "first s", "SELECT 1 ms", "reserved"
        );
        for load in self.loads {
            let numbers = self.numbers(load);
            _ = writeln!(
                text,
                "{:<11}{:>8}{:>12.1}{:>9.2}{:>9.2}{:>12.2}{:>12.2}{:>14.1}{:>12}",
                value_name(&load.policy),
                load.clients,
                numbers.a_minute,
                numbers.mean,
                numbers.slow,
                numbers.slowdown,
                numbers.of_first,
                numbers.brief * 1e3,
                size(load.most_reserved as u64),
            );
        }
        text.push_str(
            "x alone: how many times as long as alone a query takes, the mean; first s: mean seconds of the first client. SELECT 1: 99 % take less.\n",
        );
        if let Some(predicted) = self.predicted {
            _ = writeln!(
                text,
                "Predicted times of queries alone are wrong by a factor of {:.2} (median), after three runs of {:.2}.",
                predicted.at_first, predicted.after_three
            );
        }
        for policy in &self.args.policy {
            let of_policy: Vec<_> = self.compared.iter().filter(|compared| compared.policy == *policy).collect();
            if of_policy.is_empty() {
                continue;
            }
            let ratios = |of: fn(&Times) -> f64| {
                let mut ratios: Vec<f64> =
                    of_policy.iter().map(|compared| of(&compared.measured) / of(&compared.simulated)).collect();
                ratios.sort_by(f64::total_cmp);
                let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
                format!("{:.2} (median; {least:.2} to {most:.2})", median(ratios).unwrap_or(f64::NAN))
            };
            _ = writeln!(
                text,
                "{} mixes at once, {}: from first arrival to last end {} times as long as in the simulator, the mean {}.",
                of_policy.len(),
                value_name(policy),
                ratios(|times| times.overall),
                ratios(|times| times.mean),
            );
        }
        text
    }

    pub fn json(&self) -> Value {
        let load = |load: &Load| {
            let numbers = self.numbers(load);
            json!({
                "policy": value_name(&load.policy),
                "clients": load.clients,
                "queries": load.ran.len(),
                "seconds": load.elapsed,
                "queries_a_minute": numbers.a_minute,
                "mean_seconds": numbers.mean,
                "seconds_of_99_percent": numbers.slow,
                "times_alone": numbers.slowdown,
                "mean_seconds_of_first": numbers.of_first,
                "brief_seconds_of_99_percent": numbers.brief,
                "most_reserved_bytes": load.most_reserved,
            })
        };
        let times = |times: &Times| json!({ "overall_seconds": times.overall, "mean_seconds": times.mean });
        let mix = |compared: &Compared| {
            json!({
                "policy": value_name(&compared.policy),
                "measured": times(&compared.measured),
                "simulated": times(&compared.simulated),
            })
        };
        json!({
            "experiment": "load",
            "title": self.title(),
            "loads": self.loads.iter().map(load).collect::<Value>(),
            "mixes": self.compared.iter().map(mix).collect::<Value>(),
            "predicted_times_wrong_by": self.predicted.map(|predicted| json!({
                "at_first": predicted.at_first,
                "after_three_runs": predicted.after_three,
            })),
        })
    }
}
