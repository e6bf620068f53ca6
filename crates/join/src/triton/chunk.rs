//! The build side and the chunks of the probe side.

use arrow::buffer::BooleanBuffer;
use overspill_kernels::{JoinSide, PartitionedJoin};
use overspill_machine::driver::Stream;
use overspill_machine::{Error, Result};

use super::plan::TritonPlan;
use super::relation::{Columns, FinePartitions, PartitionedRelation};
use crate::device::{
    BuildColumns, DeviceCount, DeviceRequest, KEY, PAIR_BYTES, PairBlock, PairBuffers, ProbeKeys, Resident, Unit,
};

/// A partition of the probe side that has more matches than there is room for is joined in halves, down to so few tuples.
const FEWEST_TUPLES: u64 = 64;

/// A build side that the first pass has partitioned.
#[derive(Debug)]
pub(crate) struct TritonBuild {
    plan: TritonPlan,
    relation: PartitionedRelation,
    _resident: Resident,
}

impl TritonBuild {
    /// Partitions a build side.
    pub(crate) fn build(request: &DeviceRequest, columns: &BuildColumns) -> Result<Self> {
        let gpu = &request.gpu;
        let plan = TritonPlan::new(gpu, columns.rows)?;
        let resident = cache(request, columns.rows, &plan)?;
        let mut bench = gpu.turn();
        bench.drop_pipeline();
        let JoinSide { keys, values } = columns.side()?;
        let columns = Columns { keys, values };
        let relation = PartitionedRelation::new(gpu, &bench.stream, &columns, plan.first, resident.bytes())?;
        request.observer.add(DeviceCount::LinkBytes, relation.link_bytes);
        Ok(Self { plan, relation, _resident: resident })
    }

    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.relation.spilled_bytes()
    }

    /// Bytes of CPU memory that so many rows of either side take once they are partitioned, if none of them is cached.
    pub(crate) fn host_bytes(rows: usize) -> usize {
        PartitionedRelation::host_bytes(rows)
    }
}

/// Sets GPU memory aside for the partitions of so many tuples: at most a part of what is left, so that the other side has some,
/// and at most the share of them that is worth caching (paper 1, section 6.2.7).
fn cache(request: &DeviceRequest, tuples: u64, plan: &TritonPlan) -> Result<Resident> {
    let gpu = &request.gpu;
    let wanted = PartitionedRelation::bytes(tuples, plan.first) as f64 * request.cached_share;
    gpu.reserve_resident((wanted as u64).min(gpu.resident_left() / 2))
}

/// A chunk of the probe side that is being joined, a partition at a time.
#[derive(Debug)]
pub(crate) struct TritonChunk {
    relation: PartitionedRelation,
    rows: u64,
    plan: TritonPlan,
    most_pairs: u64,
    /// The partition that is joined next.
    next: usize,
    /// Partitions that have been left to the CPU.
    left: Vec<usize>,
    _resident: Resident,
}

impl TritonChunk {
    /// Partitions a chunk. Its keys are not needed afterwards.
    pub(crate) fn new(table: &TritonBuild, request: &DeviceRequest, keys: ProbeKeys, most_pairs: u64) -> Result<Self> {
        let gpu = &request.gpu;
        let plan = table.plan;
        let resident = cache(request, keys.rows, &plan)?;
        let mut bench = gpu.turn();
        bench.drop_pipeline();
        let JoinSide { keys: words, values } = keys.side(0..keys.rows)?;
        let columns = Columns { keys: words, values };
        let relation = PartitionedRelation::new(gpu, &bench.stream, &columns, plan.first, resident.bytes())?;
        request.observer.add(DeviceCount::LinkBytes, relation.link_bytes);
        request.observer.add(DeviceCount::SpilledBytes, relation.spilled_bytes());
        Ok(Self { relation, rows: keys.rows, plan, most_pairs, next: 0, left: Vec::new(), _resident: resident })
    }

    /// Joins the next partition that has rows of both sides.
    pub(crate) fn next(&mut self, table: &TritonBuild, request: &DeviceRequest, block: &mut PairBlock) -> Result<Unit> {
        while let Some((_, probe_tuples)) = self.relation.partitions.get(self.next).copied() {
            let (_, build_tuples) = table.relation.partitions[self.next];
            if probe_tuples > 0 && build_tuples > 0 {
                self.join(table, request, block)?;
            }
            self.next += 1;
            if probe_tuples > 0 {
                return Ok(Unit::Joined(probe_tuples));
            }
        }
        Ok(Unit::None)
    }

