//! Tuples per joule of the processors and of the GPU (paper 1, section 6.2.11).

use std::path::Path;

use datafusion::common::Result;
use overspill::Strategy;
use overspill_experiments::{Axis, Figure, SeriesSource};
use overspill_join::hash_table::TableChoice;

use super::bench::{Bench, bytes_of};
use super::energy::{GpuEnergy, POWERCAP, ProcessorEnergy};
use super::outcome::Outcome;
use super::sweep::{Attempt, Way};
use super::tables::Sizes;
use crate::operator::Tables;

/// Joins per energy measurement, as in the paper.
const JOINS: usize = 50;
const TOY_JOINS: usize = 3;

/// The largest workload, in million tuples per side.
const LARGEST: u64 = 2048;

/// Energy counters, or why there are none.
struct Meters {
    processors: Result<ProcessorEnergy, String>,
    gpu: Result<GpuEnergy, String>,
}

/// Joules of a measurement; `None` for a device without a counter.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Joules {
    processors: Option<f64>,
    gpu: Option<f64>,
}

/// A line in each panel.
struct Line {
    name: &'static str,
    way: Way,
    /// Million tuples per side, tuples, and their joules.
    points: Vec<(f64, f64, Joules)>,
}

pub(super) fn run(bench: &Bench) -> Result<Outcome> {
    let meters = Meters { processors: ProcessorEnergy::find(Path::new(POWERCAP)), gpu: bench.gpu_energy() };
    measure(bench, &meters)
}

fn measure(bench: &Bench, meters: &Meters) -> Result<Outcome> {
    let largest = Sizes { scale: 1.0 }.millions(LARGEST, LARGEST);
    let scale = bench.scale_for(largest.build_rows + largest.probe_rows, bytes_of(&largest));
    let sizes = Sizes { scale };
    let mut notes = Vec::new();
    let mut lines = Vec::new();
    let mut add = |name, way| lines.push(Line { name, way, points: vec![] });
    match &meters.processors {
        Ok(_) => {
            add("no_partition", Way::NoPartition);
            add("radix", Way::Radix(TableChoice::default()));
        }
        Err(reason) => notes.push(format!("no_partition, radix: refused, {reason}")),
    }
    let gpu = meters.gpu.as_ref().map_err(Clone::clone).and_then(|_| bench.gpu(scale));
    match &gpu {
        Ok(_) => {
            add("triton", Way::gpu(Strategy::Triton));
            add("gpu_no_partition", Way::gpu(Strategy::GpuNoPartition));
        }
        Err(reason) => notes.push(format!("triton, gpu_no_partition: refused, {reason}")),
    }
    if lines.is_empty() {
        return Ok(Outcome::Refused(notes.join("; ")));
    }
    let gpu = gpu.ok();
    for millions in [128, 512, LARGEST] {
        let pair = sizes.millions(millions, millions);
        bench.check_memory(&pair)?;
        let tables = Tables::generate(&pair, bench.threads)?;
        let expected = tables.expected(bench.threads)?;
        for line in &mut lines {
            let gpu = gpu.as_ref().filter(|_| matches!(line.way, Way::Gpu(_)));
            let attempt = Attempt { bench, tables: &tables, expected, way: line.way, gpu };
            let tuples = (tables.build_rows + tables.probe_rows) as f64;
            match joules_of(bench, meters, attempt)? {
                Ok((joins, joules)) => line.points.push((millions as f64, tuples * joins as f64, joules)),
                Err(reason) => notes.push(format!("{}, {millions} M: refused, {reason}", line.name)),
            }
        }
    }
    Ok(figures(bench, scale, &lines, notes))
}

/// Runs a join repeatedly. Returns the number of joins and their total joules.
fn joules_of(bench: &Bench, meters: &Meters, attempt: Attempt<'_>) -> Result<Result<(usize, Joules), String>> {
    let joins = if bench.is_toy() || bench.is_emulated() { TOY_JOINS } else { JOINS };
    let mut joules = Joules::default();
    for _ in 0..joins {
        // Measure each join separately, as processor counters wrap after some minutes.
        let before = match meters.before(attempt.gpu.is_some()) {
            Ok(before) => before,
            Err(reason) => return Ok(Err(reason)),
        };
        if let Err(reason) = attempt.join()? {
            return Ok(Err(reason));
        }
        match meters.since(&before) {
            Ok(more) => joules.add(more),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok((joins, joules)))
}

struct Readings {
    processors: Option<Vec<u64>>,
    gpu: Option<f64>,
}

impl Meters {
    /// Reads the counters, and the GPU's only for a join on the GPU.
    fn before(&self, on_gpu: bool) -> Result<Readings, String> {
        let processors = self.processors.as_ref().ok().map(ProcessorEnergy::read).transpose()?;
        let gpu = self.gpu.as_ref().ok().filter(|_| on_gpu).map(GpuEnergy::joules).transpose()?;
        Ok(Readings { processors, gpu })
    }

    fn since(&self, before: &Readings) -> Result<Joules, String> {
        let processors = self.processors.as_ref().ok().zip(before.processors.as_ref());
        let gpu = self.gpu.as_ref().ok().zip(before.gpu);
        Ok(Joules {
            processors: processors.map(|(energy, before)| energy.joules_since(before)).transpose()?,
            gpu: gpu.map(|(energy, before)| Ok::<_, String>(energy.joules()? - before)).transpose()?,
        })
    }
}

impl Joules {
    fn add(&mut self, more: Self) {
        let sum = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (None, other) => other,
            (one, None) => one,
            (Some(one), Some(other)) => Some(one + other),
        };
        *self = Self { processors: sum(self.processors, more.processors), gpu: sum(self.gpu, more.gpu) };
    }

    /// The sum of both, if both are counted.
    fn together(self) -> Option<f64> {
        self.processors.zip(self.gpu).map(|(processors, gpu)| processors + gpu)
    }
}

