//! One execution of a join: what its streams share.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, SpillFile};
use datafusion::physical_expr::PhysicalExprRef;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, Shared};
use overspill_join::hybrid::{BuildSide, HybridBuild, JoinPlan, SubqueryFacts};
use overspill_join::memory::UnitMemory;
use overspill_join::spill::{SpillTuning, SpilledPartition};
use parking_lot::Mutex;
use tracing::Span;

use super::disk::DiskStore;
use super::dynamic_filter::{BoundsFilter, KeyBounds};
use super::expressions::to_datafusion;
use super::input::ProbeInputs;
use super::memory::JoinMemory;
use super::metrics::JoinMetrics;
use super::stream::HybridProbe;
use super::timeline::{JoinTimeline, Lane, LaneName};

/// A partition in a file.
pub(super) type FilePartition = SpilledPartition<Arc<dyn SpillFile>>;

/// A join and the means to run it, shared by all its streams.
#[derive(Debug)]
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
    pub build_keys: Vec<PhysicalExprRef>,
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
        &self,
        input: SendableRecordBatchStream,
        memory: Arc<UnitMemory>,
        lane: &Lane,
    ) -> Result<ReadBuild> {
        let phase = lane.phase("build");
        let mut input = input;
        let mut bounds = self.bounds.as_ref().and_then(|_| KeyBounds::new(&self.build_keys, &input.schema()));
        let has_bounds = bounds.is_some();
        let mut build = self.build(memory, 0);
        while let Some(batch) = input.next().await {
            let batch = batch?;
            let _timer = self.metrics.build_time.timer();
            let _working = phase.enter();
            self.metrics.build_input_batches.add(1);
            self.metrics.build_input_rows.add(batch.num_rows());
            if let Some(bounds) = &mut bounds {
                bounds.update(&batch)?;
            }
            build.push(batch).map_err(to_datafusion)?;
        }
        // The inputs of the join may need the memory and the files that were used to produce the build side.
        drop(input);
        let build = phase.in_scope(|| self.finish(build, 1))?;
        phase.record("rows", build.rows);
        if let Some(filter) = self.bounds.as_ref().filter(|_| has_bounds) {
            filter.report(bounds.map_or(Ok(None), KeyBounds::finish)?)?;
        }
        Ok(build)
    }

    /// Reads a build partition back to join a pair of partitions. `depth` is the number of times that its rows have been
    /// partitioned.
    pub async fn read_partition(
        &self,
        input: SendableRecordBatchStream,
        memory: Arc<UnitMemory>,
        used_bits: u32,
        depth: usize,
        pair: &Span,
    ) -> Result<ReadBuild> {
        let mut input = input;
        let mut build = self.build(memory, used_bits);
        while let Some(batch) = input.next().await {
            let batch = batch?;
            let _timer = self.metrics.deferred_time.timer();
            let _working = pair.enter();
            build.push(batch).map_err(to_datafusion)?;
        }
        let _timer = self.metrics.deferred_time.timer();
        let _working = pair.enter();
        self.finish(build, depth + 1)
    }

    fn build(&self, memory: Arc<UnitMemory>, used_bits: u32) -> HybridBuild<DiskStore> {
        let (store, facts) = (Arc::clone(&self.store), Arc::clone(&self.facts));
        HybridBuild::new(Arc::clone(&self.plan), store, memory, facts, self.tuning, used_bits)
    }

    fn finish(&self, build: HybridBuild<DiskStore>, depth: usize) -> Result<ReadBuild> {
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

type SharedBuild = Shared<BoxFuture<'static, Result<Arc<ReadBuild>, Arc<DataFusionError>>>>;

/// One execution of a join.
pub(super) struct Execution {
    pub context: Arc<JoinContext>,
    collected: Option<Mutex<Collected>>,
    /// The probe inputs, if the streams share them.
    pub inputs: Option<Arc<ProbeInputs<HybridProbe>>>,
}

/// The one build side that all streams probe (`CollectLeft`).
struct Collected {
    /// Driven by any stream that polls it. `None` once every stream has asked for it, so that its memory is freed when the
    /// last stream is done with it.
    build: Option<SharedBuild>,
    missing: usize,
}

impl Execution {
    /// An execution with a separate build side for each stream.
    pub fn partitioned(context: Arc<JoinContext>) -> Self {
        Self { context, collected: None, inputs: None }
    }

    /// An execution with `partitions` streams that share the build side read from `input`.
    pub fn collected(
        context: Arc<JoinContext>,
        input: SendableRecordBatchStream,
        partitions: usize,
        inputs: Option<Arc<ProbeInputs<HybridProbe>>>,
    ) -> Self {
        let reader = Arc::clone(&context);
        let build = async move {
            let memory = reader.memory.unit();
            let lane = reader.timeline.lane(LaneName::BuildSide);
            reader.read_input(input, memory, &lane).await.map(Arc::new).map_err(Arc::new)
        };
        let collected = Collected { build: Some(build.boxed().shared()), missing: partitions };
        Self { context, collected: Some(Mutex::new(collected)), inputs }
    }

    /// The shared build side, if there is one. Each stream asks for it once.
    pub fn shared_build(&self) -> Option<SharedBuild> {
        let mut collected = self.collected.as_ref()?.lock();
        collected.missing = collected.missing.saturating_sub(1);
        if collected.missing == 0 { collected.build.take() } else { collected.build.clone() }
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").field("context", &self.context).finish_non_exhaustive()
    }
}
