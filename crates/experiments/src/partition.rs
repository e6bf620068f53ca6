//! The radix partitioners by fanout and placement (paper 1, sections 4 and 6.2.5).

use overspill_kernels::{
    Algorithm, HashFunction, Input, KeyWidth, MemoryAccess, Output, PartitionPlan, Partitioner, PayloadInput, Radix,
};
use overspill_machine::Error as MachineError;
use overspill_machine::memory::{Buffer, PageSize, Placement};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::{Gpu, Machine, scaled};
use crate::figure::{Axis, Figure, SeriesSource};
use crate::{Error, Result};

/// Keys of 8 bytes and payloads of 8 bytes, as in the paper.
const TUPLE: u64 = 16;
const GIB_PER_SECOND: f64 = 1.073_741_824;

/// Columns in one memory.
struct Columns {
    keys: Buffer,
    payload: Buffer,
}

impl Columns {
    fn new(gpu: &Gpu, on_device: bool, bytes: u64) -> Result<Self> {
        let placement =
            if on_device { Placement::Device } else { Placement::Host { pages: PageSize::Huge, pinned: true } };
        let column = || -> Result<Buffer> {
            let mut buffer = Buffer::new(gpu.device(), placement, bytes)?;
            // Touch the memory before anything is measured.
            buffer.fill(&gpu.stream, 0)?;
            Ok(buffer)
        };
        Ok(Self { keys: column()?, payload: column()? })
    }
}

pub(crate) fn run(machine: &Machine, scale: f64) -> Result<Figure> {
    let mut figure = Figure {
        name: "partition",
        title: "Partitioning 16-byte tuples by fanout",
        paper: "paper 1, figures 4 and 18",
        x: Axis::logarithmic("fanout"),
        y: Axis::linear("GB/s of tuples read and written again, counted once"),
        notes: vec![
            "figure 18 (b) to (f), coalescing, bytes over the link, address translations, issue slots and stalls: refused, they \
             need hardware counters of the GPU and of the CPU's IOMMU"
                .to_owned(),
        ],
        ..machine.figure()
    };
    match &machine.gpu {
        Ok(gpu) => {
            for (from_device, to_device) in [(false, false), (false, true), (true, true)] {
                // Only a few on the emulated device, where scanning counters takes longer than partitioning.
                let radixes: &[u32] = if gpu.emulated { &[1, 6, 9] } else { &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] };
                let work = Work { tuples: scaled(1 << 30, scale) / TUPLE, radixes, runs: machine.runs() };
                measure(gpu, &work, from_device, to_device, &mut figure)?;
            }
        }
        Err(reason) => figure.notes.push(format!("nothing was measured: {reason}")),
    }
    let paper = |points: &[(f64, f64)]| points.iter().map(|(x, y)| (*x, y * GIB_PER_SECOND)).collect::<Vec<_>>();
    figure.add(SeriesSource::Paper, "V100, NVLink 2.0: link both ways", paper(&[(1.0, 55.9), (2048.0, 55.9)]));
    figure.add(SeriesSource::Paper, "V100, NVLink 2.0: linear", paper(&[(1.0, 50.7), (2.0, 42.4)]));
    figure.add(SeriesSource::Paper, "V100, NVLink 2.0: shared", paper(&[(64.0, 54.0)]));
    figure.add(SeriesSource::Paper, "V100, NVLink 2.0: hierarchical", paper(&[(2048.0, 38.3)]));
    Ok(figure)
}

/// The tuples to partition, the fanouts and the number of runs.
struct Work<'a> {
    tuples: u64,
    radixes: &'a [u32],
    runs: usize,
}

fn measure(gpu: &Gpu, work: &Work<'_>, from_device: bool, to_device: bool, figure: &mut Figure) -> Result<()> {
    let word = |on_device| if on_device { "GPU" } else { "CPU" };
    let way = format!("{} to {} memory", word(from_device), word(to_device));
    let tuples = work.tuples;
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let keys: Vec<u64> = (0..tuples).map(|_| random.random()).collect();
    let expected = keys.iter().fold(0u64, |sum, key| sum.wrapping_add(*key));
    let mut input = Columns::new(gpu, from_device, tuples * 8)?;
    input.keys.write(&gpu.stream, &keys)?;
    drop(keys);
    // Room for the largest output.
    let most_bits = work.radixes.iter().max().map_or(0, |bits| *bits);
    let room = tuples + (1024 << most_bits);
    let mut output = Columns::new(gpu, to_device, room * 8)?;

    // The bound: a kernel that copies as many bytes, which corresponds to partitioning at fanout 1.
    let mut access = MemoryAccess::new(&gpu.kernels)?;
    let mut copied = f64::INFINITY;
    for _ in 0..work.runs {
        let from = input.keys.view(gpu.device())?;
        copied = copied.min(access.copy(&gpu.stream, from, &mut output.keys.view_mut(gpu.device())?)?);
    }
    let bound = (tuples * 8) as f64 / copied / 1e9;
    let everywhere = work.radixes.iter().map(|bits| (f64::from(1u32 << bits), bound)).collect();
    figure.add(SeriesSource::Bound, format!("{way}: copied in order"), everywhere);

    for algorithm in Algorithm::ALL {
        let mut points = Vec::new();
        for bits in work.radixes {
            let radix = Radix::new(*bits, 0, HashFunction::MultiplyShift)?;
            let plan = PartitionPlan::new(
                &gpu.kernels,
                algorithm,
                KeyWidth::Eight,
                &[8],
                radix,
                tuples,
                gpu.device().memory_limit() / 8,
            );
            let plan = match plan {
                Ok(plan) if plan.output_tuples() <= room => plan,
                Ok(_) => continue,
                Err(reason @ MachineError::TooSmall { .. }) => {
                    figure.notes.push(format!("{way}, fanout {}: {reason}", radix.fanout()));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            // Kernels read the columns in units of two values.
            let written = plan.output_tuples().next_multiple_of(2).min(room) * 8;
            let mut partitioner = Partitioner::new(&gpu.kernels, plan)?;
            let mut best = f64::INFINITY;
            for run in 0..work.runs {
                if run == 0 {
                    output.keys.fill(&gpu.stream, 0)?;
                }
                let from = Input {
                    keys: input.keys.view(gpu.device())?,
                    payloads: vec![PayloadInput::Column(input.payload.view(gpu.device())?)],
                };
                let mut to = Output {
                    keys: output.keys.view_mut(gpu.device())?,
                    payloads: vec![output.payload.view_mut(gpu.device())?],
                };
                let (partitions, seconds) = gpu.stream.timed(|| partitioner.run(&gpu.stream, &from, &mut to))?;
                best = best.min(seconds);
                let counted: u64 = partitions.iter().map(|(_, count)| count).sum();
                let right = counted == tuples && (run > 0 || sum(gpu, &mut access, &output.keys, written)? == expected);
                if !right {
                    return Err(Error::Wrong { what: format!("partitioning by {algorithm}") });
                }
            }
            points.push((f64::from(radix.fanout()), (tuples * TUPLE) as f64 / best / 1e9));
        }
        figure.add(SeriesSource::Measured, format!("{} {way}: {algorithm}", gpu.name()), points);
    }
    Ok(())
}

/// The sum of the first `bytes` bytes of a column, where everything but tuples is 0.
fn sum(gpu: &Gpu, access: &mut MemoryAccess, column: &Buffer, bytes: u64) -> Result<u64> {
    access.reset(&gpu.stream)?;
    access.timed_read(&gpu.stream, column.view(gpu.device())?.slice(0, bytes)?)?;
    Ok(access.sum(&gpu.stream)?)
}
