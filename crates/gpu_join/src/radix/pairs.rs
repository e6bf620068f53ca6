//! The join of a pair of partitions.

use std::sync::Arc;

use overspill_kernels::{Kernels, PartitionedJoin};
use overspill_machine::Result;
use overspill_machine::driver::Stream;

use super::build::RadixBuild;
use super::fine::{FinePartitions, FirstPass, Tuples, whole};
use super::plan::RadixPlan;
use crate::device::{
    AggregatedPairs, DeviceCount, DeviceRequest, KEY, PAIR_BYTES, PairBlock, PairBuffers, too_many_pairs,
};

/// Probe tuples with more matches than fit are joined in halves, down to this number of tuples.
const FEWEST_TUPLES: u64 = 64;

/// The matches found for a chunk: pairs, or aggregates of pairs.
#[derive(Debug, Default)]
pub(super) struct Matches {
    pub(super) pairs: PairBlock,
    /// `None` if the pairs are needed.
    pub(super) aggregated: Option<AggregatedPairs>,
}

/// A pair of partitions in GPU memory.
pub(super) struct Ready {
    pub(super) build: Arc<FinePartitions>,
    probe: FinePartitions,
}

/// The join of one probe partition with its build partition.
pub(super) struct PairJoin<'a> {
    pub(super) build: &'a RadixBuild,
    pub(super) probe: &'a dyn FirstPass,
    pub(super) partition: usize,
    pub(super) plan: RadixPlan,
    pub(super) request: &'a DeviceRequest,
    /// Number of pairs that CPU memory has room for.
    pub(super) most_pairs: u64,
}

impl PairJoin<'_> {
    /// Runs the second pass over both partitions; `None` if one of them must be processed in pieces. `there` is the build
    /// partition if it has already been through the second pass.
    pub(super) fn prepare(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        there: Option<&Arc<FinePartitions>>,
    ) -> Result<Option<Ready>> {
        if self.probe.tuples(self.partition) > self.plan.probe_piece {
            return Ok(None);
        }
        let build = match there {
            Some(build) => Some(Arc::clone(build)),
            None => self.build.fine(self.request, kernels, stream, self.partition)?,
        };
        let Some(build) = build else { return Ok(None) };
        let tuples = whole(self.probe, &self.request.gpu, self.partition, self.plan.probe_piece)?;
        let Some(tuples) = tuples else { return Ok(None) };
        let probe = tuples.refine(kernels, stream, 0, tuples.count, build.radix)?;
        self.request.observer.add(DeviceCount::LinkBytes, tuples.link_bytes(tuples.count));
        Ok(Some(Ready { build, probe }))
    }

    /// Joins partitions in GPU memory; false if their matches do not fit GPU memory.
    pub(super) fn join(&self, kernels: &Kernels, stream: &Stream, ready: &Ready, found: &mut Matches) -> Result<bool> {
        let join = PartitionedJoin::new(kernels, KEY, ready.build.radix)?;
        self.pairs(stream, &join, [&ready.build, &ready.probe], found).map(|refused| refused.is_none())
    }

    /// Joins partitions that have many matches, or if one of them is larger than planned.
    pub(super) fn join_in_pieces(&self, stream: &Stream, found: &mut Matches) -> Result<()> {
        let (gpu, most) = (&self.request.gpu, self.plan.piece);
        let refine = |tuples: &Tuples<'_>, first, count, radix| {
            self.request.observer.add(DeviceCount::LinkBytes, tuples.link_bytes(count));
            tuples.refine(&gpu.kernels, stream, first, count, radix)
        };
        for build_tuples in self.build.relation.pieces(gpu, self.partition, most) {
            let build_tuples = build_tuples?;
            let radix = self.plan.second(build_tuples.count)?;
            let build = refine(&build_tuples, 0, build_tuples.count, radix)?;
            let join = PartitionedJoin::new(&gpu.kernels, KEY, radix)?;
            for probe_tuples in self.probe.pieces(gpu, self.partition, self.plan.probe_piece) {
                let probe_tuples = probe_tuples?;
                // First tuple and number of tuples of each part.
                let mut waiting = vec![(0, probe_tuples.count)];
                while let Some((first, count)) = waiting.pop() {
                    let probe = refine(&probe_tuples, first, count, radix)?;
                    match self.pairs(stream, &join, [&build, &probe], found)? {
                        None => {}
                        Some(pairs) if count <= FEWEST_TUPLES => {
                            let available = self.plan.pairs.min(self.most_pairs);
                            return Err(too_many_pairs("the matches of a few probe rows", pairs, available));
                        }
                        Some(_) => {
                            // The columns of a part must start at a line.
                            let half = (count / 2).next_multiple_of(FEWEST_TUPLES);
                            let halves = [(first, half), (first + half, count - half)];
                            waiting.extend(halves.into_iter().filter(|(_, count)| *count > 0));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the pairs of two sides to the matches. If the pairs do not fit GPU memory, returns their number instead.
    fn pairs(
        &self,
        stream: &Stream,
        join: &PartitionedJoin,
        [build, probe]: [&FinePartitions; 2],
        matches: &mut Matches,
    ) -> Result<Option<u64>> {
        if let Some(aggregated) = &mut matches.aggregated {
            aggregated.add(&join.aggregate(stream, &build.side(), &probe.side(), &aggregated.aggregates.kernels)?)?;
            return Ok(None);
        }
        let block = &mut matches.pairs;
        let most = self.plan.pairs;
        let mut capacity = most.min(probe.tuples());
        loop {
            let mut buffers = PairBuffers::new(&self.request.gpu, capacity)?;
            let found = join.allocate(stream, &build.side(), &probe.side(), &mut buffers.pairs())?;
            if found > most {
                return Ok(Some(found));
            }
            if found <= capacity {
                let held = block.len() as u64 + found;
                if held > self.most_pairs {
                    return Err(too_many_pairs("the matches of a partition", held, self.most_pairs));
                }
                buffers.append_to(&self.request.gpu, stream, found, block)?;
                self.request.observer.add(DeviceCount::LinkBytes, found * PAIR_BYTES);
                return Ok(None);
            }
            capacity = found;
        }
    }
}