fn figures(bench: &Bench, scale: f64, lines: &[Line], notes: Vec<String>) -> Outcome {
    let panel = |title: &'static str, y: &'static str, joules: fn(&Joules) -> Option<f64>| {
        let mut figure = Figure {
            name: "paper1-23",
            title,
            paper: "paper 1, figure 23",
            x: Axis::linear("million tuples a side"),
            y: Axis::linear(y),
            ..bench.figure(scale)
        };
        let mut has_stood_still = false;
        for line in lines {
            let points = line.points.iter().filter_map(|(x, tuples, all)| Some((*x, *tuples, joules(all)?)));
            let (moved, still): (Vec<_>, Vec<_>) = points.partition(|(_, _, joules)| *joules > 0.0);
            has_stood_still |= !still.is_empty();
            let points = moved.into_iter().map(|(x, tuples, joules)| (x, tuples / joules / 1e6));
            figure.add(SeriesSource::Measured, line.name, points.collect());
        }
        if has_stood_still {
            figure
                .notes
                .push("a counter of energy did not move in some joins, which are left out: too short".to_owned());
        }
        figure
    };
    // A CPU join runs without a GPU, as in the paper, which subtracts the GPU's energy.
    let mut processors = panel(
        "Tuples for each joule of the processors' packages",
        "million tuples a second and watt of the processors",
        |joules| joules.processors.filter(|_| joules.gpu.is_none()),
    );
    let mut gpu =
        panel("Tuples for each joule of the GPU", "million tuples for each joule of the GPU", |joules| joules.gpu);
    let together = panel(
        "Tuples for each joule of the processors' packages and the GPU",
        "million tuples for each joule of both processors",
        |joules| joules.together(),
    );
    let of_paper = "the paper counts the whole system: the CPU's radix join 7 to 9.4 million tuples a second and watt; a GPU 62 to \
                    80 W under load, its CPU 58 to 62 W idle";
    processors.notes.push(of_paper.to_owned());
    processors.notes.extend(notes);
    if bench.is_emulated() {
        gpu.notes.push("the emulated device's energy is a number for tests, and means nothing".to_owned());
    }
    let mut panels = vec![processors, gpu, together];
    // The first panel says what was left out, so it is kept even if empty.
    let mut is_first = true;
    panels.retain(|panel| std::mem::take(&mut is_first) || !panel.series.is_empty());
    if panels.iter().all(|panel| panel.series.is_empty()) {
        return Outcome::Refused("the counters of energy did not move: the joins are too short".to_owned());
    }
    Outcome::Done(panels)
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, rename, write};
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicBool, Ordering};

    use overspill::DeviceKind;

    use super::*;
    use crate::figures::{MeasureArgs, RankArgs};

    #[test]
    fn joules_of_both_are_those_of_all_joins() {
        let both = Joules { processors: Some(2.0), gpu: Some(0.5) };
        let mut all = Joules::default();
        assert_eq!(all.together(), None);
        all.add(both);
        all.add(both);
        assert_eq!((all, all.together()), (Joules { processors: Some(4.0), gpu: Some(1.0) }, Some(5.0)));
        assert_eq!(Joules { gpu: None, ..both }.together(), None);
    }

    fn lines(figures: &[Figure]) -> Vec<&str> {
        figures.iter().flat_map(|figure| &figure.series).map(|line| line.name.as_str()).collect()
    }

    #[test]
    fn what_has_a_counter_is_measured_and_the_rest_refused_by_name() {
        let args = MeasureArgs {
            clock: None,
            at: vec![],
            device: DeviceKind::Cpu,
            quick: true,
            scale: None,
            gpu_memory_limit: None,
            threads: NonZeroUsize::new(2),
            runs: NonZeroUsize::MIN,
            points: None,
            ranks: RankArgs::default(),
        };
        let bench = Bench::new(&args).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let zone = folder.path().join("intel-rapl:0");
        create_dir(&zone).unwrap();
        write(zone.join("name"), "package-0\n").unwrap();
        let tell = |energy: u64| {
            write(zone.join("next"), format!("{energy}\n")).unwrap();
            rename(zone.join("next"), zone.join("energy_uj")).unwrap();
        };
        tell(0);
        let meters =
            || Meters { processors: ProcessorEnergy::find(folder.path()), gpu: Err("it counts nothing".to_owned()) };
        let Outcome::Refused(reason) = measure(&bench, &meters()).unwrap() else { panic!("a counter stood still") };
        assert!(reason.contains("did not move"), "{reason}");
        let is_done = AtomicBool::new(false);
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| {
                for energy in 1.. {
                    tell(1000 * energy);
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            // On a busy machine that thread may not run during a join this small.
            let has_moved = |outcome: &Outcome| matches!(outcome, Outcome::Done(figures) if lines(figures).len() == 2);
            let measured = (0..1000).map(|_| measure(&bench, &meters()).unwrap()).find(has_moved);
            is_done.store(true, Ordering::Relaxed);
            measured
        });
        let Some(Outcome::Done(figures)) = measured else { panic!("no joules of both joins in 1,000 tries") };
        assert_eq!((figures.len(), lines(&figures)), (1, vec!["no_partition", "radix"]), "{figures:?}");
        assert!(figures[0].series.iter().flat_map(|line| &line.points).all(|point| point.1 > 0.0), "{figures:?}");
        let notes = figures[0].notes.join("\n");
        assert!(notes.contains("triton, gpu_no_partition: refused, it counts nothing"), "{notes}");
    }
}
