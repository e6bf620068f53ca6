//! The join of a pair of partitions.

use std::sync::Arc;

use overspill_kernels::{
    AllocatedPairs, FinePartitions, Kernels, PartitionedJoin, PartitionedSide, Radix, SecondPass, Totals,
};
use overspill_machine::Result;
use overspill_machine::driver::{Queued, Stream};

use super::build::{RadixBuild, Refined};
use super::fine::{FirstPass, Tuples, whole};
use super::plan::RadixPlan;
use crate::device::{AggregatedPairs, DeviceCount, DeviceRequest, KEY, PAIR_BYTES, PairBlock, too_many_pairs};

/// Probe tuples with more matches than fit are joined in halves, down to this number of tuples.
const FEWEST_TUPLES: u64 = 64;

/// The matches found for a chunk: pairs, or aggregates of pairs.
#[derive(Debug, Default)]
pub(super) struct Matches {
    pub(super) pairs: PairBlock,
    /// `None` if the pairs are needed.
    pub(super) aggregated: Option<AggregatedPairs>,
}

/// A pair of partitions in GPU memory, once their second passes are done.
pub(super) struct Ready {
    pub(super) build: Refined,
    probe: Refined,
}

impl Drop for Ready {
    fn drop(&mut self) {
        // A build partition that is kept needs its working memory no more.
        self.build.settle();
    }
}

/// The queued join of a pair of partitions.
pub(super) struct Joining {
    join: PartitionedJoin,
    output: Output,
}

enum Output {
    Pairs(Queued<AllocatedPairs>),
    Aggregates(Queued<Totals>),
}

/// The join of one probe partition with its build partition.
pub(super) struct PairJoin<'a> {
    pub(super) build: &'a RadixBuild,
    pub(super) probe: &'a dyn FirstPass,
    /// The probe partition, if it has been staged.
    pub(super) staged: Option<&'a Tuples>,
    pub(super) partition: usize,
    pub(super) plan: RadixPlan,
    pub(super) request: &'a DeviceRequest,
    /// Number of pairs that CPU memory has room for.
    pub(super) most_pairs: u64,
}

