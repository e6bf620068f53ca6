//! Joins of various sizes and kinds: the parameters that a paper's figure varies, and their measurement.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use overspill::{PrefixSumProcessor, Strategy};
use overspill_experiments::{Axis, Figure, SeriesSource};
use overspill_gpu_join::{DeviceRequest, DeviceTuning, Gpu};
use overspill_join::hash_table::TableChoice;
use overspill_join::radix::ProbeRegions;
use overspill_kernels::Algorithm;
use overspill_machine::driver::VirtualClock;
use serde_json::{Value, json};

use super::bench::Bench;
use super::claim::{Claim, extremes};
use super::clock::{Observed, Predicted};
use super::kernel_times::{KernelGroup, KernelTimes, kernel_times};
use super::outcome::Outcome;
use crate::datagen::TablePair;
use crate::gpu_join::{DeviceCounts, prefix_sum, request};
use crate::operator::{Answer, How, Joined, Tables};
use crate::report::{failed, median, tell};

/// The most runs of a join whose time is predicted from the calls of its driver.
const MOST_RUNS_TO_SETTLE: usize = 12;

/// A join method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// All threads probe one hash table.
    NoPartition,
    /// Probe rows are partitioned first.
    Radix(TableChoice),
    Gpu(OnGpu),
}

/// The parameters of a GPU join.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OnGpu {
    pub(super) strategy: Strategy,
    /// The share of partitions and hash tables in GPU memory.
    pub(super) cached_share: f64,
    pub(super) first_pass: Option<Algorithm>,
    /// The processor that counts keys before the first pass; `None` for SQL's default.
    pub(super) prefix_sum: Option<PrefixSumProcessor>,
    /// The share of the multiprocessors that kernels occupy.
    pub(super) multiprocessors: f64,
    /// Whether the CPU gets pairs to assemble rows. If not, kernels sum payloads.
    pub(super) wants_pairs: bool,
}

impl Way {
    /// A GPU strategy with SQL's parameters.
    pub(super) fn gpu(strategy: Strategy) -> Self {
        Self::Gpu(OnGpu::new(strategy))
    }
}

impl OnGpu {
    pub(super) fn new(strategy: Strategy) -> Self {
        // Caching all partitions does not pay off (paper 1, section 6.2.7).
        let cached_share = match strategy {
            Strategy::GpuNoPartition | Strategy::Het | Strategy::GpuHet => 1.0,
            _ => overspill::OverspillConfig::default().gpu_cached_share,
        };
        Self { strategy, cached_share, first_pass: None, prefix_sum: None, multiprocessors: 1.0, wants_pairs: false }
    }

    /// Sets the share of partitions or hash table in GPU memory.
    pub(super) fn cached(self, cached_share: f64) -> Self {
        Self { cached_share, ..self }
    }

    /// Sets the processor that counts the keys.
    pub(super) fn counted_by(self, processor: PrefixSumProcessor) -> Self {
        Self { prefix_sum: Some(processor), ..self }
    }

    fn request(self, bench: &Bench, gpu: &Arc<Gpu>, counts: &Arc<DeviceCounts>) -> Result<DeviceRequest> {
        let gpu = if self.multiprocessors < 1.0 {
            let all = gpu.device().properties().multiprocessors;
            let some = ((f64::from(all) * self.multiprocessors).round() as u32).max(1);
            gpu.confined_to(some).map_err(failed)?
        } else {
            Arc::clone(gpu)
        };
        let table_share = if self.strategy == Strategy::GpuNoPartition { self.cached_share } else { 1.0 };
        let tuning = DeviceTuning { first_pass: self.first_pass, table_share };
        let processor = self.prefix_sum.unwrap_or_else(|| prefix_sum(bench.device(), bench.threads, &gpu));
        let request = request(&gpu, self.strategy, processor, counts);
        Ok(DeviceRequest { cached_share: self.cached_share, tuning, ..request })
    }
}

/// A point of a line to measure.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) line: String,
    pub(super) x: f64,
    pub(super) pair: TablePair,
    pub(super) way: Way,
}

impl Run {
    pub(super) fn new(line: impl Into<String>, x: f64, pair: &TablePair, way: Way) -> Self {
        Self { line: line.into(), x, pair: pair.clone(), way }
    }

    /// A point of each of several lines, over the same tables.
    pub(super) fn each<const N: usize>(x: f64, pair: &TablePair, lines: [(&str, Way); N]) -> [Self; N] {
        lines.map(|(line, way)| Self::new(line, x, pair, way))
    }
}

