//! Figures 6 to 8: tuples a second by the number of ranks or by the size of their tables.

use std::iter::zip;

use datafusion::common::Result;
use overspill_advisor::{Levels, Shuffle};
use overspill_experiments::{Axis, DeviceArgs, Figure, SeriesSource};
use serde_json::json;

use super::data::{Point, Tables, Workload};
use super::measured::{Run, measure};
use super::model::{MACHINE, Model, rate};
use super::{HERE, ON_GPU, Paper4, machine, notes, on_gpu, scale_of};
use crate::figures::bench::Bench;
use crate::figures::claim::{Claim, Ratio};
use crate::figures::cluster::Cluster;
use crate::figures::outcome::Outcome;
use crate::report::{median, tell};

/// Names of measured lines, which claims compare.
const ONE_PLAIN: &str = "one level, plain, CPU ranks";
const ONE_COMPRESSED: &str = "one level, compressed, CPU ranks";
const TWO_PLAIN: &str = "two levels, plain, CPU ranks";

/// Ways that leave rows as they are: random keys do not become smaller (section 6.2).
const PLAIN: [Shuffle; 2] =
    [Shuffle { levels: Levels::One, compressed: false }, Shuffle { levels: Levels::Two, compressed: false }];

/// GPUs of the model's lines: from a node to the paper's cluster.
const GPUS: [u32; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];

/// Million rows of each table on a rank of figure 6 (section 6.2).
const WEAK_SCALING: f64 = 500.0;

/// The same of figure 7, and its GPUs (section 6.3).
const SIZES: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0];
const GPUS_OF_SIZES: u32 = 512;

/// The runs of a way at each point that it was measured at.
type Line = Vec<(Point, Vec<Run>)>;

impl Paper4 {
    fn ways(self) -> &'static [Shuffle] {
        if self == Self::Tpch { &Shuffle::ALL } else { &PLAIN }
    }

    fn points(self, cluster: &Cluster) -> Vec<Point> {
        if self == Self::TableSize {
            let ranks = cluster.most();
            return SIZES.map(|millions| Point { x: millions, ranks, workload: Workload::Random(millions) }).into();
        }
        let workload = if self == Self::Tpch { Workload::Tpch } else { Workload::Random(WEAK_SCALING) };
        cluster.sizes().into_iter().map(|ranks| Point { x: ranks as f64, ranks, workload }).collect()
    }

    /// A figure without lines.
    fn empty(self) -> Figure {
        let (name, title, paper) = match self {
            Self::TableSize => ("paper4-7", "Joins among ranks by the size of tables", "paper 4, figure 7"),
            Self::Tpch => ("paper4-8", "Orders and lineitem joined among ranks", "paper 4, figure 8"),
            _ => ("paper4-6", "Random keys joined among ranks", "paper 4, figure 6"),
        };
        let x = if self == Self::TableSize { "million rows a table and rank" } else { "ranks" };
        Figure { name, title, paper, x: Axis::logarithmic(x), ..Figure::default() }
    }

    /// Million tuples a second that the text states.
    fn stated(self) -> Vec<(&'static str, f64)> {
        match self {
            Self::RandomKeys => vec![("one level, plain", 667e3), ("section 7, plain", 547e3)],
            Self::Tpch => vec![("best of all plain", 1015e3), ("best of all compressed", 1793e3)],
            _ => vec![],
        }
    }

    /// Ratios that the text states, in its words.
    fn claims(self, points: &[Point]) -> Vec<Claim> {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return vec![] };
        let two_of_one =
            |says, paper, at| Claim { says, paper, ratio: Ratio::Lines { of: TWO_PLAIN, to: ONE_PLAIN, at } };
        match self {
            Self::RandomKeys => vec![
                two_of_one("two levels of one", "below 1 x", None),
                Claim {
                    says: "one level, the most ranks of the fewest",
                    paper: "scales well to 1,024 GPUs",
                    ratio: Ratio::Points { of: ONE_PLAIN, at: last.x, to: first.x },
                },
            ],
            Self::TableSize => vec![
                two_of_one("two levels of one, the smallest tables", "above 1 x at 1 M rows", Some(first.x)),
                two_of_one("two levels of one, the largest tables", "below 1 x at 200 M rows", Some(last.x)),
            ],
            _ => vec![
                two_of_one("two levels of one, plain", "below 1 x on few GPUs, close to it on many", None),
                Claim::lines(
                    "compressed of plain, one level",
                    "1.77 x, the best of both on 1,024 GPUs",
                    ONE_COMPRESSED,
                    ONE_PLAIN,
                ),
                Claim {
                    says: "one level, compressed, the most ranks of the fewest",
                    paper: "scales well to 1,024 GPUs",
                    ratio: Ratio::Points { of: ONE_COMPRESSED, at: last.x, to: first.x },
                },
            ],
        }
    }
}

