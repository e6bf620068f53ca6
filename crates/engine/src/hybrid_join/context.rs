//! A join and the means to run it: what all its streams and their parts use.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use futures::future::BoxFuture;
use overspill_join::hybrid::{BuildSide, HybridBuild, JoinPlan, SubqueryFacts};
use overspill_join::memory::{Grant, UnitMemory};
use overspill_join::spill::{SpillTuning, SpilledPartition};
use tokio::runtime::Handle;
use tracing::Span;

use super::dynamic_filter::{BoundsFilter, KeyBounds};
use super::metrics::JoinMetrics;
use super::side_swap::{Race, RaceRules, Raced, RacingBuild};
use crate::index_lookup::{KeyCollector, KeysAhead, LookupExecution};
use crate::join_execution::disk::{DiskFile, DiskStore};
use crate::join_execution::memory::JoinMemory;
use crate::join_execution::timeline::{JoinTimeline, Lane};
use crate::join_execution::to_datafusion;
use crate::membership_filter::MembershipSource;

pub(super) type FilePartition = SpilledPartition<DiskFile>;

/// A join and the means to run it, shared by all its streams.
pub(super) struct JoinContext {
    pub task: Arc<TaskContext>,
    pub plan: Arc<JoinPlan>,
    pub store: Arc<DiskStore>,
    pub memory: Arc<JoinMemory>,
    pub tuning: SpillTuning,
    pub metrics: JoinMetrics,
    pub timeline: Arc<JoinTimeline>,
    pub facts: Arc<SubqueryFacts>,
    /// Passes the bounds of the build keys to the scans of the probe side, if they asked for them.
    pub bounds: Option<BoundsFilter>,
    /// Publishes the build keys to nodes of the probe side that drop rows by them, if there are any.
    pub membership: Option<MembershipSource>,
    pub build_keys: Vec<PhysicalExprRef>,
    /// Looks up the rows of the probe side with keys of the build side, if there is an index for it.
    pub lookup: Option<Arc<LookupExecution>>,
    /// Joins of the probe side whose build sides are read first.
    pub early: Vec<Box<dyn BuildAhead>>,
    /// Reads the probe side first, if there is an index for the build side.
    pub keys_ahead: Option<Arc<KeysAhead>>,
    /// When build sides race with their probe sides, if their roles may change.
    pub races: Option<Arc<RaceRules>>,
    /// The race of the build side that streams share.
    pub race: Option<Race>,
}

/// The build side of another join, which is read before the join's own.
pub(super) trait BuildAhead: Send + Sync {
    /// Reads it. Does nothing if the other join is done with it.
    fn read(&self) -> BoxFuture<'static, Result<()>>;
}

/// A build side that has been read: the part in memory and the part in files.
pub(super) struct ReadBuild {
    pub side: Arc<BuildSide>,
    pub spilled: Vec<Option<FilePartition>>,
    pub rows: usize,
}

/// What the input of the build side became.
pub(super) enum ReadInput {
    Build(Arc<ReadBuild>),
    /// Another join, as the sides have changed roles.
    Exchanged(Arc<dyn ExecutionPlan>),
}

/// A build side while its input is read.
pub(super) struct BuildReader {
    context: Arc<JoinContext>,
    build: HybridBuild<DiskStore>,
    bounds: Option<KeyBounds>,
    lookup: Option<(Arc<LookupExecution>, KeyCollector)>,
    phase: Span,
    batches: usize,
    /// Those without a key that could match are among them.
    rows: usize,
}

impl RacingBuild for BuildReader {
    fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let _timer = self.context.metrics.build_time.timer();
        let _working = self.phase.enter();
        self.batches += 1;
        self.rows += batch.num_rows();
        if let Some(bounds) = &mut self.bounds {
            bounds.update(&batch)?;
        }
        if let Some((lookup, keys)) = &mut self.lookup {
            lookup.add(keys, &batch)?;
        }
        self.build.push(batch).map_err(to_datafusion)
    }

    fn is_in_memory(&self) -> bool {
        self.build.is_in_memory()
    }

    fn into_rows(self) -> Option<(Vec<(RecordBatch, usize)>, Grant)> {
        self.build.into_rows()
    }

    fn memory(&self) -> &JoinMemory {
        &self.context.memory
    }
}

