//! Random access by its granularity (paper 1, section 3.4.1).

use overspill_kernels::{AccessPattern, MemoryAccess};
use overspill_machine::memory::{DeviceBuffer, HostBuffer, PageSize};

use crate::Result;
use crate::device::{Gpu, Machine, scaled};
use crate::figure::{Axis, Figure, SeriesSource};

/// The offset in bytes of misaligned accesses (as in paper 1, fig. 6b).
const MISALIGNMENT: u64 = 16;
/// Accesses per thread group: enough to cover an array of a GiB once at 512 bytes.
const ACCESSES: u64 = 1 << 10;

pub(crate) fn run(machine: &Machine, scale: f64) -> Result<Figure> {
    let mut figure = Figure {
        name: "granularity",
        title: "Random access by granularity",
        paper: "paper 1, figure 6",
        x: Axis::logarithmic("bytes of an access"),
        y: Axis::logarithmic("GB/s"),
        ..machine.figure()
    };
    match &machine.gpu {
        Ok(gpu) => measure(gpu, scale, machine.runs(), &mut figure)?,
        Err(reason) => figure.notes.push(format!("nothing was measured: {reason}")),
    }
    // "Bandwidth grows linearly with the access granularity", up to that of a sequential access at 128 bytes, which is
    // 63 GiB/s for reads (section 6.2.8).
    let sequential = 63.0 * 1.073_741_824;
    let paper = granularities().map(|bytes| (bytes as f64, sequential * (bytes.min(128) as f64 / 128.0))).collect();
    figure.add(SeriesSource::Paper, "V100 on NVLink 2.0 reads, as the text says", paper);
    Ok(figure)
}

fn granularities() -> impl Iterator<Item = u64> {
    (2..=9).map(|bits| 1 << bits)
}

fn measure(gpu: &Gpu, scale: f64, runs: usize, figure: &mut Figure) -> Result<()> {
    let bytes = scaled(1 << 30, scale);
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut access = MemoryAccess::new(&gpu.kernels)?;
    let mut pinned = HostBuffer::pinned(gpu.device(), size, PageSize::Huge)?;
    pinned.as_mut_slice::<u64>().fill(1);
    let mut target = HostBuffer::pinned(gpu.device(), size, PageSize::Huge)?;
    target.as_mut_slice::<u64>().fill(1);

    // The bounds: sequential accesses to the whole array, one way and both ways.
    let mut read = f64::INFINITY;
    let mut copy = f64::INFINITY;
    for _ in 0..runs {
        read = read.min(access.timed_read(&gpu.stream, pinned.view(gpu.device())?)?);
        let from = pinned.view(gpu.device())?;
        copy = copy.min(access.copy(&gpu.stream, from, &mut target.view_mut(gpu.device())?)?);
    }
    drop(target);
    let everywhere = |seconds: f64| granularities().map(|at| (at as f64, bytes as f64 / seconds / 1e9)).collect();
    figure.add(SeriesSource::Bound, "CPU memory, read in order", everywhere(read));
    figure.add(SeriesSource::Bound, "CPU memory, copied in order", everywhere(copy));

    let mut device = DeviceBuffer::new(gpu.device(), bytes)?;
    device.fill(&gpu.stream, 1)?;
    for (memory, write, misalignment, name) in [
        (false, false, 0, "reads of CPU memory"),
        (false, true, 0, "writes to CPU memory"),
        (false, false, MISALIGNMENT, "misaligned reads of CPU memory"),
        (false, true, MISALIGNMENT, "misaligned writes to CPU memory"),
        (true, false, 0, "reads of GPU memory"),
        (true, true, 0, "writes to GPU memory"),
    ] {
        let mut points = Vec::new();
        // The offset of a misaligned access is less than its size, and a multiple of the threads' unit.
        for granularity in granularities().filter(|bytes| misalignment == 0 || *bytes > misalignment) {
            let pattern = AccessPattern { write, granularity, misalignment, accesses: scaled_accesses(scale) };
            let mut best = 0.0f64;
            for _ in 0..runs {
                let mut view = if memory { device.view_mut() } else { pinned.view_mut(gpu.device())? };
                let (count, seconds) = access.access_randomly(&gpu.stream, &mut view, pattern)?;
                best = best.max((count * granularity) as f64 / seconds / 1e9);
            }
            points.push((granularity as f64, best));
        }
        figure.add(SeriesSource::Measured, format!("{}: {name}", gpu.name()), points);
    }
    Ok(())
}

fn scaled_accesses(scale: f64) -> u64 {
    ((ACCESSES as f64 * scale) as u64).clamp(2, ACCESSES)
}