/// Measures a figure. The least time of a few runs counts, as in the paper (section 6.1); a panel shows medians.
pub(super) fn figure(paper: Paper4, bench: &Bench, cluster: &Cluster) -> Result<Outcome> {
    let mut points = paper.points(cluster);
    points.retain(|point| bench.measures(point.x));
    let rows = |point: &Point| point.workload.rows() * point.ranks as u64;
    let Some(largest) = points.iter().copied().max_by_key(rows) else {
        return Ok(Outcome::Refused("it has no point at what --at names".to_owned()));
    };
    let scale = scale_of(bench, largest.workload, largest.ranks)?;
    let lines = measure_lines(paper, bench, cluster, &points, scale, None)?;
    let device = bench.device_args();
    let refused = on_gpu::refused(cluster, &device, largest.ranks)?;
    let lines_on_gpu = match refused {
        None => measure_lines(paper, bench, cluster, &points, scale, Some(&device))?,
        Some(_) => vec![],
    };
    let mut least = Figure {
        machine: machine(bench, cluster, scale),
        emulated: bench.is_emulated(),
        y: Axis::logarithmic("million tuples a second, by the least time of all runs"),
        ..paper.empty()
    };
    let mut middle = Figure { y: Axis::logarithmic("million tuples a second, by the median time"), ..least.clone() };
    add_lines(paper, &lines, HERE, [&mut least, &mut middle]);
    if !bench.is_emulated() {
        add_lines(paper, &lines_on_gpu, ON_GPU, [&mut least, &mut middle]);
    }
    predict(paper, &points, &mut least)?;
    predict_here(paper, bench, cluster, scale, &lines, &mut least);
    for (name, rate) in paper.stated() {
        least.add(SeriesSource::Paper, name, vec![(f64::from(GPUS[GPUS.len() - 1]), rate)]);
    }
    if bench.is_toy() {
        least.notes.push("toy size: rates mean nothing, and are compared with nothing".to_owned());
    }
    let compared = (!bench.is_toy()).then_some(&least);
    let claims: Vec<_> = paper.claims(&points).iter().map(|claim| claim.beside(compared)).collect();
    least.notes.extend(claims);
    explain(paper, &lines, &mut least)?;
    least.notes.extend(notes(bench, cluster, refused));
    Ok(Outcome::Done(vec![least, middle]))
}

/// Adds the lines of measured ways to the figures of the least time and of the median time.
fn add_lines(paper: Paper4, lines: &[Line], place: &str, [least, middle]: [&mut Figure; 2]) {
    for (way, line) in zip(paper.ways(), lines) {
        let name = format!("{way}, {place}");
        let rates = |seconds: fn(Vec<f64>) -> Option<f64>| -> Vec<(f64, f64)> {
            let rate = |(point, runs): &(Point, Vec<Run>)| {
                let seconds = seconds(runs.iter().map(|run| run.seconds).collect())?;
                Some((point.x, runs.first()?.rows as f64 / seconds / 1e6))
            };
            line.iter().filter_map(rate).collect()
        };
        least.add(SeriesSource::Measured, &name, rates(|times| times.into_iter().min_by(f64::total_cmp)));
        middle.add(SeriesSource::Measured, &name, rates(median));
    }
}

/// The runs of each way at each point that it can be measured at: on CPUs, or on GPUs, which send rows as they are.
fn measure_lines(
    paper: Paper4,
    bench: &Bench,
    cluster: &Cluster,
    points: &[Point],
    scale: f64,
    gpus: Option<&DeviceArgs>,
) -> Result<Vec<Line>> {
    let place = if gpus.is_some() { ON_GPU } else { HERE };
    let mut lines = vec![vec![]; paper.ways().len()];
    let mut tables: Option<(Workload, Tables)> = None;
    let most = points.iter().map(|point| point.ranks).max().unwrap_or(1);
    for point in points {
        let Point { x, ranks, workload } = *point;
        if cluster.reports() {
            tell(&format!("{} = {x}, {place}", paper.empty().x.label));
        }
        let tables = match &tables {
            Some((of, tables)) if *of == workload => tables,
            _ => &tables.insert((workload, Tables::new(workload, scale, most, bench.threads)?)).1,
        };
        let is_possible = |way: &Shuffle| {
            let compresses = !way.compressed || (gpus.is_none() && cluster.nodes(ranks) > 1);
            compresses && (way.levels == Levels::One || cluster.has_two_levels(ranks))
        };
        let ways: Vec<Shuffle> = paper.ways().iter().copied().filter(is_possible).collect();
        let runs = match gpus {
            None => measure(cluster, tables, ranks, &ways, bench.runs_of(false))?,
            Some(device) => on_gpu::measure(cluster, device, tables, ranks, &ways, bench.runs_of(true))?,
        };
        for (way, runs) in zip(&ways, runs) {
            let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
            // Times on the emulated device mean nothing.
            if cluster.reports() && (gpus.is_none() || !bench.is_emulated()) {
                bench.keep(&json!({ "line": format!("{way}, {place}"), "x": x, "seconds": seconds }))?;
            }
            if let Some((_, line)) = zip(paper.ways(), &mut lines).find(|(of, _)| *of == way) {
                line.push((*point, runs));
            }
        }
    }
    Ok(lines)
}