impl JoinContext {
    /// Reads the build side of the join itself. With a `race` the sides may change roles.
    pub async fn read_input(
        self: &Arc<Self>,
        input: SendableRecordBatchStream,
        memory: Arc<UnitMemory>,
        lane: &Lane,
        race: Option<&Race>,
    ) -> Result<ReadInput> {
        let phase = lane.phase("build");
        let bounds = self.bounds.as_ref().and_then(|_| KeyBounds::new(&self.build_keys, &input.schema()));
        let lookup = self.lookup.as_ref().map(|lookup| (Arc::clone(lookup), lookup.collect(memory.grant())));
        let build = self.build(Arc::clone(&memory), 0);
        let context = Arc::clone(self);
        let mut reader = BuildReader { context, build, bounds, lookup, phase: phase.clone(), batches: 0, rows: 0 };
        let (mut input, mut race) = (Some(input), race);
        while let Some(rows) = &mut input {
            let Some(batch) = rows.next().await else { break };
            reader.push(batch?)?;
            if let Some(due) = race.filter(|race| race.is_due(reader.rows)) {
                race = None;
                match due.run(reader, &mut input, &memory).await? {
                    Raced::Planned(planned) => reader = planned,
                    Raced::Exchanged(join) => {
                        self.metrics.side_swaps.add(1);
                        return Ok(ReadInput::Exchanged(join));
                    }
                }
            }
        }
        // The inputs of the join may need the memory and the files that were used to produce the build side.
        drop(input);
        let has_bounds = reader.bounds.is_some();
        let BuildReader { build, bounds, lookup, batches, rows, .. } = reader;
        self.metrics.build_input_batches.add(batches);
        self.metrics.build_input_rows.add(rows);
        let build = self.finish(build, 1, &phase).await?;
        phase.record("rows", build.rows);
        if let Some(membership) = &self.membership {
            let _timer = self.metrics.build_time.timer();
            phase.in_scope(|| membership.add(&build.side, memory.grant()));
        }
        if let Some((lookup, keys)) = lookup {
            phase.in_scope(|| lookup.decide(keys));
        }
        if let Some(filter) = self.bounds.as_ref().filter(|_| has_bounds) {
            filter.report(bounds.map_or(Ok(None), KeyBounds::finish)?)?;
        }
        Ok(ReadInput::Build(Arc::new(build)))
    }

    /// Reads a build partition back to join a pair of partitions. `depth` is the number of times that its rows have been
    /// partitioned.
    pub async fn read_partition(
        self: &Arc<Self>,
        mut input: SendableRecordBatchStream,
        memory: Arc<UnitMemory>,
        used_bits: u32,
        depth: usize,
        pair: &Span,
    ) -> Result<ReadBuild> {
        let mut build = self.build(memory, used_bits);
        while let Some(batch) = input.next().await {
            let batch = batch?;
            let _timer = self.metrics.deferred_time.timer();
            let _working = pair.enter();
            build.push(batch).map_err(to_datafusion)?;
        }
        let _timer = self.metrics.deferred_time.timer();
        self.finish(build, depth + 1, pair).await
    }

    fn build(&self, memory: Arc<UnitMemory>, used_bits: u32) -> HybridBuild<DiskStore> {
        let (store, facts) = (Arc::clone(&self.store), Arc::clone(&self.facts));
        HybridBuild::new(Arc::clone(&self.plan), store, memory, facts, self.tuning, used_bits)
    }

    /// Indexes the build side, or gives it to a GPU. A GPU may first have to finish the turns of other joins, so a blocking thread of the
    /// runtime does this work. If the future is dropped, that thread still finishes the build side, whose memory stays reserved till then.
    async fn finish(self: &Arc<Self>, build: HybridBuild<DiskStore>, depth: usize, span: &Span) -> Result<ReadBuild> {
        if self.plan.accelerator.is_none() || Handle::try_current().is_err() {
            return span.in_scope(|| self.finish_here(build, depth));
        }
        let (context, span) = (Arc::clone(self), span.clone());
        let finished = tokio::task::spawn_blocking(move || span.in_scope(|| context.finish_here(build, depth))).await;
        finished.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => exec_err!("The build side of a join was not finished, as the runtime has stopped: {error}"),
        })
    }

    fn finish_here(&self, build: HybridBuild<DiskStore>, depth: usize) -> Result<ReadBuild> {
        let _timer = self.metrics.build_time.timer();
        let built = build.finish().map_err(to_datafusion)?;
        if built.side.is_spilled() {
            self.metrics.hybrid_joins.add(1);
            self.metrics.recursion_depth.set_max(depth);
            self.metrics.spilled_partitions.add(built.spilled.iter().flatten().count());
        } else {
            self.metrics.in_memory_joins.add(1);
        }
        Ok(ReadBuild { side: Arc::new(built.side), spilled: built.spilled, rows: built.rows })
    }
}
