//! Probe chunks that are joined together.
//!
//! Each stream has its own chunk and emits its own pairs. Chunks that wait for their turn on the GPU at the same time are
//! joined together, partition by partition, so that a partition of the build side is fetched once for all of them. Any stream
//! that is polled continues the run for all: no stream waits for another that may never be polled again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::buffer::BooleanBuffer;
use overspill_kernels::SecondPass;
use overspill_machine::{Error, Result};
use tracing::debug_span;

use super::build::RadixBuild;
use super::fine::{FirstPass, Tuples, whole};
use super::pairs::{Matches, PairJoin, Ready};
use super::plan::RadixPlan;
use crate::device::{AggregatedPairs, DeviceCount, DeviceRequest, PairBlock, Resident, Unit, Workbench};

/// Number of pairs of partitions joined in one turn on the GPU. Only the second pass over a group's first pair is not
/// overlapped.
const GROUP: usize = 8;

/// A set of chunks that are joined together.
#[derive(Debug)]
struct RadixRun {
    /// Members by number; `None` if the member's stream has dropped its chunk.
    members: Vec<Option<Member>>,
    /// The partition and the member to join next.
    next: (usize, usize),
    has_begun: bool,
    /// The error that ended the run early.
    failed: Option<Error>,
}

#[derive(Debug)]
struct Member {
    relation: Arc<dyn FirstPass>,
    /// A partition that its stream has staged, and its number.
    staged: Option<(usize, Tuples)>,
    most_pairs: u64,
    /// Matches that its stream has not taken yet.
    found: Matches,
    /// Partitions whose pairs had no room beside those that its stream has not taken yet. Its own stream joins them.
    postponed: Vec<usize>,
    /// Partitions left to the CPU, and the reason for the first of them since the last call of `take_refused`.
    left: Vec<usize>,
    refused: Option<Error>,
    _resident: Option<Resident>,
}

/// A partitioned build side, and the most recent run over it.
#[derive(Debug)]
pub(crate) struct RadixTable {
    pub(crate) build: RadixBuild,
    /// Chunks join the run until its first partition is joined.
    open: Mutex<Option<Arc<Mutex<RadixRun>>>>,
}

impl From<RadixBuild> for RadixTable {
    fn from(build: RadixBuild) -> Self {
        Self { build, open: Mutex::default() }
    }
}

/// A stream's handle to its chunk.
#[derive(Debug)]
pub(crate) struct RadixChunk {
    run: Arc<Mutex<RadixRun>>,
    number: usize,
    plan: RadixPlan,
}

