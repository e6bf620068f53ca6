//! Starts a join: describes it, opens its account of memory and its spill files, and chooses how it runs.

use std::sync::Arc;

use datafusion::common::{NullEquality, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, lit};
use datafusion::physical_plan::joins::PartitionMode;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use overspill_join::hybrid::{Accelerator, JoinPlan, SubqueryFacts};
use overspill_join::selection::Aggregate;
use overspill_join::spec::{JoinSpec, KeyExpressions, ResidualFilter};
use overspill_join::spill::SpillTuning;

use super::context::JoinContext;
use super::dynamic_filter::{BoundsFilter, KeyBounds, is_read};
use super::early_build::EarlyBuild;
use super::exec::{HybridJoinExec, join_type, key_codec};
use super::execution::Execution;
use super::metrics::JoinMetrics;
use super::side_swap::{Exchanged, Race, RaceRules};
use crate::config::{BuildSide, OverspillConfig};
use crate::device::share_of;
use crate::index_lookup::{IndexLookupExec, KeysAhead};
use crate::join_execution::disk::DiskStore;
use crate::join_execution::expressions::{Keys, Residual};
use crate::join_execution::input::{OpenProbe, ProbeInputs, open_plan, open_plan_late};
use crate::join_execution::memory::JoinMemory;
use crate::join_execution::read_ahead::ReadAhead;
use crate::join_execution::timeline::JoinTimeline;
use crate::runtime::OverspillRuntime;

impl HybridJoinExec {
    fn spec(&self) -> Result<JoinSpec> {
        let plan = &self.plan;
        let (build_keys, probe_keys) = self.on().iter().cloned().unzip();
        let build_keys: Arc<dyn KeyExpressions> = Arc::new(Keys(build_keys));
        let probe_keys: Arc<dyn KeyExpressions> = Arc::new(Keys(probe_keys));
        let filter = plan.filter().cloned().map(|filter| Arc::new(Residual::new(filter)) as Arc<dyn ResidualFilter>);
        Ok(JoinSpec {
            join_type: join_type(*plan.join_type()),
            null_aware: self.is_null_aware(),
            codec: key_codec(plan)?,
            build_keys,
            probe_keys,
            filter,
            build_schema: self.left().schema(),
            probe_schema: self.right().schema(),
            output_schema: self.schema(),
            output_columns: self.output_columns(),
        })
    }

    /// The filter that passes the bounds of the build keys to the scans of the probe side, if one of them reads it.
    fn bounds(&self, spec: &JoinSpec) -> Result<Option<BoundsFilter>> {
        let (build_keys, probe_keys): (Vec<_>, Vec<_>) = self.on().iter().cloned().unzip();
        let produced = self.plan.dynamic_expressions_produced();
        let filter = produced.into_iter().find_map(|filter| Arc::downcast::<DynamicFilterPhysicalExpr>(filter).ok());
        let bounded = filter.filter(|_| KeyBounds::new(&build_keys, &spec.build_schema).is_some());
        let Some(filter) = bounded else { return Ok(None) };
        // The bounds of a previous execution do not hold for this one.
        filter.update(lit(true))?;
        if !is_read(&filter, self.right())? {
            // A consumer may wait for it all the same.
            filter.mark_complete();
            return Ok(None);
        }
        let keeps_null = spec.null_aware || self.plan.null_equality() == NullEquality::NullEqualsNull;
        let reports = if self.shares_build() { 1 } else { self.probe_partitions() };
        Ok(Some(BoundsFilter::new(filter, probe_keys, keeps_null, reports)))
    }

    /// What opens a partition of the probe side.
    pub(super) fn probe(&self, context: &JoinContext, task: &Arc<TaskContext>) -> OpenProbe {
        let task = Arc::clone(task);
        if let Some(lookup) = context.lookup.clone() {
            return Box::new(move |partition| Ok(lookup.open(partition, &task)));
        }
        if let Some(ahead) = context.keys_ahead.clone() {
            return Box::new(move |partition| Ok(ahead.open(partition)));
        }
        if let Some(race) = &context.race {
            let probe = Arc::clone(&race.probe);
            return Box::new(move |partition| probe.open_early(partition));
        }
        self.open_probe(context.membership.is_some(), task)
    }

    fn open_probe(&self, is_restricted: bool, task: Arc<TaskContext>) -> OpenProbe {
        // Nodes of the probe side look for the keys of the build side when they are executed.
        if is_restricted { open_plan_late(self.right(), task) } else { open_plan(self.right(), task) }
    }

    /// When build sides race with their probe sides; `None` if the sides keep their roles.
    fn races(&self, config: &OverspillConfig) -> Result<Option<Arc<RaceRules>>> {
        use Partitioning::{RoundRobinBatch, UnknownPartitioning};
        let is_shared = self.shares_build();
        // The streams of a shared build side return the rows of their probe partitions, which nodes above may rely on.
        let may_move = !is_shared
            || self.probe_partitions() == 1
            || matches!(self.properties().output_partitioning(), RoundRobinBatch(_) | UnknownPartitioning(_));
        if self.is_null_aware() || self.room.is_some() || !may_move {
            return Ok(None);
        }
        let (streams, parts) = if is_shared { (self.probe_partitions(), 1) } else { (1, self.probe_partitions()) };
        let exchanged = || Exchanged::new(&self.plan, streams, parts, &self.metrics);
        let rules = match (config.build_side.0, self.estimate()) {
            (Some(BuildSide::Exchanged), _) => RaceRules::forced(exchanged()?),
            (None, Some(estimate)) => RaceRules::unexpected(exchanged()?, estimate, parts),
            (Some(BuildSide::Planned), _) | (None, None) => return Ok(None),
        };
        Ok(Some(Arc::new(rules)))
    }

