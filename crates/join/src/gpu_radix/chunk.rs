//! The build side and the chunks of the probe side.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::buffer::BooleanBuffer;
use overspill_kernels::{Kernels, PartitionedJoin};
use overspill_machine::driver::Stream;
use overspill_machine::{Error, Result};

use super::fine::{FinePartitions, FirstPass, Tuples};
use super::plan::RadixPlan;
use crate::device::{DeviceCount, DeviceRequest, KEY, PAIR_BYTES, PairBlock, PairBuffers, Resident, Unit};

/// Tuples of the probe side that have more matches than there is room for are joined in halves, down to so few.
const FEWEST_TUPLES: u64 = 64;

/// Pairs of partitions that are joined in one turn on the GPU: of so many, the first partitioning alone is not overlapped.
const GROUP: usize = 8;

/// A build side that a first pass has partitioned.
#[derive(Debug)]
pub(crate) struct RadixBuild<R> {
    pub(crate) plan: RadixPlan,
    pub(crate) relation: R,
    /// What the second pass has made of some partitions, with the memory that is set aside for them.
    kept: Mutex<HashMap<usize, (Arc<FinePartitions>, Resident)>>,
    _resident: Option<Resident>,
}

impl<R: FirstPass> RadixBuild<R> {
    /// For a partitioned relation, some of which may lie in GPU memory that is set aside for it.
    pub(crate) fn new(plan: RadixPlan, relation: R, resident: Option<Resident>) -> Self {
        Self { plan, relation, kept: Mutex::default(), _resident: resident }
    }

    fn kept(&self, partition: usize) -> Option<Arc<FinePartitions>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(&partition).map(|(fine, _)| Arc::clone(fine))
    }

    /// The partition after the second pass, if it is no larger than was planned; it is kept if there is GPU memory for it.
    fn fine(
        &self,
        request: &DeviceRequest,
        kernels: &Kernels,
        stream: &Stream,
        partition: usize,
    ) -> Result<Option<Arc<FinePartitions>>> {
        if self.relation.tuples(partition) > self.plan.piece {
            return Ok(None);
        }
        if let Some(fine) = self.kept(partition) {
            return Ok(Some(fine));
        }
        let Some(tuples) = self.relation.pieces(&request.gpu, partition, self.plan.piece).next() else {
            return Ok(None);
        };
        let tuples = tuples?;
        let radix = self.plan.second(tuples.count)?;
        let fine = Arc::new(tuples.refine(kernels, stream, 0, tuples.count, radix)?);
        request.observer.add(DeviceCount::LinkBytes, tuples.link_bytes(tuples.count));
        if R::KEEPS_FINE_PARTITIONS
            && let Ok(resident) = request.gpu.reserve_resident(fine.bytes())
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.insert(partition, (Arc::clone(&fine), resident));
        }
        Ok(Some(fine))
    }

    /// Takes partitions through the second pass that can be kept, as many as there is GPU memory for.
    pub(crate) fn keep_what_fits(&self, request: &DeviceRequest) -> Result<()> {
        let gpu = &request.gpu;
        let mut bench = gpu.turn();
        bench.drop_pipeline();
        for partition in 0..self.relation.fanout() {
            let tuples = self.relation.tuples(partition);
            if tuples > 0 && self.kept(partition).is_none() {
                // Of the second pass, with what alignment takes.
                if gpu.resident_left() < tuples * 20 {
                    break;
                }
                self.fine(request, gpu.kernels(), &bench.stream, partition)?;
            }
        }
        Ok(())
    }
}

/// A chunk of the probe side that is being joined, some partitions at a time.
#[derive(Debug)]
pub(crate) struct RadixChunk<R> {
    relation: R,
    plan: RadixPlan,
    most_pairs: u64,
    /// The partition that is joined next.
    next: usize,
    /// Partitions that have been left to the CPU, and why the first of them since it was asked.
    left: Vec<usize>,
    refused: Option<Error>,
    /// What went wrong after some partitions of a unit had been joined.
    failed: Option<Error>,
    _resident: Option<Resident>,
}

/// A pair of partitions in GPU memory.
struct Ready {
    build: Arc<FinePartitions>,
    probe: FinePartitions,
}

