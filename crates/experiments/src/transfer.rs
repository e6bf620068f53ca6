//! The transfer methods (paper 2, section 4 and 7.2.1).

use overspill_kernels::{GpuEffort, measure_gpu};
use overspill_machine::measure::{CpuEffort, MeasuredMemory, Processor, measure_cpu};
use overspill_machine::transfer::TransferMethod;

use crate::Result;
use crate::device::{Machine, scaled};
use crate::figure::{Axis, Figure, SeriesSource};

/// Values from the text of paper 2, section 7.2.1, for PCIe 3.0: a peak of 12 GB/s, and the other methods relative to
/// zero-copy.
const PAPER: [(TransferMethod, f64); 5] = [
    (TransferMethod::ZeroCopy, 12.0),
    (TransferMethod::PinnedCopy, 12.0),
    (TransferMethod::StagedCopy, 12.0 * 0.95),
    (TransferMethod::UnifiedPrefetch, 12.0 * 0.70),
    (TransferMethod::UnifiedMigration, 12.0 * 0.32),
];

pub(crate) fn run(machine: &Machine, scale: f64, cpu_scale: f64) -> Result<Figure> {
    let place = |method: TransferMethod| {
        TransferMethod::ALL.iter().position(|other| *other == method).unwrap_or_default() as f64
    };
    let mut figure = Figure {
        name: "transfer",
        title: "A kernel sums a relation in CPU memory",
        paper: "paper 2, figures 3 and 12",
        x: Axis::named("transfer method", TransferMethod::ALL.iter().map(|method| method.name())),
        y: Axis::linear("GB/s"),
        ..machine.figure()
    };
    let everywhere = |value: f64| TransferMethod::ALL.iter().map(|method| (place(*method), value)).collect();
    let effort = CpuEffort { longest_range: 1 << 20, ..CpuEffort::for_machine(&machine.topology) };
    let effort = CpuEffort { array_bytes: scaled(effort.array_bytes, cpu_scale), ..effort };
    let cpu = measure_cpu(&machine.topology, effort)?;
    let read = cpu.rates.iter().map(|rates| rates.read).fold(0.0, f64::max);
    let copy = cpu.rates.iter().map(|rates| rates.copy).fold(0.0, f64::max);
    figure.add(SeriesSource::Bound, "CPU reads its memory", everywhere(read / 1e9));
    figure.add(SeriesSource::Bound, "CPU copies within it", everywhere(copy / 1e9));
    match &machine.gpu {
        Ok(gpu) => {
            let effort = GpuEffort {
                array_bytes: scaled(1 << 30, scale),
                longest_range: 0,
                unified: true,
                runs: machine.runs(),
                reads: if machine.is_emulated() { 8 } else { 1 << 10 },
                ..GpuEffort::default()
            };
            let measured = measure_gpu(&gpu.kernels, 0, effort)?;
            let rates = measured.transfers.iter().flat_map(|rates| &rates.0);
            let points = rates.map(|rate| (place(rate.method), rate.bytes_per_second / 1e9)).collect();
            figure.add(SeriesSource::Measured, gpu.name(), points);
            for rates in &measured.rates {
                if rates.memory == (MeasuredMemory::Gpu { ordinal: gpu.device().ordinal() })
                    && matches!(rates.processor, Processor::Gpu { .. })
                {
                    let name = format!("{} reads its memory", gpu.name());
                    figure.add(SeriesSource::Bound, name, everywhere(rates.read / 1e9));
                }
            }
            for method in TransferMethod::ALL {
                if let Err(reason) = method.check_device(gpu.device().properties()) {
                    figure.notes.push(reason.to_string());
                }
            }
        }
        Err(reason) => figure.notes.push(format!("no transfers were measured: {reason}")),
    }
    let mut paper: Vec<(f64, f64)> = PAPER.iter().map(|(method, rate)| (place(*method), *rate)).collect();
    paper.sort_by(|one, other| one.0.total_cmp(&other.0));
    figure.add(SeriesSource::Paper, "V100 on PCIe 3.0", paper);
    Ok(figure)
}