fn lock(run: &Mutex<RadixRun>) -> MutexGuard<'_, RadixRun> {
    // A stream that panicked has lost the pairs of one partition, and its query fails.
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RadixChunk {
    /// Adds a chunk that was partitioned like the build side. At most `most_pairs` of its pairs wait to be taken.
    ///
    /// If kernels aggregate the pairs, none wait.
    pub(crate) fn new(
        table: &RadixTable,
        relation: impl FirstPass + 'static,
        most_pairs: u64,
        aggregated: Option<AggregatedPairs>,
        resident: Option<Resident>,
    ) -> Self {
        let (found, left, postponed) = (Matches { pairs: PairBlock::default(), aggregated }, Vec::new(), Vec::new());
        let relation = Arc::new(relation);
        let member =
            Member { relation, staged: None, most_pairs, found, postponed, left, refused: None, _resident: resident };
        let mut open = table.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = open.as_ref() {
            let mut state = lock(run);
            if !state.has_begun {
                state.members.push(Some(member));
                let number = state.members.len() - 1;
                drop(state);
                return Self { run: Arc::clone(run), number, plan: table.build.plan };
            }
        }
        let run = RadixRun { members: vec![Some(member)], next: (0, 0), has_begun: false, failed: None };
        let run = Arc::new(Mutex::new(run));
        *open = Some(Arc::clone(&run));
        Self { run, number: 0, plan: table.build.plan }
    }

    /// Takes the pairs found for the chunk, or continues the run.
    pub(crate) fn next(&mut self, build: &RadixBuild, request: &DeviceRequest, block: &mut PairBlock) -> Result<Unit> {
        if let Some(unit) = self.take(&mut lock(&self.run), block)? {
            return Ok(unit);
        }
        self.stage_next(build, request);
        // Other chunks may join the run while this one waits for its turn.
        let turn = request.turn();
        let mut state = lock(&self.run);
        if let Some(unit) = self.take(&mut state, block)? {
            return Ok(unit);
        }
        // Without a turn the run ends for all chunks. Otherwise another could still find pairs of rows that this one leaves to the CPU.
        let mut bench = turn.inspect_err(|error| state.failed = Some(error.clone()))?;
        bench.drop_pipeline();
        state.has_begun = true;
        state.advance(build, request, &bench, self.plan, self.number);
        Ok(self.take(&mut state, block)?.unwrap_or(Unit::Joined))
    }

    /// Stages the chunk's partition that is joined next, if its partitions are staged at all. All streams do so before they wait
    /// for the turn.
    fn stage_next(&self, build: &RadixBuild, request: &DeviceRequest) {
        let next = |state: &RadixRun| {
            let member = state.members[self.number].as_ref().filter(|member| member.relation.is_staged())?;
            let first = state.next.0 + usize::from(state.next.1 > self.number);
            let has_pairs =
                |partition: &usize| build.relation.tuples(*partition) > 0 && member.relation.tuples(*partition) > 0;
            let partition = (first..member.relation.fanout()).find(has_pairs)?;
            if member.relation.tuples(partition) > self.plan.probe_piece {
                return None;
            }
            let is_there = member.staged.as_ref().is_some_and(|(staged, _)| *staged == partition);
            (!is_there).then(|| (partition, Arc::clone(&member.relation)))
        };
        let Some((partition, relation)) = next(&lock(&self.run)) else { return };
        let _staging = debug_span!("stage partition", partition).entered();
        // Without memory for it now, it is staged when it is joined, or refused then.
        if let Ok(Some(tuples)) = whole(&*relation, &request.gpu, partition, self.plan.probe_piece) {
            let mut state = lock(&self.run);
            // Another stream may have joined it meanwhile.
            let is_next = (partition, self.number) >= state.next;
            if let Some(member) = state.members[self.number].as_mut().filter(|_| is_next) {
                member.staged = Some((partition, tuples));
            }
        }
    }

    /// Takes the waiting pairs, or returns that the run has ended; `None` if more must be joined first.
    fn take(&self, state: &mut RadixRun, block: &mut PairBlock) -> Result<Option<Unit>> {
        let is_over = state.next.0 == build_fanout(state, self.number);
        let Some(member) = &mut state.members[self.number] else { return Ok(Some(Unit::None)) };
        if let Some(aggregated) = &mut member.found.aggregated {
            aggregated.hand_on();
        }
        if member.found.pairs.len() > 0 {
            std::mem::swap(&mut member.found.pairs, block);
            member.found.pairs.clear();
            return Ok(Some(Unit::Joined));
        }
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => Ok((is_over && member.postponed.is_empty()).then_some(Unit::None)),
        }
    }

    /// The reason why partitions were left to the CPU, for the first such partition since the last call.
    pub(crate) fn take_refused(&mut self) -> Option<Error> {
        lock(&self.run).members[self.number].as_mut()?.refused.take()
    }

    pub(crate) fn has_rest(&self) -> bool {
        let state = lock(&self.run);
        let Some(member) = &state.members[self.number] else { return false };
        let mut partitions = 0..member.relation.fanout();
        partitions.any(|partition| state.is_left(self.number, partition) && member.relation.tuples(partition) > 0)
    }

    /// The rows whose partitions have not been joined.
    pub(crate) fn rest(&self, keys: &[u64]) -> BooleanBuffer {
        let state = lock(&self.run);
        let fanout = build_fanout(&state, self.number);
        let left: Vec<bool> = (0..fanout).map(|partition| state.is_left(self.number, partition)).collect();
        BooleanBuffer::collect_bool(keys.len(), |row| left[self.plan.first.partition(keys[row]) as usize])
    }
}

impl Drop for RadixChunk {
    fn drop(&mut self) {
        lock(&self.run).members[self.number] = None;
    }
}

fn build_fanout(state: &RadixRun, number: usize) -> usize {
    state.members[number].as_ref().map_or(0, |member| member.relation.fanout())
}

impl RadixRun {
    /// Whether a partition of a member was not joined: it was left to the CPU, or the run did not reach it.
    fn is_left(&self, number: usize, partition: usize) -> bool {
        let is_before = (partition, number) < self.next;
        let is_member_left =
            |member: &Member| member.left.contains(&partition) || member.postponed.contains(&partition);
        !is_before || self.members[number].as_ref().is_some_and(is_member_left)
    }

    /// The partitions that a member's own stream must join first, if there are any.
    fn postponed(&self, number: usize) -> Option<Vec<(usize, usize)>> {
        let postponed = &self.members[number].as_ref()?.postponed;
        let group = postponed.iter().take(GROUP).map(|partition| (*partition, number));
        (!postponed.is_empty()).then(|| group.collect())
    }

    /// Returns the next pairs of partitions that have rows on both sides, and the position after them.
    fn group(&self, build: &RadixBuild) -> (Vec<(usize, usize)>, (usize, usize)) {
        let (fanout, members) = (build.relation.fanout(), self.members.len());
        let mut group = Vec::with_capacity(GROUP);
        let (mut partition, mut number) = self.next;
        if number >= members {
            (partition, number) = (partition + 1, 0);
        }
        while partition < fanout && group.len() < GROUP {
            let has_probe = |member: &Member| member.relation.tuples(partition) > 0;
            if build.relation.tuples(partition) > 0 && self.members[number].as_ref().is_some_and(has_probe) {
                group.push((partition, number));
            }
            (partition, number) = if number + 1 < members { (partition, number + 1) } else { (partition + 1, 0) };
        }
        (group, (partition, number))
    }

