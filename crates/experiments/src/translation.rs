//! The reach of address translation (paper 1, section 3.4.2).

use overspill_kernels::{GpuEffort, measure_gpu};
use overspill_machine::measure::{CpuEffort, LatencyCurve, MeasuredMemory, measure_cpu};
use overspill_machine::memory::PageSize;

use crate::Result;
use crate::device::{Machine, scaled};
use crate::figure::{Axis, Figure, SeriesSource};

const GIB: f64 = (1u64 << 30) as f64;

pub(crate) fn run(machine: &Machine, scale: f64) -> Result<Figure> {
    let mut figure = Figure {
        name: "translation",
        title: "Latency of a read by the range that is touched",
        paper: "paper 1, figure 7",
        x: Axis::logarithmic("bytes of the range"),
        y: Axis::logarithmic("ns a read"),
        ..machine.figure()
    };
    let effort = CpuEffort::for_machine(&machine.topology);
    let longest_range = scaled(effort.longest_range, scale);
    let cpu = measure_cpu(&machine.topology, CpuEffort { array_bytes: 64 << 20, longest_range, ..effort })?;
    for curve in &cpu.latency {
        figure.add(SeriesSource::Measured, format!("CPU: {}", name(curve)), points(curve));
    }
    match &machine.gpu {
        Ok(gpu) => {
            let stride = if machine.is_emulated() { 64 << 10 } else { 2 << 20 };
            let effort = GpuEffort {
                array_bytes: scaled(64 << 20, scale),
                // The paper finds that NVLink's translation reaches 32 GiB. The whole range is pinned at once.
                longest_range: scaled(
                    (32u64 << 30)
                        .min(gpu.device().memory_limit() / 2)
                        .min(machine.topology.memory.bytes.unwrap_or(8 << 30) / 4),
                    scale,
                ),
                stride,
                runs: machine.runs(),
                reads: if machine.is_emulated() { 8 } else { 1 << 10 },
                ..GpuEffort::default()
            };
            for curve in &measure_gpu(&gpu.kernels, 0, effort)?.latency {
                figure.add(SeriesSource::Measured, format!("{}: {}", gpu.name(), name(curve)), points(curve));
            }
        }
        Err(reason) => figure.notes.push(format!("no GPU was measured: {reason}")),
    }
    let paper_gpu = vec![(6.0 * GIB, 151.9), (8.0 * GIB, 151.9), (8.5 * GIB, 226.7), (10.7 * GIB, 226.7)];
    let paper_cpu = vec![
        (GIB, 449.7),
        (8.0 * GIB, 449.7),
        (9.5 * GIB, 532.9),
        (32.0 * GIB, 532.9),
        (37.0 * GIB, 3186.4),
        (87.5 * GIB, 3186.4),
    ];
    figure.add(SeriesSource::Paper, "V100: GPU memory", paper_gpu);
    figure.add(SeriesSource::Paper, "V100: CPU memory over NVLink 2.0, huge pages", paper_cpu);
    Ok(figure)
}

fn name(curve: &LatencyCurve) -> String {
    match curve.memory {
        MeasuredMemory::Gpu { .. } => "GPU memory".to_owned(),
        MeasuredMemory::Host { pages, pinned, .. } => {
            let pages = match pages {
                PageSize::Small => "small pages",
                PageSize::Huge => "huge pages",
            };
            format!("CPU memory, {}{pages}", if pinned { "pinned, " } else { "" })
        }
    }
}

fn points(curve: &LatencyCurve) -> Vec<(f64, f64)> {
    curve.points.iter().map(|point| (point.range as f64, point.nanoseconds)).collect()
}
