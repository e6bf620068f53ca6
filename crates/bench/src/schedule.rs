//! The experiment `overspill bench schedule`: scheduling policies in virtual time (paper 5).

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use datafusion::common::Result;
use overspill_experiments::{Axis, Figure, SeriesSource};
use overspill_schedule::simulator::{
    ArrivalPattern, Mix, MixConfig, Outcome, PredictionError, least_mean, least_overall, run as simulate,
};
use overspill_schedule::{CoRun, Cpu, Paper5Settings, PolicyKind, Processors, ScheduleConfig, Slots};

use crate::report::failed;

/// How queries run on the CPU of the simulated machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CpuModel {
    /// All cores run each query, and queries share them, as in Overspill
    Shared,
    /// A query runs on one core of six, as in the paper's PostgreSQL
    CoreEach,
}

/// What the table shows of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shown {
    /// The mean over queries of the time from arrival to end
    Mean,
    /// The time from the first arrival to the last end, which the paper shows
    Overall,
    /// How many times as long as alone the query takes that is slowed most
    Slowdown,
}

/// The arguments of `overspill bench schedule`.
#[derive(Debug, Clone, Args)]
pub struct ScheduleArgs {
    /// The CPU of the simulated machine
    #[arg(long, value_enum, default_value = "shared")]
    pub cpu: CpuModel,

    /// What to show of each mix; the table has geometric means
    #[arg(long, value_enum, default_value = "mean")]
    pub show: Shown,

    /// Number of random mixes: 4 to 16 queries of 1 to 30 s on the CPU, on the GPU 0.3 to 6 times as fast
    #[arg(long, default_value = "1000", value_name = "N")]
    pub mixes: NonZeroU64,

    /// Seed of the first mix
    #[arg(long, default_value = "1", value_name = "N")]
    pub seed: u64,

    /// How wrong predicted times are: the standard deviation of their logarithm, alike on the CPU and on the GPU
    #[arg(long, default_value = "0", value_name = "X", value_parser = error)]
    pub error: f64,

    /// Write the figure's numbers to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figure to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

fn error(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(error) if (0.0..=5.0).contains(&error) => Ok(error),
        _ => Err("it is a number from 0 to 5".to_owned()),
    }
}

/// The patterns of arrivals, with their names.
const ARRIVALS: [(&str, ArrivalPattern); 4] = [
    ("at once", ArrivalPattern::AtOnce),
    ("load 0.5", ArrivalPattern::Poisson { load: 0.5 }),
    ("load 0.8", ArrivalPattern::Poisson { load: 0.8 }),
    ("load 1.1", ArrivalPattern::Poisson { load: 1.1 }),
];

