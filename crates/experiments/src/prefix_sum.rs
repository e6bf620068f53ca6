//! The first pass of partitioning, CPU and GPU: histograms of a column of keys (paper 1, section 6.2.8).

use std::hint::black_box;
use std::time::Instant;

use overspill_kernels::{HashFunction, Histogram, MemoryAccess, PrefixSum, Radix};
use overspill_machine::memory::{DeviceBuffer, HostBuffer, PageSize};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::{Gpu, Machine, scaled};
use crate::figure::{Axis, Figure, SeriesSource};
use crate::{Error, Result};

/// The paper's maximum number of radix bits in the first pass.
const RADIX_BITS: u32 = 11;
const GIB_PER_SECOND: f64 = 1.073_741_824;

pub(crate) fn run(machine: &Machine, scale: f64) -> Result<Figure> {
    let mut figure = Figure {
        name: "prefix-sum",
        title: "The histogram of a column of 8-byte keys, and the prefix sum of an array",
        paper: "paper 1, figure 20 (b)",
        x: Axis::logarithmic("million keys"),
        y: Axis::linear("GB/s of keys"),
        ..machine.figure()
    };
    let millions = |bytes: u64| bytes as f64 / 8.0 / 1e6;
    let mut sizes: Vec<u64> = [128 << 20, 512 << 20, 1 << 30].map(|bytes| scaled(bytes, scale)).into();
    sizes.dedup();
    let runs = machine.runs();
    let threads = machine.topology.cpu.threads.max(1);
    let (mut counted, mut read) = (Vec::new(), Vec::new());
    let mut column = HostBuffer::new(usize::try_from(sizes[sizes.len() - 1]).unwrap_or(usize::MAX), PageSize::Huge)?;
    let mut random = ChaCha8Rng::seed_from_u64(11);
    column.as_mut_slice::<u64>().iter_mut().for_each(|key| *key = random.random());
    for bytes in &sizes {
        let keys = &column.as_slice::<u64>()[..usize::try_from(bytes / 8).unwrap_or(usize::MAX)];
        let radix = Radix::new(RADIX_BITS, 0, HashFunction::MultiplyShift)?;
        let counting = best(runs, || Histogram::of_column(keys, radix, threads));
        let reading =
            best(runs, || on_threads(keys, threads, |part| part.iter().fold(0u64, |sum, key| sum.wrapping_add(*key))));
        counted.push((millions(*bytes), *bytes as f64 / counting / 1e9));
        read.push((millions(*bytes), *bytes as f64 / reading / 1e9));
    }
    figure.add(SeriesSource::Bound, "CPU reads the column", read);
    figure.add(SeriesSource::Measured, format!("CPU, {threads} threads: histogram"), counted);
    match &machine.gpu {
        Ok(gpu) => measure(gpu, &sizes, runs, millions, &mut figure)?,
        Err(reason) => figure.notes.push(format!("no GPU was measured: {reason}")),
    }
    let gib = |points: &[(f64, f64)]| points.iter().map(|(x, y)| (*x, y * GIB_PER_SECOND)).collect::<Vec<_>>();
    figure.add(SeriesSource::Paper, "POWER9", gib(&[(128.0, 129.6), (512.0, 129.6), (2048.0, 96.0)]));
    figure.add(SeriesSource::Paper, "V100 on NVLink 2.0", gib(&[(128.0, 63.0), (512.0, 63.0), (2048.0, 63.0)]));
    Ok(figure)
}

/// The shortest time of `runs` runs, in seconds.
fn best<T>(runs: usize, mut run: impl FnMut() -> T) -> f64 {
    (0..runs)
        .map(|_| {
            let begin = Instant::now();
            black_box(run());
            begin.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn on_threads<T: Send>(keys: &[u64], threads: usize, work: impl Fn(&[u64]) -> T + Sync) -> Vec<T> {
    let part = keys.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = keys.chunks(part).map(|part| scope.spawn(move || work(part))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn measure(gpu: &Gpu, sizes: &[u64], runs: usize, millions: impl Fn(u64) -> f64, figure: &mut Figure) -> Result<()> {
    let (mut read, mut summed) = (Vec::new(), Vec::new());
    for bytes in sizes {
        let size = usize::try_from(*bytes).unwrap_or(usize::MAX);
        let mut column = HostBuffer::pinned(gpu.device(), size, PageSize::Huge)?;
        column.as_mut_slice::<u64>().fill(1);
        let mut access = MemoryAccess::new(&gpu.kernels)?;
        let mut shortest = f64::INFINITY;
        for _ in 0..runs {
            shortest = shortest.min(access.timed_read(&gpu.stream, column.view(gpu.device())?)?);
        }
        read.push((millions(*bytes), *bytes as f64 / shortest / 1e9));

        let values = DeviceBuffer::from_slice(&gpu.stream, column.as_slice::<u64>())?;
        drop(column);
        let mut sums = DeviceBuffer::new(gpu.device(), *bytes)?;
        let mut prefix_sum = PrefixSum::new(&gpu.kernels, bytes / 8)?;
        let mut shortest = f64::INFINITY;
        for _ in 0..runs {
            let (total, seconds) = gpu.stream.timed(|| prefix_sum.run(&gpu.stream, values.view(), sums.view_mut()))?;
            shortest = shortest.min(seconds);
            if total != bytes / 8 {
                return Err(Error::Wrong { what: "the prefix sum".to_owned() });
            }
        }
        summed.push((millions(*bytes), *bytes as f64 / shortest / 1e9));
    }
    figure.add(SeriesSource::Bound, format!("{} reads CPU memory", gpu.name()), read);
    figure.add(SeriesSource::Measured, format!("{}: prefix sum in GPU memory", gpu.name()), summed);
    Ok(())
}
