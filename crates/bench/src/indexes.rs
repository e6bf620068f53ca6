//! The experiment `overspill bench index`: indexes over sorted keys, by their kind, with and without windows (paper 3).

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_err};
use overspill_experiments::{Axis, Figure, SeriesSource};
use overspill_index::{Index, IndexKind, SortedKeys};
use overspill_join::index_join::Window;
use overspill_machine::memory::{PageVec, in_small_pages};
use overspill_machine::topology::Topology;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::Exp1;

use crate::kinds::KindsArgs;
use crate::report::{failed, machine, median};
use crate::threads::on_each;

/// The pages that arrays of at least 16 MiB lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pages {
    /// 2 MiB, as joins use them
    Huge,
    /// 4 KiB: address translation takes part of the time
    Small,
}

/// The arguments of `overspill bench index`.
#[derive(Debug, Clone, Args)]
pub struct IndexArgs {
    /// Number of sorted keys: uniformly distributed, of 8 bytes
    #[arg(long, default_value = "67108864", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 36))]
    pub keys: u64,

    /// Number of keys that each thread looks up, drawn from the sorted ones
    #[arg(long, default_value = "4194304", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub lookups: u64,

    /// Number of keys that a window partitions before they are looked up
    #[arg(long, default_value = "4194304", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub window: u64,

    /// The pages that keys and indexes lie in [default: each in turn]
    #[arg(long, value_enum, value_name = "PAGES")]
    pub pages: Vec<Pages>,

    /// How it is run, and where the figure goes.
    #[command(flatten)]
    pub kinds: KindsArgs,
}

/// Looks keys up and returns the figure.
///
/// # Errors
/// If memory runs out, or a place is wrong.
pub(crate) fn run(args: &IndexArgs) -> Result<Figure> {
    let topology = Topology::of_this_machine();
    let threads = args.kinds.threads(&topology);
    let mut figure = Figure {
        name: "index",
        title: "Lookups in sorted keys",
        paper: "paper 3, section 5",
        machine: format!("{}, {threads} threads; {} keys of 8 bytes", machine(&topology), args.keys),
        x: Axis::named("index", IndexKind::ALL.map(IndexKind::name)),
        y: Axis::linear("million lookups a second"),
        ..Figure::default()
    };
    let all = if args.pages.is_empty() { Pages::value_variants() } else { &args.pages };
    for pages in all {
        let (name, measured) = match pages {
            Pages::Huge => ("huge pages", measure(args, threads)?),
            Pages::Small => ("4 KiB pages", in_small_pages(|| measure(args, threads)).map_err(failed)??),
        };
        let millions = |lookups: f64| lookups / 1e6;
        for (how, speeds) in [("as they come", &measured.plain), ("in windows", &measured.windows)] {
            let points = (0..).zip(speeds).map(|(place, speed)| (f64::from(place), millions(*speed)));
            figure.add(SeriesSource::Measured, format!("{name}, {how}"), points.collect());
        }
        let bound = (0..measured.plain.len()).map(|place| (place as f64, millions(measured.random_reads)));
        figure.add(SeriesSource::Bound, format!("{name}: random reads of the keys"), bound.collect());
        for (kind, (bytes, seconds)) in IndexKind::ALL.into_iter().zip(measured.builds) {
            figure.notes.push(format!("{name}, {kind}: {bytes} bytes besides the keys, built in {seconds:.3} s"));
        }
    }
    args.kinds.write(&figure)?;
    Ok(figure)
}

struct Measured {
    /// Lookups a second of each kind, of keys as they come and of windows of them.
    plain: Vec<f64>,
    windows: Vec<f64>,
    random_reads: f64,
    /// Bytes of each index, and the seconds in which it was built.
    builds: Vec<(usize, f64)>,
}

