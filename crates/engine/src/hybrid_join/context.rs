//! A join and the means to run it: what all its streams and their parts use.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExprRef;
use futures::StreamExt;
use futures::future::BoxFuture;
use overspill_join::hybrid::{BuildSide, HybridBuild, JoinPlan, SubqueryFacts};
use overspill_join::memory::UnitMemory;
use overspill_join::spill::{SpillTuning, SpilledPartition};
use tokio::runtime::Handle;
use tracing::Span;

use super::dynamic_filter::{BoundsFilter, KeyBounds};
use super::metrics::JoinMetrics;
use crate::index_lookup::{LookupExecution, ReadAhead};
use crate::join_execution::disk::{DiskFile, DiskStore};
use crate::join_execution::memory::JoinMemory;
use crate::join_execution::timeline::{JoinTimeline, Lane};
use crate::join_execution::to_datafusion;
use crate::membership_filter::MembershipSource;

pub(super) type FilePartition = SpilledPartition<DiskFile>;

/// A join and the means to run it, shared by all its streams.
pub(super) struct JoinContext {
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
    pub read_ahead: Option<Arc<ReadAhead>>,
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

impl JoinContext {
    /// Reads the build side of the join itself.
    pub async fn read_input(
        self: &Arc<Self>,
        mut input: SendableRecordBatchStream,
        memory: Arc<UnitMemory>,
        lane: &Lane,
    ) -> Result<ReadBuild> {
        let phase = lane.phase("build");
        let mut bounds = self.bounds.as_ref().and_then(|_| KeyBounds::new(&self.build_keys, &input.schema()));
        let has_bounds = bounds.is_some();
        let mut lookup = self.lookup.as_ref().map(|lookup| (lookup, lookup.collect(memory.grant())));
        let mut build = self.build(Arc::clone(&memory), 0);
        while let Some(batch) = input.next().await {
            let batch = batch?;
            let _timer = self.metrics.build_time.timer();
            let _working = phase.enter();
            self.metrics.build_input_batches.add(1);
            self.metrics.build_input_rows.add(batch.num_rows());
            if let Some(bounds) = &mut bounds {
                bounds.update(&batch)?;
            }
            if let Some((lookup, keys)) = &mut lookup {
                lookup.add(keys, &batch)?;
            }
            build.push(batch).map_err(to_datafusion)?;
        }
        // The inputs of the join may need the memory and the files that were used to produce the build side.
        drop(input);
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
        Ok(build)
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