/// Runs the mixes with each policy, and returns the figure.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn run(args: &ScheduleArgs) -> Result<Figure> {
    let (cpu, machine) = match args.cpu {
        CpuModel::Shared => (Cpu::Shared, "queries share all cores"),
        CpuModel::CoreEach => (Cpu::CoreEach(6), "a query runs on one core of six"),
    };
    let label = match args.show {
        Shown::Mean => "mean seconds from arrival to end",
        Shown::Overall => "seconds from first arrival to last end",
        Shown::Slowdown => "times as long as alone",
    };
    let mut figure = Figure {
        name: "schedule",
        title: "Scheduling policies in virtual time",
        paper: "paper 5, sections 3 and 4",
        machine: format!(
            "simulated machine: {machine}; {} mixes from seed {}, error {}",
            args.mixes, args.seed, args.error
        ),
        x: Axis::named("arrivals", ARRIVALS.map(|(name, _)| name)),
        y: Axis::linear(label),
        ..Figure::default()
    };
    let policies = [
        PolicyKind::AllCpu,
        PolicyKind::AllGpu,
        PolicyKind::FirstCome,
        PolicyKind::Paper5(Paper5Settings::default()),
        PolicyKind::Overspill(Default::default()),
    ];
    let mixes: Vec<Vec<Mix>> = ARRIVALS.iter().map(|(_, arrivals)| mixes(args, *arrivals, cpu)).collect();
    for policy in policies {
        let mut points = vec![];
        for (place, ((name, _), mixes)) in ARRIVALS.iter().zip(&mixes).enumerate() {
            let shown = match policy {
                PolicyKind::Paper5(_) => {
                    let tried = Paper5Settings::to_try().map(|settings| {
                        (geometric_mean(mixes, PolicyKind::Paper5(settings), cpu, args.show), settings)
                    });
                    let best = tried.min_by(|one, other| one.0.total_cmp(&other.0));
                    best.map(|(shown, settings)| {
                        figure.notes.push(format!("paper5 is at its best settings, {name}: {settings:?}"));
                        shown
                    })
                }
                policy => Some(geometric_mean(mixes, policy, cpu, args.show)),
            };
            points.extend(shown.map(|shown| (place as f64, shown)));
        }
        figure.add(SeriesSource::Predicted, policy.name(), points);
    }
    if let Some(bound) = bound(args.show) {
        let processors = Processors { cpu, co_run: CoRun::default() };
        let of = |mixes: &Vec<Mix>| {
            let sum: f64 = mixes.iter().map(|mix| bound(mix, &processors).ln()).sum();
            (sum / mixes.len() as f64).exp()
        };
        let points = mixes.iter().enumerate().map(|(place, mixes)| (place as f64, of(mixes))).collect();
        figure.add(SeriesSource::Bound, "linear program", points);
    }
    figure.write(args.json.as_deref(), args.svg.as_deref()).map_err(failed)?;
    Ok(figure)
}

/// What no schedule can do better, of what is shown.
fn bound(show: Shown) -> Option<fn(&Mix, &Processors) -> f64> {
    match show {
        Shown::Mean => Some(least_mean),
        Shown::Overall => Some(least_overall),
        Shown::Slowdown => None,
    }
}

fn mixes(args: &ScheduleArgs, arrivals: ArrivalPattern, cpu: Cpu) -> Vec<Mix> {
    let config = MixConfig { arrivals, error: PredictionError::OfSize(args.error), ..MixConfig::default() };
    (0..args.mixes.get()).map(|mix| Mix::random(&config, cpu, args.seed.wrapping_add(mix))).collect()
}

fn geometric_mean(mixes: &[Mix], policy: PolicyKind, cpu: Cpu, show: Shown) -> f64 {
    let config = ScheduleConfig {
        policy,
        limits: policy.compared_limits(),
        processors: Processors { cpu, co_run: CoRun::default() },
        slots: Slots::ALL,
    };
    let shown = |mix: &Mix, outcome: &Outcome| match show {
        Shown::Mean => outcome.mean(),
        Shown::Overall => outcome.overall,
        Shown::Slowdown => outcome.worst_slowdown(mix),
    };
    let sum: f64 = mixes.iter().map(|mix| shown(mix, &simulate(mix, &config)).ln()).sum();
    (sum / mixes.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use overspill_experiments::Series;

    use super::*;

    #[test]
    fn the_table_has_every_policy_and_ours_lies_between_them_and_the_bound() {
        let args = ScheduleArgs {
            cpu: CpuModel::Shared,
            show: Shown::Mean,
            mixes: NonZeroU64::new(50).unwrap(),
            seed: 9,
            error: 0.0,
            json: None,
            svg: None,
        };
        let figure = run(&args).unwrap();
        let names: Vec<_> = figure.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["all_cpu", "all_gpu", "first_come", "paper5", "overspill", "linear program"]);
        let [others @ .., ours, bound] = &figure.series[..] else { panic!("no series") };
        let is_below = |one: &Series, other: &Series| {
            assert_eq!(one.points.len(), ARRIVALS.len(), "{}", one.name);
            one.points.iter().zip(&other.points).all(|(one, other)| one.1 < other.1)
        };
        for other in others {
            assert!(is_below(ours, other), "{}", other.name);
        }
        assert!(is_below(bound, ours));
    }
}
