//! Figures of paper 3: Schmeißer, Lutz and Markl, *Efficiently Indexing Large Data on GPUs with Fast Interconnects* (EDBT 2025), for a
//! V100 with an IBM POWER9 (NVLink 2.0), and an A100 (PCIe 4.0).
//!
//! A relation *s* of 2^26 keys, drawn from the sorted keys of *r*, is looked up in an index over *r*, which is there before. Times include
//! windows and the pairs that are written (section 3.2). The lines of a GPU are measured where there is one, those of the CPU everywhere,
//! and the advisor predicts those of the paper's machines.

mod cpu;
mod gpu;
mod model;
mod translations;
mod workload;

use std::time::Instant;

use datafusion::common::Result;
use overspill_advisor::IndexKind;
use overspill_experiments::{Axis, Figure, SeriesSource};
use serde_json::json;

use self::model::Model;
use self::workload::{Sizes, Workload};
use super::bench::Bench;
use super::outcome::Outcome;
use crate::report::{median, tell};

/// The kinds that the paper has.
const KINDS: [IndexKind; 4] = [IndexKind::BTree, IndexKind::BinarySearch, IndexKind::Harmonia, IndexKind::RadixSpline];

/// Sizes of r in GiB. The paper's machine translates 32 GiB at full speed.
const GIB: [f64; 10] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0, 111.0];

/// The size of r, in GiB, where something else varies (sections 5.2.1 and 5.2.2).
const FIXED_GIB: f64 = 100.0;

/// Keys of a window where nothing is said of it.
const WINDOW: u64 = overspill_advisor::IndexJoin::WINDOW;

/// What the names of a GPU's lines end with.
const GPU: &str = ", GPU";

/// A figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paper3 {
    /// Figure 3: lookups as keys come.
    AsKeysCome,
    /// Figure 4: translations a lookup.
    Translations,
    /// Figure 5: all keys are partitioned first.
    Partitioned,
    /// Figure 6: translations that partitioning removes.
    TranslationsRemoved,
    /// Figure 7: the size of windows.
    WindowSize,
    /// Figure 8: skew.
    Skew,
    /// Figure 9: two GPUs and links.
    Hardware,
}

/// How keys are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    AsKeysCome,
    /// In windows of this number of keys, where s has the paper's 2^26.
    Windows(u64),
}

/// A point of all lines.
struct Point {
    x: f64,
    gib: f64,
    zipf: f64,
    order: Order,
}

impl Paper3 {
    /// # Errors
    /// If memory runs out, the device fails, or an answer is wrong.
    pub(super) fn run(self, bench: &Bench) -> Result<Outcome> {
        match self {
            Self::Translations => Ok(Outcome::Done(vec![translations::requested(bench)])),
            Self::TranslationsRemoved => Ok(Outcome::Done(vec![translations::removed(bench)])),
            _ => self.measure(bench),
        }
    }

    fn points(self) -> Vec<Point> {
        let of_size = |order: Order| GIB.map(|gib| Point { x: gib, gib, zipf: 0.0, order }).into();
        match self {
            Self::AsKeysCome => of_size(Order::AsKeysCome),
            Self::Partitioned => of_size(Order::Windows(Workload::LOOKUPS)),
            Self::Hardware => of_size(Order::Windows(WINDOW)),
            Self::WindowSize => (18..=26)
                .map(|bits| {
                    let mebibytes = f64::from(1 << bits) * 8.0 / f64::from(1 << 20);
                    Point { x: mebibytes, gib: FIXED_GIB, zipf: 0.0, order: Order::Windows(1 << bits) }
                })
                .collect(),
            Self::Skew => [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
                .map(|zipf| Point { x: zipf, gib: FIXED_GIB, zipf, order: Order::Windows(WINDOW) })
                .into(),
            Self::Translations | Self::TranslationsRemoved => vec![],
        }
    }

    fn kinds(self) -> &'static [IndexKind] {
        // Section 5.2.3: the two fastest.
        if self == Self::Hardware { &KINDS[2..] } else { &KINDS }
    }

    /// A hash join degrades to a walk along equal keys if they are skewed: the paper stopped it after ten hours.
    fn has_hash_join(self) -> bool {
        self != Self::Skew
    }

