//! The CPU's radix partitioner by fanout, for the figure of the partitioners (paper 1, figures 4 and 18).

use std::time::Instant;

use datafusion::common::{Result, exec_datafusion_err};
use overspill_experiments::{ExperimentArgs, Figure, FigureExperiment, Machine, SeriesSource};
use overspill_join::radix::{PartitionCursor, PartitionMethod, RadixPartitioner};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::report::failed;
use crate::threads::on_each;

/// Tuples of 16 bytes at scale 1.
const TUPLES: f64 = (1 << 26) as f64;

/// Fanouts as powers of two.
const BITS: std::ops::RangeInclusive<u32> = 1..=14;

const RUNS: usize = 3;

/// The keys and payloads of a thread.
type Part = [Vec<u64>; 2];

/// The figure of the GPU's partitioners, with lines of the CPU's partitioner.
pub(crate) fn run(args: &ExperimentArgs) -> Result<Figure> {
    let figure = figure(&args.device.open().map_err(failed)?, args.scale)?;
    figure.write(args.json.as_deref(), args.svg.as_deref()).map_err(failed)?;
    Ok(figure)
}

/// As `run`, for an opened machine.
pub(crate) fn figure(machine: &Machine, scale: Option<f64>) -> Result<Figure> {
    let mut figure = FigureExperiment::Partition.run(machine, scale).map_err(failed)?;
    let threads = machine.topology.cpu.threads.max(1);
    let tuples = ((TUPLES * machine.scale(scale)) as usize / threads).max(1);
    add(&mut figure, threads, tuples)?;
    Ok(figure)
}

fn add(figure: &mut Figure, threads: usize, tuples: usize) -> Result<()> {
    let parts: Vec<Part> = (0..threads)
        .map(|thread| {
            let mut random = ChaCha8Rng::seed_from_u64(thread as u64);
            [(); 2].map(|()| (0..tuples).map(|_| random.next_u64()).collect())
        })
        .collect();
    let gigabytes = (threads * tuples * size_of::<[u64; 2]>()) as f64 / 1e9;
    let mut copies: Vec<Part> = parts.clone();
    let copied = best(RUNS, || {
        on_each(parts.iter().zip(&mut copies).collect(), |(part, copy): (&Part, &mut Part)| {
            copy.iter_mut().zip(part).for_each(|(copy, part)| copy.copy_from_slice(part));
            Ok(())
        })
        .map(drop)
    })?;
    drop(copies);
    let everywhere = BITS.map(|bits| (f64::from(1u32 << bits), gigabytes / copied)).collect();
    figure.add(SeriesSource::Bound, format!("CPU, {threads} threads: copied in order"), everywhere);
    for (name, method) in
        [("standard", PartitionMethod::Standard), ("software write-combining", PartitionMethod::WriteCombining)]
    {
        let mut points = Vec::new();
        for bits in BITS {
            let mut partitioners =
                (0..threads).map(|_| RadixPartitioner::<2>::new(method)).collect::<Result<Vec<_>, _>>();
            let partitioners = partitioners.as_mut().map_err(failed)?;
            // The first run faults in memory, and is never the best.
            let seconds = best(RUNS + 1, || {
                on_each(parts.iter().zip(&mut *partitioners).collect(), |(part, partitioner): (&Part, &mut _)| {
                    partition(part, bits, partitioner)
                })
                .map(drop)
            })?;
            let counted: usize = partitioners
                .iter()
                .map(|done| (0..1 << bits).map(|partition| rows(done, partition)).sum::<usize>())
                .sum();
            if counted != threads * tuples {
                return Err(exec_datafusion_err!("Partitioning gave {counted} tuples of {}.", threads * tuples));
            }
            points.push((f64::from(1u32 << bits), gigabytes / seconds));
        }
        figure.add(SeriesSource::Measured, format!("CPU, {threads} threads: {name}"), points);
    }
    Ok(())
}

/// Partitions by the upper bits of random keys.
fn partition([keys, payloads]: &Part, bits: u32, partitioner: &mut RadixPartitioner<2>) -> Result<()> {
    partitioner.begin(1 << bits, keys.len()).map_err(failed)?;
    partitioner.push([keys, payloads], |key| (key >> (u64::BITS - bits)) as usize);
    partitioner.finish();
    Ok(())
}

fn rows(partitioner: &RadixPartitioner<2>, partition: usize) -> usize {
    let mut cursor = PartitionCursor::new(partitioner, partition);
    let mut columns = [[0; 1024]; 2];
    std::iter::from_fn(|| {
        let [keys, payloads] = &mut columns;
        Some(partitioner.read(&mut cursor, [keys, payloads])).filter(|rows| *rows > 0)
    })
    .sum()
}

/// The shortest time of `runs` runs, in seconds.
fn best(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut shortest = f64::INFINITY;
    for _ in 0..runs {
        let begin = Instant::now();
        run()?;
        shortest = shortest.min(begin.elapsed().as_secs_f64());
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use overspill_experiments::{Axis, Figure};

    use super::*;

    #[test]
    fn every_fanout_has_a_rate_of_each_method_beside_the_bound() {
        let mut figure =
            Figure { name: "partition", x: Axis::logarithmic("fanout"), y: Axis::linear("GB/s"), ..Figure::default() };
        add(&mut figure, 2, 1000).unwrap();
        let names: Vec<_> = figure.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(
            names,
            ["CPU, 2 threads: copied in order", "CPU, 2 threads: standard", "CPU, 2 threads: software write-combining"]
        );
        for series in &figure.series {
            assert_eq!(
                series.points.iter().map(|point| point.0).collect::<Vec<_>>(),
                BITS.map(|bits| f64::from(1u32 << bits)).collect::<Vec<_>>()
            );
            assert!(series.points.iter().all(|point| point.1 > 0.0));
        }
    }
}
