//! Joins by the memory of their relations and hash tables, and its distance from the GPU (paper 2, sections 7.2.2 and 7.2.3).

use overspill_kernels::{
    HashFunction, HashTable, JoinSide, KeyWidth, MemoryAccess, PairAggregate, TableKind, TablePlacement, Values,
};
use overspill_machine::memory::{Buffer, HostBuffer, Mapping, PageSize, Placement};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::{Gpu, Machine, scaled};
use crate::figure::{Axis, Figure, SeriesSource};
use crate::{Error, Result};

/// The data that is placed in different memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Both relations; the hash table lies in GPU memory.
    Relations,
    /// The hash table; both relations lie in CPU memory.
    Table,
}

/// A memory, ordered by the number of links between it and the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Gpu,
    Cpu,
}

impl Place {
    fn buffer(self, gpu: &Gpu, bytes: u64) -> Result<Buffer> {
        let placement = match self {
            Self::Gpu => Placement::Device,
            Self::Cpu => Placement::Host { pages: PageSize::Huge, pinned: true },
        };
        Ok(Buffer::new(gpu.device(), placement, bytes)?)
    }

    fn table(self) -> TablePlacement {
        match self {
            Self::Gpu => TablePlacement::Device,
            Self::Cpu => TablePlacement::Spanning { device_bytes: 0, node: 0, mapping: Mapping::TwoArrays },
        }
    }
}

/// The workloads at scale 1, a fraction of the papers': bytes of a column of r and of s.
const WORKLOADS: [(&str, u64, u64); 3] =
    [("A", 128 << 20, 2 << 30), ("B", 2 << 20, 2 << 30), ("C, 16-byte tuples", 1 << 30, 1 << 30)];

pub(crate) fn run(machine: &Machine, scale: f64, moved: Moved) -> Result<Figure> {
    let (name, title, paper) = match moved {
        Moved::Relations => ("paper2-13", "A join by the memory of its relations", "paper 2, figure 13"),
        Moved::Table => ("paper2-14", "A join by the memory of its hash table", "paper 2, figure 14"),
    };
    let mut figure = Figure {
        name,
        title,
        paper,
        x: Axis::named("memory", ["GPU memory", "CPU memory"]),
        y: Axis::linear("million tuples a second of both sides"),
        notes: match moved {
            Moved::Relations => vec![
                "the paper: with each hop A has 32 to 46 % less; B in GPU memory has 5.8 times the rate of one hop, and three hops \
                 23 % less than one; no rates are stated"
                    .to_owned(),
            ],
            Moved::Table => vec![
                "the paper: one hop costs A and C 75 to 82 %, the second 50 %, the third 17 to 33 %; no rates are stated".to_owned(),
            ],
        },
        ..machine.figure()
    };
    let gpu = match &machine.gpu {
        Ok(gpu) => gpu,
        Err(reason) => {
            figure.notes.push(format!("nothing was measured: {reason}"));
            return Ok(figure);
        }
    };
    figure.notes.push("two and three hops are refused: joins use one GPU, and the CPU memory next to it".to_owned());
    for (workload, build, probe) in WORKLOADS {
        let (build, probe) = (scaled(build, scale) / 8, scaled(probe, scale) / 8);
        let data = Data::new(gpu, build, probe)?;
        let mut points = Vec::new();
        for (x, place) in [Place::Gpu, Place::Cpu].into_iter().enumerate() {
            let (relations, table) = match moved {
                Moved::Relations => (place, Place::Gpu),
                Moved::Table => (Place::Cpu, place),
            };
            let seconds = data.join(gpu, relations, table, machine.runs())?;
            points.push((x as f64, (build + probe) as f64 / seconds / 1e6));
        }
        if machine.is_emulated() {
            figure
                .notes
                .push(format!("{workload}: refused, the emulated device gave the right answers; it has no speed"));
            continue;
        }
        figure.add(SeriesSource::Measured, format!("{} {workload}: {build} x {probe}", gpu.name()), points);
    }
    Ok(figure)
}

/// A join of unique build keys with probe keys that each have a match, and its answer.
struct Data {
    build: HostBuffer,
    probe: HostBuffer,
    tuples: [u64; 2],
    sum: u64,
}

impl Data {
    fn new(gpu: &Gpu, build: u64, probe: u64) -> Result<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(build);
        let column = |tuples: u64| HostBuffer::pinned(gpu.device(), (tuples * 8) as usize, PageSize::Huge);
        let (mut build_keys, mut probe_keys) = (column(build)?, column(probe)?);
        build_keys.as_mut_slice::<u64>().iter_mut().zip(1..).for_each(|(key, number)| *key = number);
        build_keys.as_mut_slice::<u64>().shuffle(&mut random);
        probe_keys.as_mut_slice::<u64>().iter_mut().for_each(|key| *key = random.random_range(1..=build));
        // The value of a tuple is its key.
        let sum = probe_keys.as_slice::<u64>().iter().fold(0u64, |sum, key| sum.wrapping_add(key.wrapping_mul(2)));
        Ok(Self { build: build_keys, probe: probe_keys, tuples: [build, probe], sum })
    }

    /// Joins `runs` times, and returns the shortest time in seconds.
    fn join(&self, gpu: &Gpu, relations: Place, table: Place, runs: usize) -> Result<f64> {
        let mut access = MemoryAccess::new(&gpu.kernels)?;
        // Keys and values are separate columns, so that both are read.
        let mut columns = Vec::new();
        for source in [&self.build, &self.build, &self.probe, &self.probe] {
            let mut column = relations.buffer(gpu, source.bytes() as u64)?;
            access.copy(&gpu.stream, source.view(gpu.device())?, &mut column.view_mut(gpu.device())?)?;
            columns.push(column);
        }
        let side = |keys: usize| -> Result<JoinSide<'_>> {
            let view = |column: usize| columns[column].view(gpu.device());
            Ok(JoinSide { keys: view(keys)?, values: Values::Eight(view(keys + 1)?) })
        };
        let [build, probe] = self.tuples;
        let kind = TableKind::Perfect { smallest_key: 1, slots: build };
        let mut best = f64::INFINITY;
        for _ in 0..runs {
            let hash = HashFunction::MultiplyShift;
            let mut table = HashTable::new(&gpu.kernels, kind, KeyWidth::Eight, build, hash, table.table())?;
            let (totals, seconds) = gpu.stream.timed(|| -> Result<_> {
                table.build(&gpu.stream, &side(0)?)?;
                Ok(table.probe_aggregate(&gpu.stream, &side(2)?, &PairAggregate::SUMS)?)
            })?;
            best = best.min(seconds);
            if totals.matches != probe || totals.sum() != self.sum {
                return Err(Error::Wrong { what: format!("the join of {build} x {probe} tuples") });
            }
        }
        Ok(best)
    }
}
