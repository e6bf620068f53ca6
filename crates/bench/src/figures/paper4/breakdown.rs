//! Figure 9: the time of each step of the joins of figure 8 on one level, plain and compressed.

use std::iter::zip;

use datafusion::common::Result;
use overspill_advisor::{Levels, Shuffle};
use overspill_experiments::{Axis, Figure, SeriesSource};
use serde_json::json;

use super::data::{Tables, Workload};
use super::measured::{Run, STEPS, measure};
use super::model::{self, MACHINE, Model};
use super::{HERE, ON_GPU, machine, notes, on_gpu, scale_of};
use crate::figures::bench::Bench;
use crate::figures::claim::{Claim, Ratio};
use crate::figures::cluster::Cluster;
use crate::figures::outcome::Outcome;
use crate::report::tell;

/// The two ways that the paper compares, and what the x axis calls them.
const WAYS: [(Shuffle, &str); 2] = [
    (Shuffle { levels: Levels::One, compressed: false }, "plain"),
    (Shuffle { levels: Levels::One, compressed: true }, "compressed"),
];

/// The paper's GPUs.
const GPUS: [u32; 3] = [64, 256, 1024];

/// Milliseconds that the text states for 1,024 GPUs (section 6.4), plain and compressed.
const STATED: [(&str, [Option<f64>; WAYS.len()]); 3] =
    [("all-to-all", [Some(648.0), Some(167.0)]), ("compress", [None, Some(46.0)]), ("decompress", [None, Some(20.0)])];

/// The share of the plain join's time on 1,024 GPUs that is the all-to-all, in percent (section 6.4).
const STATED_SHARE: f64 = 78.0;

/// The best plain rate on 1,024 GPUs, in billion tuples a second (section 6.4).
const STATED_RATE: f64 = 1015.0;

/// A number of ranks, and the run of each way with the least time.
type Measured = (usize, [Run; WAYS.len()]);

/// Milliseconds of the model's steps. Each number of GPUs has those of the plain run, then those of the compressed one.
type Predicted = [f64; model::STEPS.len()];

/// Measures figure 9: a panel of steps here, one of those of the paper and of the model, and one of the all-to-all's share.
pub(super) fn figure(bench: &Bench, cluster: &Cluster) -> Result<Outcome> {
    // On one node nothing is compressed.
    let sizes = cluster.sizes().into_iter().filter(|ranks| cluster.nodes(*ranks) > 1);
    let sizes: Vec<usize> = sizes.filter(|ranks| bench.measures(*ranks as f64)).collect();
    let Some(most) = sizes.iter().copied().max() else {
        return Ok(Outcome::Refused("no number of ranks that --at and --ranks allow has several nodes".to_owned()));
    };
    let scale = scale_of(bench, Workload::Tpch, most)?;
    let tables = Tables::new(Workload::Tpch, scale, most, bench.threads)?;
    let mut measured: Vec<Measured> = vec![];
    for ranks in sizes {
        if cluster.reports() {
            tell(&format!("{ranks} ranks"));
        }
        let runs = measure(cluster, &tables, ranks, &WAYS.map(|(way, _)| way), bench.runs_of(false))?;
        let least = |runs: &Vec<Run>| runs.iter().copied().min_by(|one, other| one.seconds.total_cmp(&other.seconds));
        if let [Some(plain), Some(compressed)] = runs.iter().map(least).collect::<Vec<_>>()[..] {
            measured.push((ranks, [plain, compressed]));
        }
    }
    keep(bench, cluster, &measured)?;
    let empty = Figure {
        name: "paper4-9",
        title: "Where the time of joins among ranks goes",
        paper: "paper 4, figure 9",
        machine: machine(bench, cluster, scale),
        emulated: bench.is_emulated(),
        ..Figure::default()
    };
    let model = Model::new()?;
    let advices = GPUS.iter().map(|gpus| model.advise(Workload::Tpch, *gpus)).collect::<Result<Vec<_>>>()?;
    let predicted: Vec<Predicted> =
        advices.iter().flat_map(|advice| WAYS.map(|(way, _)| model::steps(advice.of(way)))).collect();
    let mut steps = steps_here(&empty, &measured);
    let of_gpus = steps_of_gpus(&empty, &predicted);
    let shares = shares(&empty, &measured, &predicted);
    steps.notes.extend(compared(bench, &steps, &measured));
    steps.notes.push(
        "partition, compress and decompress are timed in the exchange, build and probe in the join, and the rest of the exchange is the \
         all-to-all; threads that share a processor have each other's time in theirs"
            .to_owned(),
    );
    let device = bench.device_args();
    let refused = on_gpu::refused(cluster, &device, most)?;
    if refused.is_none() {
        let runs = on_gpu::measure(cluster, &device, &tables, most, &[WAYS[0].0], bench.runs_of(true))?;
        steps.notes.extend((!bench.is_emulated()).then(|| steps_on_gpu(most, &runs)).flatten());
    }
    steps.notes.extend(notes(bench, cluster, refused));
    Ok(Outcome::Done(vec![steps, of_gpus, shares]))
}