/// Values that a paper's text states for its machines, shown beside ours.
#[derive(Debug, Clone)]
pub(super) struct Stated {
    pub(super) name: &'static str,
    /// Billions of tuples per second, by x.
    pub(super) points: Vec<(f64, f64)>,
}

/// Additional panels of a figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Detail {
    #[default]
    Rates,
    /// Also the build side's share of the time.
    Phases,
    /// Also the used share of the link's rate.
    Link,
    /// As [`Detail::Phases`], and also the GPU's time for each kernel.
    Kernels,
}

/// A figure of a paper.
#[derive(Debug, Clone, Default)]
pub(super) struct Sweep {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) paper: &'static str,
    pub(super) x: Axis,
    pub(super) runs: Vec<Run>,
    pub(super) stated: Vec<Stated>,
    pub(super) claims: Vec<Claim>,
    pub(super) detail: Detail,
    /// Further statements of the text, and what the figure leaves out and why.
    pub(super) notes: Vec<&'static str>,
}

/// The measurements of a line at a point.
#[derive(Debug, Clone, Copy)]
struct Point {
    x: f64,
    tuples: f64,
    build_seconds: f64,
    seconds: f64,
    /// Only for the GPU's lines.
    moved: Option<Moved>,
    /// Only for the GPU's lines, if requested.
    kernels: Option<KernelTimes>,
    /// Only for the GPU's lines, if requested.
    predicted: Option<Predicted>,
}

impl Point {
    fn json(&self, figure: &str, line: &str) -> Value {
        json!({
            "figure": figure,
            "line": line,
            "x": self.x,
            "tuples": self.tuples,
            "build_seconds": self.build_seconds,
            "seconds": self.seconds,
            "link_bytes": self.moved.map(|moved| moved.link),
            "spilled_bytes": self.moved.map(|moved| moved.spilled),
            "predicted": self.predicted,
        })
    }
}

/// Memory traffic and use of a GPU join.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// Bytes that crossed the link.
    link: u64,
    /// Bytes of hash tables and partitions in CPU memory.
    spilled: u64,
}

#[derive(Debug)]
struct Line {
    name: String,
    is_on_gpu: bool,
    points: Vec<Point>,
}

impl Line {
    /// The points of a panel, for which `y` gives the height of those that have one.
    fn points_of(&self, y: impl Fn(&Point) -> Option<f64>) -> Vec<(f64, f64)> {
        sorted(self.points.iter().filter_map(|point| Some((point.x, y(point)?))).collect())
    }
}

