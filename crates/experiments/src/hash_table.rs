//! Build and probe rates of the hash tables, in GPU memory.

use overspill_kernels::{
    AccessPattern, HashFunction, HashTable, JoinSide, KeyWidth, MemoryAccess, PairAggregate, TableKind, TablePlacement,
    Values,
};
use overspill_machine::memory::DeviceBuffer;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::{Gpu, Machine, scaled};
use crate::figure::{Axis, Figure, SeriesSource};
use crate::{Error, Result};

/// Build and probe rates by the size of the build side, for 8-byte keys and values. Each probe row has one match.
pub(crate) fn run(machine: &Machine, scale: f64) -> Result<Figure> {
    let mut figure = Figure {
        name: "hash-table",
        title: "Hash tables in GPU memory",
        paper: "paper 2, section 6",
        x: Axis::logarithmic("million build tuples"),
        y: Axis::linear("million tuples a second"),
        notes: vec!["times include what a build and a probe allocate: small tables are slower by that".to_owned()],
        ..machine.figure()
    };
    match &machine.gpu {
        Ok(gpu) => {
            for name in ["perfect", "linear probing", "multi-value"] {
                measure(gpu, scale, machine.runs(), name, &mut figure)?;
            }
        }
        Err(reason) => figure.notes.push(format!("nothing was measured: {reason}")),
    }
    Ok(figure)
}

fn measure(gpu: &Gpu, scale: f64, runs: usize, name: &str, figure: &mut Figure) -> Result<()> {
    let probes = scaled(512 << 20, scale) / 8;
    let mut sizes: Vec<u64> = [1 << 20, 8 << 20, 64 << 20, 512 << 20].map(|bytes| scaled(bytes, scale) / 8).into();
    sizes.dedup();
    let (mut built, mut probed, mut random) = (Vec::new(), Vec::new(), Vec::new());
    for tuples in sizes {
        let mut generator = ChaCha8Rng::seed_from_u64(tuples);
        let mut keys: Vec<u64> = (1..=tuples).collect();
        keys.shuffle(&mut generator);
        let probe: Vec<u64> = (0..probes).map(|_| generator.random_range(1..=tuples)).collect();
        let device = |values: &[u64]| DeviceBuffer::from_slice(&gpu.stream, values);
        let (build_keys, probe_keys) = (device(&keys)?, device(&probe)?);
        // A build tuple's value is its key, and a probe tuple's is 0, so that the matches and the probe keys have the same
        // sum.
        let zeros = device(&vec![0; probe.len()])?;
        let build_side = JoinSide { keys: build_keys.view(), values: Values::Eight(build_keys.view()) };
        let probe_side = JoinSide { keys: probe_keys.view(), values: Values::Eight(zeros.view()) };
        let kind = match name {
            "perfect" => TableKind::Perfect { smallest_key: 1, slots: tuples },
            "linear probing" => TableKind::LinearProbing,
            _ => TableKind::MultiValue,
        };
        let sum = probe.iter().fold(0u64, |sum, key| sum.wrapping_add(*key));
        let (mut build_seconds, mut probe_seconds) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..runs {
            let mut table = HashTable::new(
                &gpu.kernels,
                kind,
                KeyWidth::Eight,
                tuples,
                HashFunction::MultiplyShift,
                TablePlacement::Device,
            )?;
            let (_, seconds) = gpu.stream.timed(|| table.build(&gpu.stream, &build_side))?;
            build_seconds = build_seconds.min(seconds);
            let probe = || table.probe_aggregate(&gpu.stream, &probe_side, &PairAggregate::SUMS);
            let (totals, seconds) = gpu.stream.timed(probe)?;
            probe_seconds = probe_seconds.min(seconds);
            if totals.matches != probes || totals.sum() != sum {
                return Err(Error::Wrong { what: format!("the join by a {name} table") });
            }
        }
        let millions = tuples as f64 / 1e6;
        built.push((millions, tuples as f64 / build_seconds / 1e6));
        probed.push((millions, probes as f64 / probe_seconds / 1e6));
        // The bound: random reads of an array of the size of a perfect table.
        let mut array = DeviceBuffer::new(gpu.device(), tuples * 8)?;
        array.fill(&gpu.stream, 1)?;
        let accesses = if gpu.emulated { 2 } else { 256 };
        let pattern = AccessPattern { write: false, granularity: 8, misalignment: 0, accesses };
        let mut access = MemoryAccess::new(&gpu.kernels)?;
        let mut best = 0.0f64;
        for _ in 0..runs {
            let (count, seconds) = access.access_randomly(&gpu.stream, &mut array.view_mut(), pattern)?;
            best = best.max(count as f64 / seconds / 1e6);
        }
        random.push((millions, best));
    }
    figure.add(SeriesSource::Measured, format!("{}: build, {name}", gpu.name()), built);
    figure.add(SeriesSource::Measured, format!("{}: probe, {name}", gpu.name()), probed);
    if name == "perfect" {
        figure.add(SeriesSource::Bound, format!("{}: random reads of 8 bytes", gpu.name()), random);
    }
    Ok(())
}