    /// Joins a group of pairs of partitions. While one pair is joined on one stream, the next goes through its second pass on
    /// another. The CPU waits once until it knows the matches of a pair, and once for their copy. What others have postponed for `own`
    /// comes first.
    ///
    /// Ends early if the pairs of `own`, the member whose stream continues the run, must be taken first.
    fn advance(&mut self, build: &RadixBuild, request: &DeviceRequest, bench: &Workbench, plan: RadixPlan, own: usize) {
        let gpu = &request.gpu;
        let (stream, second_stream) = (&bench.stream, &bench.second_stream);
        let postponed = self.postponed(own);
        let is_postponed = postponed.is_some();
        let (group, end) = postponed.map_or_else(|| self.group(build), |group| (group, self.next));
        let mut prepared: Option<Result<Option<Ready>>> = None;
        // One stream makes all second passes, which so share the memory for copies.
        let probe_tuples = group.iter().filter_map(|(partition, number)| {
            let member = self.members[*number].as_ref()?;
            Some(member.relation.tuples(*partition).min(plan.probe_piece))
        });
        let build_tuples = group.iter().map(|(partition, _)| build.relation.tuples(*partition).min(plan.piece));
        let mut pass = SecondPass::new(second_stream, probe_tuples.chain(build_tuples).max().unwrap_or(0));
        for (place, &(partition, number)) in group.iter().enumerate() {
            // Move the member's matches out while other members of the run are borrowed.
            let Some(member) = &mut self.members[number] else { continue };
            let mut found = std::mem::take(&mut member.found);
            let (before, aggregated_before) = (found.pairs.len(), found.aggregated.clone());
            let pair_of = |partition, number: usize| {
                let member = self.members[number].as_ref()?;
                let (probe, most_pairs) = (&*member.relation, member.most_pairs);
                let staged =
                    member.staged.as_ref().filter(|(staged, _)| *staged == partition).map(|(_, tuples)| tuples);
                Some(PairJoin { build, probe, staged, partition, plan, request, most_pairs })
            };
            let Some(pair) = pair_of(partition, number) else { continue };
            let ready = prepared.take().unwrap_or_else(|| pair.prepare(&mut pass, &gpu.kernels, None));
            let next = group.get(place + 1).and_then(|&(partition, number)| pair_of(partition, number));
            let joined = ready.and_then(|ready| {
                let Some(ready) = ready else { return Ok(false) };
                // With nothing beside it, the join takes the whole GPU.
                let kernels = if next.is_some() { &gpu.half } else { &gpu.kernels };
                let joining = pair.begin(kernels, stream, &ready, &found);
                prepared = next.map(|next| {
                    let there = (next.partition == partition).then_some(&ready.build);
                    next.prepare(&mut pass, &gpu.half, there)
                });
                let joined = pair.end(stream, joining?, &ready, &mut found);
                second_stream.tell_finished();
                joined
            });
            let joined = match joined {
                Ok(false) => pair.join_in_pieces(&mut pass, second_stream, &mut found),
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            if joined.is_err() {
                found.pairs.truncate(before);
                found.aggregated = aggregated_before;
            }
            let Some(member) = &mut self.members[number] else { continue };
            member.found = found;
            member.staged.take_if(|(staged, _)| *staged == partition);
            if is_postponed && !matches!(&joined, Err(Error::TooSmall { .. }) if before > 0) {
                member.postponed.retain(|other| *other != partition);
            }
            match joined {
                Ok(()) => {
                    let rows = member.relation.tuples(partition);
                    request.observer.probed(gpu.device().ordinal(), rows);
                    if member.found.aggregated.is_some() {
                        request.observer.add(DeviceCount::AggregatedRows, rows);
                    }
                }
                Err(Error::TooSmall { .. }) if before > 0 && number == own => {
                    if !is_postponed {
                        self.next = (partition, number);
                    }
                    return;
                }
                // When the pairs of other members are taken is unknown, so do not wait for that.
                Err(Error::TooSmall { .. }) if before > 0 => member.postponed.push(partition),
                // Another partition may be smaller, so continue.
                Err(
                    error @ (Error::TooSmall { .. }
                    | Error::TooMany { .. }
                    | Error::OverBudget { .. }
                    | Error::OutOfDeviceMemory { .. }),
                ) => {
                    member.left.push(partition);
                    member.refused.get_or_insert(error);
                }
                Err(error) => {
                    if is_postponed {
                        member.left.push(partition);
                    } else {
                        self.next = (partition, number);
                    }
                    self.failed = Some(error);
                    return;
                }
            }
            if !is_postponed {
                self.next = (partition, number + 1);
            }
        }
        self.next = end;
    }
}