/// The steps of the run with the least time among ranks with GPUs, in words.
fn steps_on_gpu(ranks: usize, runs: &[Vec<Run>]) -> Option<String> {
    let run = runs.iter().flatten().min_by(|one, other| one.seconds.total_cmp(&other.seconds))?;
    let steps = zip(STEPS, run.steps).filter(|(_, seconds)| *seconds > 0.0);
    let steps: Vec<_> = steps.map(|(step, seconds)| format!("{step} {:.1} ms", seconds * 1e3)).collect();
    Some(format!("{ranks} {ON_GPU}, plain, the slowest of the fastest run: {}", steps.join(", ")))
}

/// Writes the points to the file of `--points`.
fn keep(bench: &Bench, cluster: &Cluster, measured: &[Measured]) -> Result<()> {
    if !cluster.reports() {
        return Ok(());
    }
    for (ranks, runs) in measured {
        for ((way, _), run) in zip(WAYS, runs) {
            let line = format!("{way}, {HERE}");
            bench.keep(&json!({ "line": line, "x": ranks, "seconds": run.seconds, "steps": run.steps }))?;
        }
    }
    Ok(())
}

/// Names of runs: of each number of ranks the plain and the compressed one.
fn names(of: &str, counts: impl Iterator<Item = usize>) -> Vec<String> {
    counts.flat_map(|count| WAYS.map(|(_, way)| format!("{count} {of}\n{way}"))).collect()
}

fn steps_here(empty: &Figure, measured: &[Measured]) -> Figure {
    let x = Axis::named("ranks", names(HERE, measured.iter().map(|(ranks, _)| *ranks)));
    let mut figure = Figure { x, y: Axis::linear("milliseconds of the slowest rank"), ..empty.clone() };
    let runs: Vec<&Run> = measured.iter().flat_map(|(_, runs)| runs).collect();
    for (number, step) in STEPS.into_iter().enumerate() {
        let points = runs.iter().enumerate().map(|(x, run)| (x as f64, run.steps[number] * 1e3));
        figure.add(SeriesSource::Measured, step, points.collect());
    }
    figure
}

fn steps_of_gpus(empty: &Figure, predicted: &[Predicted]) -> Figure {
    let x = Axis::named("GPUs", names("GPUs", GPUS.iter().map(|gpus| *gpus as usize)));
    let mut figure = Figure { x, y: Axis::linear("milliseconds on GPUs"), ..empty.clone() };
    for (number, (step, _)) in model::STEPS.into_iter().enumerate() {
        let points = predicted.iter().enumerate().map(|(x, steps)| (x as f64, steps[number]));
        figure.add(SeriesSource::Predicted, format!("{step}, {MACHINE}"), points.collect());
    }
    // The last two runs are those of 1,024 GPUs.
    let first = predicted.len() - WAYS.len();
    for (step, stated) in STATED {
        let points = stated.into_iter().enumerate();
        let points = points.filter_map(|(way, time)| Some(((first + way) as f64, time?)));
        figure.add(SeriesSource::Paper, step, points.collect());
    }
    figure
}