/// Adds the advisor's lines of the paper's cluster.
fn predict(paper: Paper4, points: &[Point], figure: &mut Figure) -> Result<()> {
    let model = Model::new()?;
    let joins: Vec<(f64, Workload, u32)> = match (paper, points.first()) {
        (_, None) => vec![],
        (Paper4::TableSize, _) => points.iter().map(|point| (point.x, point.workload, GPUS_OF_SIZES)).collect(),
        (_, Some(point)) => GPUS.iter().map(|gpus| (f64::from(*gpus), point.workload, *gpus)).collect(),
    };
    let advices = joins.iter().map(|(x, workload, gpus)| Ok((*x, model.advise(*workload, *gpus)?)));
    let advices = advices.collect::<Result<Vec<_>>>()?;
    for way in paper.ways() {
        let rates = advices.iter().filter_map(|(x, advice)| Some((*x, rate(advice, *way)?)));
        figure.add(SeriesSource::Predicted, format!("{way}, {MACHINE}"), rates.collect());
    }
    Ok(())
}

/// Adds the advisor's lines of the ranks at hand, if they were measured, and how far they are from what was measured.
fn predict_here(paper: Paper4, bench: &Bench, cluster: &Cluster, scale: f64, lines: &[Line], figure: &mut Figure) {
    for (way, line) in zip(paper.ways(), lines).filter(|(way, _)| !way.compressed) {
        let predicted: Vec<_> = line
            .iter()
            .filter_map(|(point, runs)| {
                Some((point.x, Model::here(bench, cluster, point, scale, *way)?, fastest(runs)))
            })
            .collect();
        let far = predicted.iter().map(|(_, prediction, seconds)| (prediction.seconds / seconds).ln().abs().exp());
        if let Some(far) = far.reduce(f64::max) {
            figure.notes.push(format!("{way}: the model of the ranks here is off by a factor of {far:.2} at most"));
        }
        let rates = predicted.into_iter().map(|(x, prediction, _)| (x, prediction.tuples_per_second / 1e6));
        figure.add(SeriesSource::Predicted, format!("{way}, the ranks here"), rates.collect());
    }
}

/// Says what the numbers of a figure are about.
fn explain(paper: Paper4, lines: &[Line], figure: &mut Figure) -> Result<()> {
    let notes = &mut figure.notes;
    match paper {
        Paper4::RandomKeys => notes.push(
            "the paper: 10,677 GB a second of 16,384 GB are 667 billion tuples (section 6.2); section 7 has 547 billion of the same data set"
                .to_owned(),
        ),
        Paper4::TableSize => {
            let crossover = Model::new()?.crossover(GPUS_OF_SIZES)?;
            let faster = zip(&lines[0], &lines[1]).filter(|((_, one), (_, two))| fastest(two) < fastest(one));
            let faster: Vec<_> = faster.map(|((point, _), _)| format!("{} M", point.x)).collect();
            let here = if faster.is_empty() { "nowhere".to_owned() } else { format!("at {}", faster.join(", ")) };
            notes.push(format!(
                "two levels are faster up to some 25 M rows a table and GPU in the paper, up to {crossover} M by the model, which is fitted \
                 to that, and here {here}"
            ));
            notes.push(messages(lines));
        }
        _ => {
            let gain = 1793.0 / 1015.0;
            notes.push(format!("the paper: the best plain and the best compressed rate differ by {gain:.2} x (section 6.4)"));
            let sent = lines[1].last().and_then(|(_, runs)| runs.first()).map(|run| run.across);
            if let Some(sent) = sent {
                let ratio = sent.bytes as f64 / sent.sent_bytes as f64;
                notes.push(format!(
                    "columns between nodes became {ratio:.1} times smaller here; the model takes 648 / 167, the times of figure 9's all-to-all"
                ));
            }
        }
    }
    Ok(())
}

fn fastest(runs: &[Run]) -> f64 {
    runs.iter().map(|run| run.seconds).fold(f64::INFINITY, f64::min)
}

/// Messages of a column in the paper, by the model and here.
fn messages(lines: &[Line]) -> String {
    let nodes = GPUS_OF_SIZES / GPUS[0];
    let [one, two] = [Levels::One, Levels::Two].map(|levels| levels.messages(GPUS_OF_SIZES, nodes));
    let here = lines.iter().filter_map(|line| line.last()).filter_map(|(point, runs)| {
        let run = runs.first()?;
        let [across, within] = [run.across.messages, run.within.messages].map(|count| count / point.workload.columns());
        Some(format!("{across} and {within}"))
    });
    format!(
        "messages of a column: the paper has 261,632 on one level, which are all of 512 GPUs, and 4,032 on two, which are those of one rail of \
         eight between nodes; the model has {} between nodes and {} within them on one level, {} and {} on two; here are {}",
        one.across,
        one.within,
        two.across,
        two.within,
        here.collect::<Vec<_>>().join(", then ")
    )
}