    fn figure(self) -> Figure {
        let (name, title, paper, x) = match self {
            Self::AsKeysCome => ("paper3-3", "Index joins, lookups as keys come", "paper 3, figure 3", "GiB of r"),
            Self::Partitioned => ("paper3-5", "Index joins, partitioned", "paper 3, figure 5", "GiB of r"),
            Self::WindowSize => ("paper3-7", "Index joins by the window", "paper 3, figure 7", "MiB of a window"),
            Self::Skew => ("paper3-8", "Index joins by skew", "paper 3, figure 8", "Zipf exponent"),
            _ => ("paper3-9", "Index joins on two GPUs", "paper 3, figure 9", "GiB of r"),
        };
        let x = if self == Self::Skew { Axis::linear(x) } else { Axis::logarithmic(x) };
        Figure { name, title, paper, x, y: Axis::linear("queries a second"), ..Figure::default() }
    }

    /// What the paper says in its text.
    fn stated(self) -> (Vec<(&'static str, f64)>, &'static str) {
        match self {
            Self::AsKeysCome => (
                vec![],
                "the paper: all indexes fall beyond 32 GiB, up to 16.7 times, and are then slower than the hash join",
            ),
            Self::Partitioned => (
                vec![
                    ("btree", 0.6),
                    ("binary_search", 0.7),
                    ("harmonia", 1.0),
                    ("radix_spline", 1.9),
                    ("hash join", 0.2),
                ],
                "the paper: 3 to 10 times as fast as the hash join at 111 GiB",
            ),
            Self::WindowSize => {
                (vec![], "the paper: all windows within a factor of 2; RadixSpline is fastest from 4 to 52 MiB")
            }
            Self::Skew => (
                vec![],
                "the paper: faster for exponents above 1, where 69 % of reads hit the L1 cache; its hash join was stopped after 10 \
                 hours",
            ),
            _ => (
                vec![],
                "the paper: an index join is faster than the hash join from 6.2 GiB on with NVLink 2.0, from 13.9 GiB on with PCIe 4.0; \
                 RadixSpline is 1.1 to 1.8 times as fast as Harmonia",
            ),
        }
    }

    fn measure(self, bench: &Bench) -> Result<Outcome> {
        let mut points = self.points();
        points.retain(|point| bench.measures(point.x));
        let Some(most) = points.iter().map(|point| Workload::rows(point.gib)).max() else {
            return Ok(Outcome::Refused("it has no point at what --at names".to_owned()));
        };
        let scale = bench.scale_for(most + Workload::LOOKUPS, (most + Workload::LOOKUPS) * 8);
        let mut figure =
            Figure { machine: bench.figure(scale).machine, emulated: bench.is_emulated(), ..self.figure() };
        let mut lines = Lines::default();
        for point in &points {
            tell(&format!("{} = {}", figure.x.label, point.x));
            self.measure_point(bench, point, scale, &mut lines)?;
        }
        for (name, points) in lines.0 {
            if !(name.ends_with(GPU) && bench.is_emulated()) {
                figure.add(SeriesSource::Measured, name, points);
            }
        }
        // However r is joined without an index, all of it is read.
        let rate = bench.read_rate()?;
        let read = |point: &Point| (point.x, rate / Sizes::new(point.gib, 1.0).bytes());
        figure.add(SeriesSource::Bound, "reading r once, CPU", points.iter().map(read).collect());
        if bench.is_toy() {
            figure.notes.push("toy size: rates mean nothing, and are compared with nothing".to_owned());
        }
        self.predict(&points, &mut figure)?;
        let (stated, says) = self.stated();
        for (name, queries) in stated {
            figure.add(SeriesSource::Paper, name, vec![(GIB[GIB.len() - 1], queries)]);
        }
        figure.notes.push(says.to_owned());
        if scale < 1.0 {
            figure.notes.push(format!(
                "measured with {scale:.3e} of the rows of r and s; the rate is multiplied by that, as if the query had 2^26 lookups"
            ));
        }
        match &bench.machine.gpu {
            Err(reason) => figure.notes.push(format!("GPU: refused, {reason}")),
            Ok(gpu) if gpu.emulated => {
                let reason = "GPU: refused, the emulated device gave the right answers; it has no speed";
                figure.notes.push(reason.to_owned());
            }
            Ok(_) => {}
        }
        Ok(Outcome::Done(vec![figure]))
    }

    /// Adds a point to each line.
    fn measure_point(self, bench: &Bench, point: &Point, scale: f64, lines: &mut Lines) -> Result<()> {
        let workload = Workload::new(Sizes::new(point.gib, scale), point.zipf, bench.threads)?;
        let window = match point.order {
            Order::AsKeysCome => None,
            Order::Windows(keys) => Some(((keys as f64 * scale) as usize).max(1)),
        };
        for kind in self.kinds() {
            let index = workload.index(*kind)?;
            let seconds = cpu::join(&workload, &index, window, bench.threads, bench.runs_of(false))?;
            lines.add(bench, format!("{kind}, CPU"), point.x, seconds / scale)?;
            if let Ok(gpu) = &bench.machine.gpu {
                let runs = bench.runs_of(true);
                let seconds = gpu::join(gpu, &workload, &index, window, runs)?;
                lines.add(bench, format!("{kind}{GPU}"), point.x, seconds / scale)?;
            }
        }
        if let (true, Ok(gpu)) = (self.has_hash_join(), &bench.machine.gpu) {
            let seconds = gpu::hash_join(gpu, &workload, bench.runs_of(true))?;
            lines.add(bench, format!("hash join{GPU}"), point.x, seconds / scale)?;
        }
        Ok(())
    }

    /// Adds lines of the advisor for the paper's machines.
    fn predict(self, points: &[Point], figure: &mut Figure) -> Result<()> {
        let machines: &[&str] = match self {
            Self::Hardware => &["ac922", "a100-pcie4"],
            // The model knows no skew.
            Self::Skew => &[],
            _ => &["ac922"],
        };
        for name in machines {
            let model = Model::new(name)?;
            for kind in self.kinds() {
                let queries = points.iter().map(|point| (point.x, model.index_join(*kind, point.gib, point.order)));
                figure.add(SeriesSource::Predicted, format!("{kind}, {name}"), queries.collect());
            }
            if self != Self::WindowSize {
                let queries = points.iter().map(|point| (point.x, model.hash_join(point.gib)));
                figure.add(SeriesSource::Predicted, format!("hash join, {name}"), queries.collect());
            }
            if self == Self::Hardware {
                let crossover = model.crossover(IndexKind::RadixSpline);
                let share = 100.0 * Workload::LOOKUPS as f64 / Workload::rows(crossover) as f64;
                figure.notes.push(format!(
                    "{name}, by the model: radix_spline is faster than the hash join from {crossover:.1} GiB on, where s has {share:.1} % \
                     of the rows of r"
                ));
            }
        }
        Ok(())
    }
}

/// The median seconds of `runs` runs of `work`, and the result of the last. The first run is not counted, unless it is the only one: it
/// faults in memory for the others.
fn median_seconds<T>(runs: usize, mut work: impl FnMut() -> Result<T>) -> Result<(f64, T)> {
    let mut seconds = Vec::new();
    let mut timed = |is_counted: bool| -> Result<T> {
        let begin = Instant::now();
        let result = work()?;
        if is_counted {
            seconds.push(begin.elapsed().as_secs_f64());
        }
        Ok(result)
    };
    let mut last = timed(runs <= 1)?;
    for _ in 1..runs {
        last = timed(true)?;
    }
    Ok((median(seconds).unwrap_or(f64::NAN), last))
}

/// Points by the name of their line.
#[derive(Default)]
struct Lines(Vec<(String, Vec<(f64, f64)>)>);

impl Lines {
    /// Adds a point to the line `name`. `seconds` is the time of the query at the paper's size. The point is also written to the file
    /// of `--points`.
    fn add(&mut self, bench: &Bench, name: String, x: f64, seconds: f64) -> Result<()> {
        bench.keep(&json!({ "line": name, "x": x, "seconds": seconds }))?;
        let y = 1.0 / seconds;
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((x, y)),
            None => self.0.push((name, vec![(x, y)])),
        }
        Ok(())
    }
}