/// The all-to-all's share of the time, here and on GPUs.
fn shares(empty: &Figure, measured: &[Measured], predicted: &[Predicted]) -> Figure {
    let here = names(HERE, measured.iter().map(|(ranks, _)| *ranks));
    let of_gpus = names("GPUs", GPUS.iter().map(|gpus| *gpus as usize));
    let first = here.len();
    let x = Axis::named("runs", here.into_iter().chain(of_gpus));
    let mut figure = Figure { x, y: Axis::linear("% of the time that the all-to-all takes"), ..empty.clone() };
    let place = |steps: &[&str]| steps.iter().position(|step| *step == "all-to-all").unwrap_or(0);
    let percent = |steps: &[f64], place: usize| steps[place] / steps.iter().sum::<f64>() * 100.0;
    let (own, models) = (place(&STEPS), place(&model::STEPS.map(|(step, _)| step)));
    let runs = measured.iter().flat_map(|(_, runs)| runs).enumerate();
    figure.add(SeriesSource::Measured, HERE, runs.map(|(x, run)| (x as f64, percent(&run.steps, own))).collect());
    let gpus = predicted.iter().enumerate();
    let gpus = gpus.map(|(x, steps)| ((first + x) as f64, percent(steps, models)));
    figure.add(SeriesSource::Predicted, MACHINE, gpus.collect());
    let plain = first + predicted.len() - WAYS.len();
    figure.add(SeriesSource::Paper, "all-to-all", vec![(plain as f64, STATED_SHARE)]);
    figure
}

/// What the text says, beside ours.
fn compared(bench: &Bench, steps: &Figure, measured: &[Measured]) -> Vec<String> {
    let [(_, [plain, compressed]), (_, [_, compress]), (_, [_, decompress])] = STATED;
    let [plain, compressed, compress, decompress] =
        [plain, compressed, compress, decompress].map(Option::unwrap_or_default);
    let mut notes = vec![];
    if bench.is_toy() {
        notes.push("toy size: times mean nothing, and are compared with nothing".to_owned());
    }
    // Names of the x axis are numbered: plain and compressed runs take turns, and those of the most ranks come last.
    let last = (measured.len().max(1) * WAYS.len() - 1) as f64;
    let claim = |says, paper, of, at, to| Claim { says, paper, ratio: Ratio::Points { of, at, to } };
    let claims = [
        claim("all-to-all, compressed of plain", "0.26 x on 1,024 GPUs, 167 of 648 ms", "all-to-all", last, last - 1.0),
        claim("compress, the most ranks of the fewest", "about 1 x from 64 to 1,024 GPUs", "compress", last, 1.0),
        claim("decompress, the most ranks of the fewest", "about 1 x from 64 to 1,024 GPUs", "decompress", last, 1.0),
    ];
    notes.extend(claims.iter().map(|claim| claim.beside((!bench.is_toy()).then_some(steps))));
    let total = plain / STATED_SHARE * 100.0;
    let tuples = Workload::Tpch.rows() as f64 * f64::from(GPUS[GPUS.len() - 1]) / 1e9;
    notes.push(format!(
        "the paper: {plain} ms are {STATED_SHARE} % of {total:.0} ms; its best plain run joins {tuples:.0} billion tuples at {STATED_RATE} \
         billion a second, in {:.0} ms, so it is another; compressing saves {} ms of the all-to-all and costs {} ms",
        tuples / STATED_RATE * 1e3,
        plain - compressed,
        compress + decompress
    ));
    notes
}