    /// Joins a pair of partitions, in pieces where they are larger than was planned.
    fn join(&self, table: &TritonBuild, request: &DeviceRequest, block: &mut PairBlock) -> Result<()> {
        let gpu = &request.gpu;
        let mut bench = gpu.turn();
        bench.drop_pipeline();
        let stream = &bench.stream;
        for (first, tuples) in pieces(table.relation.partitions[self.next], self.plan.piece) {
            let radix = self.plan.second(tuples)?;
            let build = table.relation.refine(gpu, stream, first, tuples, radix)?;
            request.observer.add(DeviceCount::LinkBytes, table.relation.link_bytes_of(tuples));
            let join = PartitionedJoin::new(gpu.kernels(), KEY, radix)?;
            let mut waiting: Vec<_> = pieces(self.relation.partitions[self.next], self.plan.piece).collect();
            while let Some((first, tuples)) = waiting.pop() {
                let probe = self.relation.refine(gpu, stream, first, tuples, radix)?;
                request.observer.add(DeviceCount::LinkBytes, self.relation.link_bytes_of(tuples));
                match self.pairs(request, stream, &join, [&build, &probe], tuples, block)? {
                    None => {}
                    Some(found) if tuples <= FEWEST_TUPLES => {
                        return Err(Error::TooSmall {
                            what: "the matches of a few probe rows",
                            needed: found * PAIR_BYTES,
                            of: "memory for pairs",
                            available: self.plan.pairs.min(self.most_pairs) * PAIR_BYTES,
                        });
                    }
                    Some(_) => {
                        // The columns of a part start where lines do.
                        let half = (tuples / 2).next_multiple_of(FEWEST_TUPLES);
                        waiting.extend(
                            [(first, half), (first + half, tuples - half)].into_iter().filter(|part| part.1 > 0),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the pairs of two sides to the block; if they are more than there is room for in GPU memory, tells how many.
    fn pairs(
        &self,
        request: &DeviceRequest,
        stream: &Stream,
        join: &PartitionedJoin,
        [build, probe]: [&FinePartitions; 2],
        tuples: u64,
        block: &mut PairBlock,
    ) -> Result<Option<u64>> {
        let most = self.plan.pairs;
        let mut capacity = most.min(tuples);
        loop {
            let mut buffers = PairBuffers::new(&request.gpu, capacity)?;
            let found = join.allocate(stream, &build.side(), &probe.side(), &mut buffers.pairs())?;
            if found > most {
                return Ok(Some(found));
            }
            if found <= capacity {
                let held = block.len() as u64 + found;
                if held > self.most_pairs {
                    return Err(Error::TooSmall {
                        what: "the matches of a partition",
                        needed: held * PAIR_BYTES,
                        of: "memory for pairs",
                        available: self.most_pairs * PAIR_BYTES,
                    });
                }
                let count = usize::try_from(found).map_err(|_| Error::Invalid(format!("{found} pairs")))?;
                buffers.append_to(stream, count, block)?;
                request.observer.add(DeviceCount::LinkBytes, found * PAIR_BYTES);
                return Ok(None);
            }
            capacity = found;
        }
    }

    /// Leaves the current partition to the CPU.
    pub(crate) fn leave(&mut self) {
        self.left.push(self.next);
        self.next += 1;
    }

    fn is_left(&self, partition: usize) -> bool {
        partition >= self.next || self.left.contains(&partition)
    }

    pub(crate) fn has_rest(&self) -> bool {
        let counts = self.relation.partitions.iter().enumerate();
        counts.filter(|(partition, _)| self.is_left(*partition)).any(|(_, (_, tuples))| *tuples > 0)
    }

    /// The rows of partitions that have not been joined.
    pub(crate) fn rest(&self, keys: &[u64]) -> BooleanBuffer {
        let left: Vec<bool> = (0..self.relation.partitions.len()).map(|partition| self.is_left(partition)).collect();
        debug_assert_eq!(keys.len() as u64, self.rows, "the keys of the chunk");
        BooleanBuffer::collect_bool(keys.len(), |row| left[self.plan.first.partition(keys[row]) as usize])
    }
}

/// Stretches of at most so many tuples each.
fn pieces((first, tuples): (u64, u64), piece: u64) -> impl Iterator<Item = (u64, u64)> {
    // Columns of a piece start where lines do.
    let piece = (piece / FEWEST_TUPLES * FEWEST_TUPLES).max(FEWEST_TUPLES);
    (0..tuples.div_ceil(piece)).map(move |number| (first + number * piece, piece.min(tuples - number * piece)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_partition() {
        assert_eq!(pieces((7, 0), 100).count(), 0);
        assert_eq!(pieces((7, 64), 100).collect::<Vec<_>>(), [(7, 64)]);
        assert_eq!(pieces((7, 130), 100).collect::<Vec<_>>(), [(7, 64), (71, 64), (135, 2)]);
        assert_eq!(pieces((0, 3), 1).collect::<Vec<_>>(), [(0, 3)]);
    }
}
