//! Index joins and the hash join on a GPU. Both relations and the index lie in CPU memory; pairs go to GPU memory.

use datafusion::common::{Result, exec_err};
use overspill_experiments::Gpu;
use overspill_index::{Index, PlacedIndex};
use overspill_kernels::{
    AllocatedPairs, HashFunction, HashTable, IndexLookup, JoinSide, KeyWidth, TableKind, TablePlacement, Values,
    WindowedLookup,
};
use overspill_machine::driver::Stream;
use overspill_machine::memory::{Buffer, PageSize, Placement};

use super::median_seconds;
use super::workload::Workload;
use crate::report::failed;

const CPU_MEMORY: Placement = Placement::Host { pages: PageSize::Huge, pinned: true };

/// Keys of s in CPU memory, and room for its pairs.
struct Probe {
    keys: Buffer,
    pairs: AllocatedPairs,
}

impl Probe {
    fn new(gpu: &Gpu, workload: &Workload) -> overspill_machine::Result<Self> {
        let keys = in_cpu_memory(&gpu.stream, &workload.s)?;
        Ok(Self { keys, pairs: AllocatedPairs::new(gpu.device(), workload.s.len() as u64)? })
    }

    /// Reads pairs of places in r and numbers in s.
    fn read(&self, stream: &Stream, count: usize) -> overspill_machine::Result<[Vec<u64>; 2]> {
        let [places, numbers] = self.pairs.columns();
        Ok([places.read(stream, count)?, numbers.read(stream, count)?])
    }
}

fn in_cpu_memory(stream: &Stream, keys: &[u64]) -> overspill_machine::Result<Buffer> {
    let mut buffer = Buffer::new(stream.device(), CPU_MEMORY, size_of_val(keys) as u64)?;
    buffer.write(stream, keys)?;
    Ok(buffer)
}

/// Every key of s has one pair, with its place in r.
fn check(workload: &Workload, matches: u64, [places, numbers]: [Vec<u64>; 2]) -> Result<()> {
    let are_right = places.iter().zip(&numbers).all(|(place, number)| {
        workload.s.get(*number as usize).is_some_and(|key| workload.r.get(*place as usize) == Some(key))
    });
    let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0u64, u64::wrapping_add);
    let are_all = sum(&mut numbers.iter().copied()) == sum(&mut (0..workload.s.len() as u64));
    if matches != workload.s.len() as u64 || !are_right || !are_all {
        return exec_err!("A join on the GPU has {matches} pairs of {}, or wrong ones.", workload.s.len());
    }
    Ok(())
}

/// The median seconds of `runs` index joins, which look keys up as they come or in windows of `window` keys. The pairs of the last join
/// are checked.
pub(super) fn join(gpu: &Gpu, workload: &Workload, index: &Index, window: Option<usize>, runs: usize) -> Result<f64> {
    let placed = PlacedIndex::new(&gpu.stream, index, None, CPU_MEMORY).map_err(failed)?;
    let on_device = placed.on(gpu.device()).map_err(failed)?;
    let lookup = IndexLookup::new(&gpu.kernels, on_device).map_err(failed)?;
    let mut probe = Probe::new(gpu, workload).map_err(failed)?;
    let keys = probe.keys.view(gpu.device()).map_err(failed)?;
    let side = JoinSide { keys, values: Values::RowIds(0) };
    let (seconds, matches) = match window {
        None => median_seconds(runs, || lookup.allocate(&gpu.stream, &side, &mut probe.pairs).map_err(failed))?,
        Some(window) => {
            // Numbers of 4 bytes, as long as they fit.
            let width = if u32::try_from(workload.s.len()).is_ok() { 4 } else { 8 };
            let window = window.min(workload.s.len()) as u64;
            let mut windowed = WindowedLookup::new(&lookup, window, width, true).map_err(failed)?;
            median_seconds(runs, || windowed.allocate(&side, &mut probe.pairs).map_err(failed))?
        }
    };
    check(workload, matches, probe.read(&gpu.stream, workload.s.len()).map_err(failed)?)?;
    Ok(seconds)
}

/// The median seconds of `runs` of the paper's hash joins (section 3.2). Each builds a half-full multi-value table over s in GPU memory,
/// and looks r up in it.
pub(super) fn hash_join(gpu: &Gpu, workload: &Workload, runs: usize) -> Result<f64> {
    let mut probe = Probe::new(gpu, workload).map_err(failed)?;
    let r = in_cpu_memory(&gpu.stream, &workload.r).map_err(failed)?;
    let build = JoinSide { keys: probe.keys.view(gpu.device()).map_err(failed)?, values: Values::RowIds(0) };
    let scan = JoinSide { keys: r.view(gpu.device()).map_err(failed)?, values: Values::RowIds(0) };
    let tuples = workload.s.len() as u64;
    let (kind, key, hash) = (TableKind::MultiValue, KeyWidth::Eight, HashFunction::Murmur3);
    let mut join = || -> overspill_machine::Result<u64> {
        let mut table = HashTable::new(&gpu.kernels, kind, key, tuples, hash, TablePlacement::Device)?;
        table.build(&gpu.stream, &build)?;
        table.probe_allocate(&gpu.stream, &scan, &mut probe.pairs)
    };
    let (seconds, matches) = median_seconds(runs, || join().map_err(failed))?;
    // The build side is s here.
    let [numbers, places] = probe.read(&gpu.stream, workload.s.len()).map_err(failed)?;
    check(workload, matches, [places, numbers])?;
    Ok(seconds)
}