fn sorted(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

impl Sweep {
    /// Measures the figure.
    ///
    /// # Errors
    /// If memory runs out, a setting is out of range, or an answer is wrong.
    pub(super) fn run(self, bench: &Bench, scale: f64) -> Result<Outcome> {
        let mut lines: Vec<Line> = Vec::new();
        // Lines with their reasons, each once.
        let mut refusals: Vec<(String, String)> = Vec::new();
        let mut bounds: Vec<(f64, [f64; 3])> = Vec::new();
        let mut tables: Option<(TablePair, Tables, Answer)> = None;
        for Run { line, x, pair, way } in &self.runs {
            let refused = |reason: String| (line.clone(), reason);
            let gpu = match way {
                Way::Gpu(_) => match bench.gpu(scale) {
                    Ok(gpu) => Some(gpu),
                    Err(reason) => {
                        refusals.push(refused(reason));
                        continue;
                    }
                },
                Way::NoPartition | Way::Radix(_) => None,
            };
            let made = match tables.take() {
                Some(made) if made.0 == *pair => made,
                other => {
                    // Both pairs of tables would take too much memory.
                    drop(other);
                    bench.check_memory(pair)?;
                    tell(&format!("{}: {} x {}", self.name, pair.build_rows, pair.probe_rows));
                    let tables = Tables::generate(pair, bench.threads)?;
                    let expected = tables.expected(bench.threads)?;
                    (pair.clone(), tables, expected)
                }
            };
            let (_, joined, expected) = tables.insert(made);
            let attempt = Attempt { bench, tables: joined, expected: *expected, way: *way, gpu: gpu.as_ref() };
            let measured = match attempt.measure(*x, (pair, scale), self.detail == Detail::Kernels)? {
                Ok(point) => point,
                Err(reason) => {
                    refusals.push(refused(reason));
                    continue;
                }
            };
            bench.keep(&measured.json(self.name, line))?;
            if !bounds.iter().any(|bound| bound.0 == *x) {
                bounds.push((*x, bench.bounds_of(pair)?));
            }
            match lines.iter_mut().find(|other| other.name == *line) {
                Some(other) => other.points.push(measured),
                None => lines.push(Line { name: line.clone(), is_on_gpu: gpu.is_some(), points: vec![measured] }),
            }
        }
        let mut told = HashSet::new();
        refusals.retain(|refusal| told.insert(refusal.clone()));
        if lines.is_empty() {
            let mut reasons: Vec<_> = refusals.into_iter().map(|(_, reason)| reason).collect();
            reasons.dedup();
            return Ok(Outcome::Refused(reasons.join("; ")));
        }
        let mut notes: Vec<_> =
            refusals.into_iter().map(|(line, reason)| format!("{line}: refused, {reason}")).collect();
        notes.extend(self.notes.iter().map(|note| (*note).to_owned()));
        Ok(Outcome::Done(self.panels(bench, scale, &lines, bounds, notes)))
    }

    /// The panels: rates, bytes over the link, and the requested details.
    fn panels(
        &self,
        bench: &Bench,
        scale: f64,
        lines: &[Line],
        bounds: Vec<(f64, [f64; 3])>,
        notes: Vec<String>,
    ) -> Vec<Figure> {
        let panel = |y: &'static str| Figure {
            name: self.name,
            title: self.title,
            paper: self.paper,
            x: self.x.clone(),
            y: Axis::linear(y),
            ..bench.figure(scale)
        };
        let panel_of = |y: &'static str, lines: &[&Line], value: &dyn Fn(&Point) -> Option<f64>| {
            let mut panel = panel(y);
            for line in lines {
                panel.add(SeriesSource::Measured, line.name.clone(), line.points_of(value));
            }
            panel
        };
        let all: Vec<_> = lines.iter().collect();
        let with_rates: Vec<_> = lines.iter().filter(|line| !(line.is_on_gpu && bench.is_emulated())).collect();
        let rates = self.rates(panel("million tuples a second of both sides"), bench, lines, bounds, notes);
        let link = |point: &Point| Some(point.moved?.link as f64 / point.tuples);
        let spilled = |point: &Point| Some(point.moved?.spilled as f64 / point.tuples);
        let predicted = |value: fn(&Predicted) -> f64| move |point: &Point| point.predicted.as_ref().map(value);
        let mut predictions = panel("seconds of a join of the paper's size, predicted: a model");
        if let Some(clock) = &bench.clock {
            for line in lines {
                for (name, value) in [
                    ("predicted", (|one| one.seconds) as fn(&Predicted) -> f64),
                    ("bytes over the link", |one| one.bound),
                ] {
                    let points = line.points_of(predicted(value));
                    predictions.add(SeriesSource::Predicted, format!("{}, {name}", line.name), points);
                }
                predictions.notes.extend(line.points.iter().filter_map(|point| {
                    Some(format!("{} at {} on {}: {}", line.name, point.x, clock.name(), point.predicted?))
                }));
            }
        }
        let mut others = vec![
            panel_of("bytes over the link a tuple of both sides", &all, &link),
            panel_of("bytes of hash tables and partitions in CPU memory, a tuple of both sides", &all, &spilled),
            predictions,
        ];
        if self.detail == Detail::Link
            && let Some(rate) = bench.link_rate()
        {
            let used = |point: &Point| Some(point.moved?.link as f64 / point.seconds / rate * 100.0);
            let y = "% of the rate at which a kernel reads CPU memory, of columns and pairs";
            others.push(panel_of(y, &with_rates, &used));
        }
        if matches!(self.detail, Detail::Phases | Detail::Kernels) {
            let build = |point: &Point| Some(point.build_seconds / point.seconds * 100.0);
            others.push(panel_of("% of the time that the build side takes", &with_rates, &build));
        }
        if self.detail == Detail::Kernels {
            others.extend(kernel_panels(bench, lines, panel));
        }
        // The first panel says what was left out, so it is kept even if empty.
        others.retain(|panel| !panel.series.is_empty());
        std::iter::once(rates).chain(others).collect()
    }

    /// The panel of rates, beside the bounds of the machine and the paper's rates.
    fn rates(
        &self,
        mut rates: Figure,
        bench: &Bench,
        lines: &[Line],
        bounds: Vec<(f64, [f64; 3])>,
        notes: Vec<String>,
    ) -> Figure {
        let (measured, unmeasured): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| !(line.is_on_gpu && bench.is_emulated()));
        if !measured.is_empty() {
            let names = ["a random read a tuple", "partitioning passes", "the link, each tuple once"];
            for (place, name) in names.into_iter().enumerate() {
                let points = bounds.iter().map(|(x, bounds)| (*x, bounds[place])).filter(|point| point.1 > 0.0);
                rates.add(SeriesSource::Bound, name, sorted(points.collect()));
            }
        }
        for line in measured {
            let points = line.points_of(|point| Some(point.tuples / point.seconds / 1e6));
            rates.add(SeriesSource::Measured, line.name.clone(), points);
        }
        for stated in &self.stated {
            let points = stated.points.iter().map(|(x, rate)| (*x, rate * 1e3)).collect();
            rates.add(SeriesSource::Paper, stated.name, sorted(points));
        }
        if self.stated.is_empty() {
            rates.notes.push("rates of the paper: not stated in its text".to_owned());
        }
        if let Some(line) = unmeasured.first() {
            rates.notes.push(format!(
                "{} and other lines of the GPU: no rates, as the emulated device has no speed",
                line.name
            ));
        }
        if bench.is_toy() {
            rates.notes.push("toy size: rates mean nothing, and are compared with nothing".to_owned());
        }
        let compared = Some(&rates).filter(|_| !bench.is_toy());
        let claims: Vec<_> = self.claims.iter().map(|claim| claim.beside(compared)).collect();
        rates.notes.extend(claims.into_iter().chain(notes));
        rates
    }
}