    /// The race of a build side with a partition of the probe side that no other build side reads.
    pub(super) fn race(&self, execution: &Execution, partition: usize, task: &Arc<TaskContext>) -> Option<Race> {
        let rules = execution.context.races.as_ref().filter(|_| !self.shares_build())?;
        let open = self.probe(&execution.context, task);
        let probe = ReadAhead::new(Box::new(move |_| open(partition)), self.right().schema(), 1);
        Some(Race { rules: Arc::clone(rules), probe: Arc::new(probe) })
    }

    fn shares_build(&self) -> bool {
        self.partition_mode() == PartitionMode::CollectLeft
    }

    /// Starts an execution. With `aggregates`, the output rows are needed only for these, and a GPU may aggregate the pairs.
    pub(super) fn start(&self, task: &Arc<TaskContext>, aggregates: Option<&[Aggregate]>) -> Result<Execution> {
        self.check_partitions()?;
        let config = task.session_config().options().extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
        let metrics = JoinMetrics::new(&self.metrics);
        let (partitions, is_shared) = (self.probe_partitions(), self.shares_build());
        // Streams with a build side each build their tables at the same time, each on its own thread.
        let threads = if is_shared { partitions } else { 1 };
        let spec = Arc::new(self.spec()?);
        let runtime = OverspillRuntime::of(task.session_config());
        let accelerator = self.device_request(&config, &runtime, share_of(task.session_config()), aggregates)?;
        let gpu = accelerator.as_ref().map(|request| Arc::clone(&request.gpu));
        let plan = Arc::new(JoinPlan {
            spec: Arc::clone(&spec),
            table_choice: config.hash_table.0.unwrap_or_default(),
            build_threads: threads,
            probe_regions: runtime.machine().probe_regions(config.strategy.0, partitions),
            accelerator: accelerator.map(|request| Arc::new(request) as Arc<dyn Accelerator>),
            batch_size: task.session_config().batch_size(),
        });
        let tuning = SpillTuning {
            enabled: config.spill && task.runtime_env().disk_manager.tmp_files_enabled(),
            max_fanout: config.max_fanout.clamp(2, 256).next_power_of_two(),
            max_depth: config.max_recursion_depth,
            probers: threads,
        };
        let columns = spec.build_schema.fields().len().max(spec.probe_schema.fields().len());
        let memory = JoinMemory::new(
            task.memory_pool(),
            format!("HybridJoin({})", self.on_words()),
            self.room.and_then(|room| room.0).unwrap_or(config.join_memory_limit),
            SpillTuning::floor(columns),
            partitions + usize::from(is_shared),
            if is_shared { 1 } else { partitions },
            metrics.peak_mem_used.clone(),
        );
        let bounds = self.bounds(&spec)?;
        let timeline = JoinTimeline::new(self.on_words());
        let (build, probe, lanes) = (&spec.build_schema, &spec.probe_schema, Arc::clone(&timeline));
        let store = Arc::new(DiskStore::new(build, probe, &metrics.disk, &config, task, lanes));
        let facts = Arc::new(SubqueryFacts::default());
        let lookups = |side: &Arc<dyn ExecutionPlan>| {
            let lookup = side.downcast_ref::<IndexLookupExec>().filter(|_| is_shared)?;
            lookup.start(config.indexes.0, gpu.clone()).map(Arc::new)
        };
        let lookup = lookups(self.right());
        let builds = if is_shared { 1 } else { partitions };
        let membership = self.membership.as_ref().map(|slot| slot.begin(&spec, builds));
        // Scans of the probe side that want to know the bounds of the build side must not be read before it.
        let may_read_ahead = bounds.is_none() && membership.is_none();
        let ahead = lookups(self.left()).filter(|_| may_read_ahead).map(|lookup| {
            let open = open_plan(self.right(), Arc::clone(task));
            Arc::new(KeysAhead::new(lookup, open, self.right().schema(), partitions))
        });
        let may_race = plan.accelerator.is_none() && aggregates.is_none() && lookup.is_none() && ahead.is_none();
        let races = if may_race { self.races(&config)? } else { None };
        let race = races.as_ref().filter(|_| is_shared).map(|rules| {
            let open = self.open_probe(membership.is_some(), Arc::clone(task));
            let probe = Arc::new(ReadAhead::new(open, self.right().schema(), partitions));
            Race { rules: Arc::clone(rules), probe }
        });
        let early = EarlyBuild::start(self.right(), &self.early, task)?;
        let build_keys = self.on().iter().map(|(build, _)| Arc::clone(build)).collect();
        let context = JoinContext {
            task: Arc::clone(task),
            plan,
            store,
            memory,
            tuning,
            metrics,
            timeline,
            facts,
            bounds,
            membership,
            build_keys,
            lookup,
            early,
            keys_ahead: ahead,
            races,
            race,
        };
        let context = Arc::new(context);
        if !is_shared {
            return Ok(Execution { context, build: None, inputs: None });
        }
        let inputs = ProbeInputs::new(spec.join_type, partitions, self.probe(&context, task));
        let build = match &context.keys_ahead {
            Some(ahead) => ahead.lookup().open(0, task),
            None if context.early.is_empty() => self.left().execute(0, Arc::clone(task))?,
            // Its nodes may read as soon as they are executed, and are to find the keys of the early builds.
            None => open_plan_late(self.left(), Arc::clone(task))(0)?,
        };
        Ok(Execution::collected(context, build, partitions, inputs))
    }
}