fn measure(args: &IndexArgs, threads: usize) -> Result<Measured> {
    let keys = Arc::new(sorted_keys(args.keys)?);
    let probes = on_each((0..threads as u64).collect(), |thread| {
        let mut random = ChaCha8Rng::seed_from_u64(1 + thread);
        let mut probes = PageVec::zeroed(usize::try_from(args.lookups).unwrap_or(usize::MAX)).map_err(failed)?;
        probes.fill_with(|| keys[random.random_range(0..keys.len())]);
        Ok(probes)
    })?;
    let mut indexes = Vec::new();
    let mut builds = Vec::new();
    for kind in IndexKind::ALL {
        let begin = Instant::now();
        let index = Index::build(kind, Arc::clone(&keys)).map_err(failed)?;
        builds.push((index.bytes(), begin.elapsed().as_secs_f64()));
        indexes.push(index);
    }
    let window = usize::try_from(args.window).unwrap_or(usize::MAX);
    let [mut plain, mut windows] = [(); 2].map(|()| vec![Vec::new(); indexes.len()]);
    let mut reads = Vec::new();
    for _ in 0..args.kinds.runs.get() {
        for ((index, plain), windows) in indexes.iter().zip(&mut plain).zip(&mut windows) {
            plain.push(slowest(&probes, |probes| look_up(index, probes))?);
            windows.push(slowest(&probes, |probes| look_up_windows(index, probes, window))?);
        }
        reads.push(slowest(&probes, |probes| {
            black_box(read_at_random(&keys, probes));
            Ok(())
        })?);
    }
    let speed = |seconds| args.lookups as f64 * threads as f64 / median(seconds).unwrap_or(f64::NAN);
    let speeds = |seconds: Vec<Vec<f64>>| seconds.into_iter().map(speed).collect();
    Ok(Measured { plain: speeds(plain), windows: speeds(windows), random_reads: speed(reads), builds })
}

/// Keys in order, as far apart as uniformly distributed ones.
fn sorted_keys(count: u64) -> Result<SortedKeys> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let gap = u64::MAX as f64 / count as f64;
    SortedKeys::write(usize::try_from(count).unwrap_or(usize::MAX), |keys| {
        let mut key = 0u64;
        for place in keys {
            let distance: f64 = random.sample(Exp1);
            key = key.saturating_add((distance * gap * 0.99) as u64);
            *place = key;
        }
    })
    .map_err(failed)
}

/// The seconds of the slowest of several threads, each with probes of its own.
fn slowest(probes: &[PageVec<u64>], work: impl Fn(&[u64]) -> Result<()> + Sync) -> Result<f64> {
    let seconds = on_each(probes.iter().collect(), |probes: &PageVec<u64>| {
        let begin = Instant::now();
        work(probes)?;
        Ok(begin.elapsed().as_secs_f64())
    })?;
    Ok(seconds.into_iter().fold(0.0, f64::max))
}

/// Looks up probes in batches of the size of a join's.
fn look_up(index: &Index, probes: &[u64]) -> Result<()> {
    const BATCH: usize = 8192;
    let mut places = Vec::new();
    for batch in probes.chunks(BATCH) {
        index.look_up(batch, &mut places);
        let last = places.last().filter(|places| index.keys().get(places.start) == batch.last());
        if last.is_none() {
            return exec_err!("An index has the wrong place of the key {:?}.", batch.last());
        }
    }
    Ok(())
}

/// Looks up probes in windows of `window` probes (paper 3, section 5).
fn look_up_windows(index: &Index, probes: &[u64], window: usize) -> Result<()> {
    let mut lookups = Window::new(index.keys()).map_err(failed)?;
    for probes in probes.chunks(window) {
        let mut right = 0;
        let found = |numbers: &[u64], places: &[Range<usize>]| {
            let last = numbers.last().zip(places.last());
            let is_right =
                last.is_some_and(|(number, place)| index.keys().get(place.start) == probes.get(*number as usize));
            right += if is_right { numbers.len() } else { 0 };
        };
        lookups.look_up(index, probes, found).map_err(failed)?;
        if right != probes.len() {
            return exec_err!("An index has wrong places of the keys of a window.");
        }
    }
    Ok(())
}

/// Reads as many keys as there are probes, at places that no reader knows before.
fn read_at_random(keys: &[u64], probes: &[u64]) -> u64 {
    let mut sum = 0u64;
    for probe in probes {
        // A multiplication spreads the probes, which are keys, over all places.
        let place = (u128::from(probe.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * keys.len() as u128) >> u64::BITS;
        sum = sum.wrapping_add(keys[place as usize]);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_measured_in_pages_of_both_sizes() {
        let args =
            IndexArgs { keys: 50_000, lookups: 10_000, window: 4_000, pages: vec![], kinds: KindsArgs::of_test() };
        let figure = run(&args).unwrap();
        assert_eq!(figure.x.names, ["binary_search", "btree", "line_btree", "harmonia", "radix_spline"]);
        assert_eq!(figure.series.len(), 6);
        assert!(figure.series.iter().all(|series| series.points.len() == 5));
        assert!(figure.series.iter().flat_map(|series| &series.points).all(|(_, speed)| *speed > 0.0));
        assert_eq!(figure.notes.len(), 10);
    }
}