impl PairJoin<'_> {
    /// Queues the second pass over both partitions; `None` if one of them must be processed in pieces. `there` is the build
    /// partition if its second pass has been queued already.
    pub(super) fn prepare(
        &self,
        pass: &mut SecondPass<'_>,
        kernels: &Kernels,
        there: Option<&Refined>,
    ) -> Result<Option<Ready>> {
        let [build_tuples, probe_tuples] = self.tuples();
        if build_tuples > self.plan.piece || probe_tuples > self.plan.probe_piece {
            return Ok(None);
        }
        let build = match there {
            Some(build) => Some(Arc::clone(build)),
            None => self.build.fine(self.request, pass, kernels, self.partition)?,
        };
        let Some(build) = build else { return Ok(None) };
        let probe = self.refine_probe(pass, kernels, build.result().radix());
        match probe {
            Ok(Some(probe)) => Ok(Some(Ready { build, probe: Arc::new(probe) })),
            other => {
                build.settle();
                other.map(|_| None)
            }
        }
    }

    /// The tuples of the build partition and of the probe partition.
    fn tuples(&self) -> [u64; 2] {
        [self.build.relation.tuples(self.partition), self.probe.tuples(self.partition)]
    }

    /// Queues the second pass over the whole probe partition.
    fn refine_probe(
        &self,
        pass: &mut SecondPass<'_>,
        kernels: &Kernels,
        radix: Radix,
    ) -> Result<Option<Queued<FinePartitions>>> {
        let tuples = match self.staged {
            Some(staged) => Some(staged.clone()),
            None => whole(self.probe, &self.request.gpu, self.partition, self.plan.probe_piece)?,
        };
        let Some(tuples) = tuples else { return Ok(None) };
        tuples.refine(self.request, pass, kernels, radix).map(Some)
    }

    /// Queues the join of partitions in GPU memory, whose matches go where `found` has others.
    pub(super) fn begin(&self, kernels: &Kernels, stream: &Stream, ready: &Ready, found: &Matches) -> Result<Joining> {
        let join = PartitionedJoin::new(kernels, KEY, ready.build.result().radix())?;
        let sides = [&ready.build, &ready.probe];
        let output = match &found.aggregated {
            Some(aggregated) => {
                Output::Aggregates(join.queue_aggregate(stream, sides, &aggregated.aggregates.kernels)?)
            }
            None => {
                let pairs = AllocatedPairs::new(self.request.gpu.device(), self.first_capacity(ready.probe.result()))?;
                Output::Pairs(join.queue_allocate(stream, sides, pairs)?)
            }
        };
        Ok(Joining { join, output })
    }

    /// Waits for a join on `stream` and adds its matches; false if they do not fit GPU memory.
    pub(super) fn end(&self, stream: &Stream, joining: Joining, ready: &Ready, found: &mut Matches) -> Result<bool> {
        match joining.output {
            Output::Aggregates(totals) => {
                let totals = totals.result().read(stream)?;
                found.aggregated.as_mut().map_or(Ok(()), |aggregated| aggregated.add(&totals))?;
            }
            Output::Pairs(pairs) => {
                let count = pairs.result().found(stream)?;
                if !self.take(stream, pairs.result(), count, &mut found.pairs)? {
                    drop(pairs);
                    let sides = [ready.build.result(), ready.probe.result()];
                    return Ok(self.pairs(stream, &joining.join, sides, count, found)?.is_none());
                }
            }
        }
        Ok(true)
    }

    /// Joins partitions that have many matches, or if one of them is larger than planned.
    ///
    /// `pass` is one on `stream`.
    pub(super) fn join_in_pieces(&self, pass: &mut SecondPass<'_>, stream: &Stream, found: &mut Matches) -> Result<()> {
        let (gpu, most) = (&self.request.gpu, self.plan.piece);
        let mut refine = |tuples: &Tuples, [first, count]: [u64; 2], radix| {
            tuples.part([first, count])?.refine(self.request, pass, &gpu.kernels, radix)
        };
        for build_tuples in self.build.relation.pieces(gpu, self.partition, most) {
            let build_tuples = build_tuples?;
            let count = build_tuples.count();
            let radix = self.plan.second(count)?;
            let build = refine(&build_tuples, [0, count], radix)?;
            let join = PartitionedJoin::new(&gpu.kernels, KEY, radix)?;
            for probe_tuples in self.probe.pieces(gpu, self.partition, self.plan.probe_piece) {
                let probe_tuples = probe_tuples?;
                // First tuple and number of tuples of each part.
                let mut waiting = vec![[0, probe_tuples.count()]];
                while let Some([first, count]) = waiting.pop() {
                    let probe = refine(&probe_tuples, [first, count], radix)?;
                    let sides = [build.result(), probe.result()];
                    match self.pairs(stream, &join, sides, self.first_capacity(probe.result()), found)? {
                        None => {}
                        Some(pairs) if count <= FEWEST_TUPLES => {
                            let available = self.plan.pairs.min(self.most_pairs);
                            return Err(too_many_pairs("the matches of a few probe rows", pairs, available));
                        }
                        Some(_) => {
                            // The columns of a part must start at a line.
                            let half = (count / 2).next_multiple_of(FEWEST_TUPLES);
                            let halves = [[first, half], [first + half, count - half]];
                            waiting.extend(halves.into_iter().filter(|[_, count]| *count > 0));
                        }
                    }
                    build.settle();
                }
            }
        }
        Ok(())
    }

    /// The number of pairs that a join has room for at first.
    fn first_capacity(&self, probe: &FinePartitions) -> u64 {
        self.plan.pairs.min(probe.tuples())
    }

    /// Adds the matches of two sides that were queued on `stream`, with room for `capacity` pairs at first. If the pairs do not
    /// fit GPU memory, returns their number instead.
    fn pairs(
        &self,
        stream: &Stream,
        join: &PartitionedJoin,
        sides: [&FinePartitions; 2],
        mut capacity: u64,
        matches: &mut Matches,
    ) -> Result<Option<u64>> {
        let [build, probe] = sides.map(PartitionedSide::from);
        if let Some(aggregated) = &mut matches.aggregated {
            aggregated.add(&join.aggregate(stream, &build, &probe, &aggregated.aggregates.kernels)?)?;
            return Ok(None);
        }
        while capacity <= self.plan.pairs {
            let mut pairs = AllocatedPairs::new(self.request.gpu.device(), capacity)?;
            let found = join.allocate(stream, &build, &probe, &mut pairs)?;
            if self.take(stream, &pairs, found, &mut matches.pairs)? {
                return Ok(None);
            }
            capacity = found;
        }
        Ok(Some(capacity))
    }

    /// Copies `found` pairs to a block; false if there was not room for all of them in GPU memory.
    fn take(&self, stream: &Stream, pairs: &AllocatedPairs, found: u64, block: &mut PairBlock) -> Result<bool> {
        if found > pairs.capacity() {
            return Ok(false);
        }
        let held = block.len() as u64 + found;
        if held > self.most_pairs {
            return Err(too_many_pairs("the matches of a partition", held, self.most_pairs));
        }
        block.append(&self.request.gpu, stream, pairs, found)?;
        self.request.observer.add(DeviceCount::LinkBytes, found * PAIR_BYTES);
        Ok(true)
    }
}