/// Panels of the GPU's time for each kernel, beside the values in the text of paper 1.
fn kernel_panels(bench: &Bench, lines: &[Line], panel: impl Fn(&'static str) -> Figure) -> [Figure; 2] {
    let mut seconds = panel("seconds of the GPU, added up by kernel");
    let mut shares = panel("% of the seconds of the GPU, by kernel");
    for line in lines {
        for group in KernelGroup::ALL {
            let of_group = |value: fn(&KernelTimes, KernelGroup) -> f64| {
                let mut points = line.points_of(|point| Some(value(point.kernels.as_ref()?, group)));
                points.retain(|point| point.1 > 0.0);
                points
            };
            seconds.add(SeriesSource::Measured, group.name(), of_group(KernelTimes::seconds));
            shares.add(SeriesSource::Measured, group.name(), of_group(KernelTimes::share));
        }
    }
    seconds.notes.push(
        "of one more run, in which each kernel was timed; what ran side by side counts each, so that they may add up to more than \
         the run took"
            .to_owned(),
    );
    if bench.is_emulated() {
        seconds
            .notes
            .push("the emulated device has no speed: these are the CPU's seconds, and mean nothing".to_owned());
    }
    for (group, paper) in [(KernelGroup::PrefixSum1, "18.9 to 23.4"), (KernelGroup::Partition1, "43.8 to 47.2")] {
        let ours = shares.series.iter().filter(|line| line.name == group.name()).flat_map(|line| &line.points);
        let (least, most) = extremes(ours.map(|point| point.1));
        let here = match (least <= most, bench.is_emulated()) {
            (true, false) => format!("here {least:.1} to {most:.1} %"),
            _ => "not measured here".to_owned(),
        };
        shares.notes.push(format!("{}: paper {paper} %, {here}", group.name()));
    }
    [seconds, shares]
}

/// A join of tables with a method.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) bench: &'a Bench,
    pub(super) tables: &'a Tables,
    pub(super) expected: Answer,
    pub(super) way: Way,
    /// The GPU, if the method uses one.
    pub(super) gpu: Option<&'a Arc<Gpu>>,
}