impl<R: FirstPass> RadixChunk<R> {
    /// For a chunk that was partitioned as the build side was, whose pairs of a unit are at most so many.
    pub(crate) fn new(plan: RadixPlan, relation: R, most_pairs: u64, resident: Option<Resident>) -> Self {
        let (left, refused, failed) = (Vec::new(), None, None);
        Self { relation, plan, most_pairs, next: 0, left, refused, failed, _resident: resident }
    }

    /// Joins the next partitions that have rows of both sides.
    pub(crate) fn next(
        &mut self,
        build: &RadixBuild<R>,
        request: &DeviceRequest,
        block: &mut PairBlock,
    ) -> Result<Unit> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let (first, fanout) = (self.next, self.relation.fanout());
        if first == fanout {
            return Ok(Unit::None);
        }
        let has_both =
            |partition: &usize| build.relation.tuples(*partition) > 0 && self.relation.tuples(*partition) > 0;
        let group: Vec<usize> = (first..fanout).filter(has_both).take(GROUP).collect();
        self.next = if group.len() < GROUP { fanout } else { group[GROUP - 1] + 1 };
        self.join_group(build, request, &group, block);
        let joined = (first..self.next).filter(|partition| !self.left.contains(partition));
        Ok(Unit::Joined(joined.map(|partition| self.relation.tuples(partition)).sum()))
    }

    /// Joins pairs of partitions. While one is joined, the next takes its second pass.
    fn join_group(&mut self, build: &RadixBuild<R>, request: &DeviceRequest, group: &[usize], block: &mut PairBlock) {
        let gpu = &request.gpu;
        let mut bench = gpu.turn();
        bench.drop_pipeline();
        let (stream, second_stream) = (&bench.stream, &bench.second_stream);
        let mut prepared = None;
        for (number, &partition) in group.iter().enumerate() {
            let pairs = block.len();
            let ready = match prepared.take() {
                Some(ready) => ready,
                None => self.prepare(build, request, gpu.kernels(), stream, partition),
            };
            let joined = match (ready, group.get(number + 1)) {
                (Err(error), _) => Err(error),
                (Ok(None), _) => Ok(false),
                (Ok(Some(ready)), None) => self.join(request, gpu.kernels(), stream, &ready, block),
                (Ok(Some(ready)), Some(&next)) => std::thread::scope(|scope| {
                    let preparing = scope.spawn(|| self.prepare(build, request, gpu.half(), second_stream, next));
                    let joined = self.join(request, gpu.half(), stream, &ready, block);
                    let next = preparing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    prepared = Some(next);
                    joined
                }),
            };
            let joined = match joined {
                Ok(false) => self.join_in_pieces(build, request, stream, partition, block),
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            match joined {
                Ok(()) => {}
                // Another partition may be smaller.
                Err(error @ Error::TooSmall { .. }) => {
                    block.truncate(pairs);
                    self.left.push(partition);
                    self.refused.get_or_insert(error);
                }
                Err(error) => {
                    block.truncate(pairs);
                    self.next = partition;
                    self.failed = Some(error);
                    break;
                }
            }
        }
    }

    /// Takes both partitions through the second pass; `None` if one has to be taken in pieces.
    fn prepare(
        &self,
        build: &RadixBuild<R>,
        request: &DeviceRequest,
        kernels: &Kernels,
        stream: &Stream,
        partition: usize,
    ) -> Result<Option<Ready>> {
        if self.relation.tuples(partition) > self.plan.piece {
            return Ok(None);
        }
        let Some(build) = build.fine(request, kernels, stream, partition)? else { return Ok(None) };
        let mut pieces = self.relation.pieces(&request.gpu, partition, self.plan.piece);
        let Some(tuples) = pieces.next() else { return Ok(None) };
        let tuples = tuples?;
        let probe = tuples.refine(kernels, stream, 0, tuples.count, build.radix)?;
        request.observer.add(DeviceCount::LinkBytes, tuples.link_bytes(tuples.count));
        Ok(Some(Ready { build, probe }))
    }

    /// Joins a pair of partitions; false if it has more matches than there is room for in GPU memory.
    fn join(
        &self,
        request: &DeviceRequest,
        kernels: &Kernels,
        stream: &Stream,
        ready: &Ready,
        block: &mut PairBlock,
    ) -> Result<bool> {
        let join = PartitionedJoin::new(kernels, KEY, ready.build.radix)?;
        self.pairs(request, stream, &join, [&ready.build, &ready.probe], block).map(|found| found.is_none())
    }

    /// Joins a pair of partitions of which one is larger than was planned, or that has many matches.
    fn join_in_pieces(
        &self,
        build: &RadixBuild<R>,
        request: &DeviceRequest,
        stream: &Stream,
        partition: usize,
        block: &mut PairBlock,
    ) -> Result<()> {
        let (gpu, most) = (&request.gpu, self.plan.piece);
        let refine = |tuples: &Tuples<'_>, rows: Range<u64>, radix| {
            let count = rows.end - rows.start;
            request.observer.add(DeviceCount::LinkBytes, tuples.link_bytes(count));
            tuples.refine(gpu.kernels(), stream, rows.start, count, radix)
        };
        for build_tuples in build.relation.pieces(gpu, partition, most) {
            let build_tuples = build_tuples?;
            let radix = self.plan.second(build_tuples.count)?;
            let build = refine(&build_tuples, 0..build_tuples.count, radix)?;
            let join = PartitionedJoin::new(gpu.kernels(), KEY, radix)?;
            for probe_tuples in self.relation.pieces(gpu, partition, most) {
                let probe_tuples = probe_tuples?;
                let mut waiting = vec![0..probe_tuples.count];
                while let Some(rows) = waiting.pop() {
                    let count = rows.end - rows.start;
                    let probe = refine(&probe_tuples, rows.clone(), radix)?;
                    match self.pairs(request, stream, &join, [&build, &probe], block)? {
                        None => {}
                        Some(found) if count <= FEWEST_TUPLES => {
                            let available = self.plan.pairs.min(self.most_pairs);
                            return Err(too_many("the matches of a few probe rows", found, available));
                        }
                        Some(_) => {
                            // The columns of a part start where lines do.
                            let middle = rows.start + (count / 2).next_multiple_of(FEWEST_TUPLES);
                            waiting.extend(
                                [rows.start..middle, middle..rows.end].into_iter().filter(|rows| !rows.is_empty()),
                            );
                        }
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
        block: &mut PairBlock,
    ) -> Result<Option<u64>> {
        let most = self.plan.pairs;
        let mut capacity = most.min(probe.tuples());
        loop {
            let mut buffers = PairBuffers::new(&request.gpu, capacity)?;
            let found = join.allocate(stream, &build.side(), &probe.side(), &mut buffers.pairs())?;
            if found > most {
                return Ok(Some(found));
            }
            if found <= capacity {
                let held = block.len() as u64 + found;
                if held > self.most_pairs {
                    return Err(too_many("the matches of a partition", held, self.most_pairs));
                }
                let count = usize::try_from(found).map_err(|_| Error::Invalid(format!("{found} pairs")))?;
                buffers.append_to(stream, count, block)?;
                request.observer.add(DeviceCount::LinkBytes, found * PAIR_BYTES);
                return Ok(None);
            }
            capacity = found;
        }
    }

    /// Why the first partition was left to the CPU since this was asked last, if one was.
    pub(crate) fn take_refused(&mut self) -> Option<Error> {
        self.refused.take()
    }

    fn is_left(&self, partition: usize) -> bool {
        partition >= self.next || self.left.contains(&partition)
    }

    pub(crate) fn has_rest(&self) -> bool {
        (0..self.relation.fanout()).any(|partition| self.is_left(partition) && self.relation.tuples(partition) > 0)
    }

    /// The rows of partitions that have not been joined.
    pub(crate) fn rest(&self, keys: &[u64]) -> BooleanBuffer {
        let left: Vec<bool> = (0..self.relation.fanout()).map(|partition| self.is_left(partition)).collect();
        BooleanBuffer::collect_bool(keys.len(), |row| left[self.plan.first.partition(keys[row]) as usize])
    }
}

fn too_many(what: &'static str, pairs: u64, available: u64) -> Error {
    Error::TooSmall { what, needed: pairs * PAIR_BYTES, of: "memory for pairs", available: available * PAIR_BYTES }
}