impl Attempt<'_> {
    /// Measures the join of tables at a scale of the paper's, or returns why the requested method did not run.
    fn measure(self, x: f64, sizes: (&TablePair, f64), with_kernels: bool) -> Result<Result<Point, String>> {
        let (mut builds, mut totals) = (vec![], vec![]);
        let runs = self.bench.runs_of(self.gpu.is_some());
        let mut moved = None;
        let mut clock: Option<VirtualClock> = None;
        // While streams hold more at the same time than in all joins before, they register and map memory, and the join is run again.
        let is_unsettled = |clock: &VirtualClock| clock.registrations.calls + clock.mappings.calls > 0;
        for run in 0..MOST_RUNS_TO_SETTLE.max(runs) {
            if run >= runs && !(self.bench.clock.is_some() && clock.as_ref().is_some_and(is_unsettled)) {
                break;
            }
            let before = VirtualClock::now();
            let joined = match self.join()? {
                Ok((joined, by_gpu)) => {
                    moved = by_gpu;
                    let charged = before.zip(VirtualClock::now()).map(|(before, after)| after - before);
                    // The first run maps and registers memory for the later ones. Of these, the run with the fewest charges
                    // counts: what streams hold at the same time differs from run to run, and so does what they register.
                    let fewest = clock.filter(|_| run > 1);
                    clock = charged.into_iter().chain(fewest).min_by_key(VirtualClock::nanoseconds);
                    joined
                }
                Err(reason) => return Ok(Err(reason)),
            };
            // The first run faults in memory for the others.
            if run > 0 || runs == 1 {
                builds.push(joined.seconds.build);
                totals.push(joined.seconds.build + joined.seconds.probe);
            }
        }
        let (Some(build_seconds), Some(seconds)) = (median(builds), median(totals)) else {
            return exec_err!("A join must run at least once.");
        };
        // In a separate run, as timing kernels takes time.
        let kernels = if with_kernels && self.gpu.is_some() {
            // If the program is already traced, the rates are still reported.
            match kernel_times(|| self.join()) {
                Ok((joined, times)) => match joined? {
                    Ok(_) => Some(times),
                    Err(reason) => return Ok(Err(reason)),
                },
                Err(reason) => {
                    tell(&format!("kernels are not timed: {reason}"));
                    None
                }
            }
        } else {
            None
        };
        let tuples = (self.tables.build_rows + self.tables.probe_rows) as f64;
        let predicted = match moved.zip(clock) {
            Some((moved, calls)) => self.predict(sizes, moved, calls)?,
            None => None,
        };
        Ok(Ok(Point { x, tuples, build_seconds, seconds, moved, kernels, predicted }))
    }

    /// The time that the join of the paper's size would take, if it is to be predicted.
    fn predict(self, (pair, scale): (&TablePair, f64), moved: Moved, calls: VirtualClock) -> Result<Option<Predicted>> {
        let (Some(clock), Way::Gpu(on_gpu), Some(gpu)) = (&self.bench.clock, self.way, self.gpu) else {
            return Ok(None);
        };
        let observed = Observed {
            strategy: on_gpu.strategy,
            link_bytes: moved.link,
            calls,
            scale,
            gpu_memory_limit: gpu.device().memory_limit(),
        };
        // What is measured is kept.
        Ok(clock.predict(pair, observed).inspect_err(|error| tell(&error.message())).ok())
    }

    /// Joins once, and checks the answer.
    pub(super) fn join(self) -> Result<Result<(Joined, Option<Moved>), String>> {
        let Self { bench, tables, expected, way, gpu } = self;
        let counts = Arc::new(DeviceCounts::default());
        let how = match (way, gpu) {
            (Way::Gpu(way), Some(gpu)) => {
                let device = Some(way.request(bench, gpu, &counts)?);
                How { device, wants_pairs: way.wants_pairs, ..How::default() }
            }
            (Way::Radix(table_choice), _) => {
                How { probe_regions: Some(regions(bench, tables.build_rows)), table_choice, ..How::default() }
            }
            _ => How::default(),
        };
        let joined = tables.join(bench.threads, how)?;
        joined.check(expected)?;
        if matches!(way, Way::Radix(_)) && !joined.is_radix {
            return Ok(Err(format!("a build side of {} rows was not partitioned", tables.build_rows)));
        }
        if gpu.is_none() {
            return Ok(Ok((joined, None)));
        }
        if let Way::Gpu(OnGpu { prefix_sum: Some(processor), .. }) = way
            && (counts.get().cpu_prefix_sums > 0) != (processor == PrefixSumProcessor::Cpu)
        {
            return Ok(Err("its keys were counted by the other processor".to_owned()));
        }
        let counts = counts.get();
        let link = counts.all_link_bytes(tables.probe_rows);
        Ok(link.map(|link| (joined, Some(Moved { link, spilled: counts.spilled_bytes }))))
    }
}

/// The regions of a core's cache. At toy size, where the table would be one region, a fraction of the table.
pub(super) fn regions(bench: &Bench, build_rows: usize) -> ProbeRegions {
    const PARTS: usize = 8;
    let regions = ProbeRegions::of_this_machine(0);
    if !bench.is_toy() {
        return regions;
    }
    let part = (build_rows * size_of::<u64>() / PARTS).max(1);
    ProbeRegions { region: regions.region.min(part), ..regions }
}
