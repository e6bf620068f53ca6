//! The plan node of the join.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{JoinSide, NullEquality, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties,
};
use overspill_join::JoinType;
use overspill_join::hybrid::{AggregatingStream, AggregatingStreams, PairAggregation};
use overspill_join::keys::KeyCodec;
use overspill_join::selection::Aggregate;
use overspill_join::spec::{ColumnSource, PairForm};

use super::estimate::EstimatedRows;
use super::execution::Execution;
use super::filter_pushdown;
use super::schema::{output_columns, with_nullable_mark};
use super::side_swap::Room;
use super::stream::{HybridJoinStream, Inputs};
use crate::fused_aggregate::displayed;
use crate::index_lookup::{IndexLookupExec, index_lookup};
use crate::join_execution::equivalences;
use crate::join_execution::expressions::to_datafusion;
use crate::join_execution::starting::StartingExecution;
use crate::membership_filter::MembershipSlot;

/// An equi-join that finishes: a hybrid hash join that moves its state to disk when its memory is spent.
///
/// The left input is the build side, the right input the probe side. DataFusion plans the join as a [`HashJoinExec`]. This
/// node keeps it for statistics, distribution and what can be pushed through it, but never executes it. Unlike the
/// `HashJoinExec`, this node does not keep the order of the probe side, and declares no order: rows that match a build
/// partition in a file come last.
///
/// In mode [`PartitionMode::Partitioned`] each output partition joins the two input partitions with the same number. In mode
/// [`PartitionMode::CollectLeft`] all output partitions share one build side.
#[derive(Debug)]
pub struct HybridJoinExec {
    pub(super) plan: HashJoinExec,
    /// Whether the mark of a mark join is null where SQL's `IN` is null. A [`HashJoinExec`] has no such marks: its flag is
    /// for `NOT IN` alone.
    pub(super) null_aware_mark: bool,
    /// Where an execution publishes the keys of its build side, if nodes of the probe side drop rows by them.
    pub(super) membership: Option<Arc<MembershipSlot>>,
    properties: Arc<PlanProperties>,
    pub(super) metrics: ExecutionPlanMetricsSet,
    /// Where joins of the probe side publish their keys that nodes of the build side drop rows by. Their build sides are read first.
    pub(super) early: Vec<Arc<MembershipSlot>>,
    estimate: Option<EstimatedRows>,
    /// The memory of a join that runs in place of another one. Its sides keep their roles.
    pub(super) room: Option<Room>,
    pub(super) starting: StartingExecution<Execution>,
}

impl HybridJoinExec {
    /// Whether the operator supports this join; if not, DataFusion's operator runs it.
    ///
    /// It does not support unbounded inputs, keys of different types, and key types that Arrow's row format does not support.
    pub fn supports(join: &HashJoinExec) -> bool {
        let is_bounded = !join.left().boundedness().is_unbounded() && !join.right().boundedness().is_unbounded();
        is_bounded && key_types(join).is_some_and(|types| KeyCodec::supports(&types))
    }

    /// Replaces a planned hash join.
    ///
    /// # Errors
    /// Fails if the plan is inconsistent.
    pub fn try_new(join: &HashJoinExec) -> Result<Self> {
        Self::try_new_with(join, false)
    }

    /// Replaces a planned mark join by one with the mark of SQL's `IN`: true for a row that has a match; else null, if the
    /// other side has rows and the row's key or a key of the other side is null; else false.
    ///
    /// # Errors
    /// Fails if the join is not a mark join in mode [`PartitionMode::CollectLeft`] with one key and without a filter.
    pub fn try_new_null_aware_mark(join: &HashJoinExec) -> Result<Self> {
        Self::try_new_with(join, true)
    }

    fn try_new_with(join: &HashJoinExec, null_aware_mark: bool) -> Result<Self> {
        use datafusion::common::JoinType::{LeftMark, RightMark};
        let is_mark =
            matches!(join.join_type(), LeftMark | RightMark) && join.on().len() == 1 && join.filter().is_none();
        if null_aware_mark && !(is_mark && *join.partition_mode() == PartitionMode::CollectLeft) {
            return internal_err!("a null-aware mark for a join that is not a mark join of one collected key");
        }
        let plan = join.builder().build()?;
        let properties = plan.properties();
        let left_columns = plan.left().schema().fields().len();
        let mut equivalences = equivalences::of_join(
            properties.equivalence_properties(),
            *plan.join_type(),
            left_columns,
            plan.projection.as_deref(),
        )?;
        if null_aware_mark {
            equivalences = equivalences.with_new_schema(with_nullable_mark(&plan))?;
        }
        let properties = PlanProperties::clone(properties).with_eq_properties(equivalences);
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        Ok(Self {
            plan,
            null_aware_mark,
            membership: None,
            early: vec![],
            estimate: None,
            room: None,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            starting: StartingExecution::default(),
        })
    }

    /// The same join with the rows that are estimated of it.
    #[must_use]
    pub fn with_estimate(self, estimate: Option<EstimatedRows>) -> Self {
        Self { estimate, ..self }
    }

    /// The same join in place of another one. It counts into `metrics`, those of the other join. It holds at most the bytes of `room`.
    pub(super) fn in_place_of(self, metrics: ExecutionPlanMetricsSet, room: Room) -> Self {
        Self { metrics, room: Some(room), ..self }
    }

    /// The rows that are estimated of it, if any are.
    pub fn estimate(&self) -> Option<EstimatedRows> {
        self.estimate
    }

    /// The join that this node replaces. It is never executed.
    pub fn planned(&self) -> &HashJoinExec {
        &self.plan
    }

    /// Whether it was made by [`try_new_null_aware_mark`](Self::try_new_null_aware_mark).
    pub fn has_null_aware_mark(&self) -> bool {
        self.null_aware_mark
    }

    /// The build side.
    pub fn left(&self) -> &Arc<dyn ExecutionPlan> {
        self.plan.left()
    }

    /// The probe side.
    pub fn right(&self) -> &Arc<dyn ExecutionPlan> {
        self.plan.right()
    }

    /// The keys: pairs of an expression over the left and one over the right input.
    pub fn on(&self) -> &[(PhysicalExprRef, PhysicalExprRef)] {
        self.plan.on()
    }

    /// The kind of join.
    pub fn join_type(&self) -> datafusion::common::JoinType {
        *self.plan.join_type()
    }

    /// Whether each partition has a build side of its own.
    pub fn partition_mode(&self) -> PartitionMode {
        *self.plan.partition_mode()
    }

    /// Whether a null among the keys of the inner side makes a comparison with it unknown, as `NOT IN` has it.
    pub(crate) fn is_null_aware(&self) -> bool {
        self.plan.null_aware || self.null_aware_mark
    }

    /// The columns that the condition has as equal: one of the build side, one of the probe side. None for a join that looks at all rows of a
    /// side to tell a null from no match.
    pub(crate) fn equal_columns(&self) -> Vec<(usize, usize)> {
        if self.is_null_aware() { vec![] } else { filter_pushdown::equal_columns(&self.plan) }
    }

    /// Whether a probe row without a partner changes nothing.
    pub(crate) fn drops_unmatched_probe_rows(&self) -> bool {
        !self.is_null_aware() && !join_type(self.join_type()).keeps_unmatched_probe()
    }

    /// Whether a build row without a partner changes the output.
    pub(crate) fn keeps_unmatched_build_rows(&self) -> bool {
        self.is_null_aware() || join_type(self.join_type()).keeps_unmatched_build()
    }

    /// Where the join publishes the keys of its build side, if a node drops rows by them.
    pub(crate) fn membership(&self) -> Option<&Arc<MembershipSlot>> {
        self.membership.as_ref()
    }

    /// Where joins of the probe side publish their keys whose build sides are read before this join's.
    pub(crate) fn early_builds(&self) -> &[Arc<MembershipSlot>] {
        &self.early
    }

    /// The same join with other inputs: nodes of the build side drop rows by keys that joins of the probe side publish in these
    /// places.
    pub(crate) fn with_early_builds(
        &self,
        early: Vec<Arc<MembershipSlot>>,
        build: Arc<dyn ExecutionPlan>,
        probe: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let join = self.with_planned(&self.planned_over(vec![build, probe])?)?;
        Ok(Arc::new(Self { early, ..join }))
    }

    /// The same join with another probe side, whose nodes drop rows by the keys that the join publishes.
    pub(crate) fn with_membership(
        &self,
        membership: Arc<MembershipSlot>,
        probe: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.planned_over(vec![Arc::clone(self.left()), probe])?;
        Ok(Arc::new(Self { membership: Some(membership), ..self.with_planned(&plan)? }))
    }

    fn planned_over(&self, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<HashJoinExec> {
        self.plan.builder().recompute_properties().with_new_children(children)?.build()
    }

    /// The same node with another planned join.
    fn with_planned(&self, plan: &HashJoinExec) -> Result<Self> {
        let (membership, early) = (self.membership.clone(), self.early.clone());
        Ok(Self { membership, early, estimate: self.estimate, ..Self::try_new_with(plan, self.null_aware_mark)? })
    }

    /// The lookup that may take the place of a side's scan, and which side.
    pub(crate) fn index_lookup(&self, index_dir: &str) -> Option<(JoinSide, IndexLookupExec)> {
        index_lookup(&self.plan, self.is_null_aware(), index_dir)
    }

    /// The same node with another planned join, which may be below a projection. Its metrics are kept.
    fn rewrap(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            // Rebuilt, as the mark that it reads may now be null.
            let input = self.rewrap(Arc::clone(projection.input()))?;
            return Ok(Arc::new(ProjectionExec::try_new(projection.expr().iter().cloned(), input)?));
        }
        match plan.downcast_ref::<HashJoinExec>() {
            Some(join) if Self::supports(join) => Ok(Arc::new(self.with_planned(join)?)),
            _ => Ok(plan),
        }
    }

    pub(super) fn probe_partitions(&self) -> usize {
        self.right().output_partitioning().partition_count()
    }

    /// Where each column of the output comes from.
    pub(crate) fn output_columns(&self) -> Vec<ColumnSource> {
        output_columns(&self.plan)
    }

    /// Whether a GPU join could aggregate the pairs that it finds, because the keys alone decide which pairs are in the
    /// output.
    pub(crate) fn may_aggregate_pairs(&self) -> bool {
        let plan = &self.plan;
        let form = |codec: KeyCodec| PairForm::of(join_type(*plan.join_type()), plan.filter().is_some(), &codec);
        plan.fetch().is_none() && key_codec(plan).is_ok_and(|codec| form(codec) == PairForm::Columns)
    }

    /// Executes all partitions, if their output rows are needed only for these aggregates. Their columns are columns of the output.
    /// Pairs that kernels have aggregated are not in the output; the second value of each stream holds aggregates once the stream
    /// has ended, of its pairs and of others: streams that share a build side leave rows to one another, so poll all of them.
    pub(crate) fn execute_aggregating(
        &self,
        context: &Arc<TaskContext>,
        aggregates: &[Aggregate],
    ) -> Result<Vec<(SendableRecordBatchStream, Arc<PairAggregation>)>> {
        let execution = Arc::new(self.start(context, Some(aggregates))?);
        let together = Arc::<AggregatingStreams>::default();
        let streams = (0..self.probe_partitions()).map(|partition| {
            let aggregation = Arc::new(PairAggregation::new(aggregates));
            let among = if execution.build.is_some() { Arc::clone(&together) } else { Arc::default() };
            let aggregating = among.add(Arc::clone(&aggregation));
            Ok((self.open(Arc::clone(&execution), partition, Arc::clone(context), Some(aggregating))?, aggregation))
        });
        // All are counted before one is polled.
        streams.collect()
    }

    pub(super) fn check_partitions(&self) -> Result<()> {
        let (left, right) = (self.left().output_partitioning().partition_count(), self.probe_partitions());
        let mode = self.partition_mode();
        match mode {
            PartitionMode::Partitioned if left != right => {
                internal_err!("HybridJoinExec over {left} build and {right} probe partitions")
            }
            PartitionMode::CollectLeft if left != 1 => {
                internal_err!("HybridJoinExec that collects its build side from {left} partitions")
            }
            PartitionMode::Auto => internal_err!("HybridJoinExec without a partition mode"),
            PartitionMode::Partitioned | PartitionMode::CollectLeft => Ok(()),
        }
    }

    /// Opens a stream of an execution.
    fn open(
        &self,
        execution: Arc<Execution>,
        partition: usize,
        context: Arc<TaskContext>,
        aggregating: Option<AggregatingStream>,
    ) -> Result<SendableRecordBatchStream> {
        let build = match self.partition_mode() {
            PartitionMode::Partitioned => Some(self.left().execute(partition, Arc::clone(&context))?),
            _ => None,
        };
        let race = self.race(&execution, partition, &context);
        let probe = match (&execution.inputs, &race) {
            (Some(inputs), _) => {
                inputs.open(partition)?;
                None
            }
            (None, Some(race)) => Some(race.probe.open_early(0)?),
            (None, None) => Some(self.probe(&execution.context, &context)(partition)?),
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let inputs = Inputs { build, probe, race };
        Ok(HybridJoinStream::new(execution, partition, inputs, self.fetch(), aggregating, baseline).into_stream())
    }

    /// What EXPLAIN shows of the estimated rows, after an execution beside the true ones.
    fn estimate_words(&self) -> Option<String> {
        let metrics = self.metrics.clone_inner();
        let count = |name| metrics.sum_by_name(name).map(|count| count.as_usize());
        // Rows of sides that have changed roles are counted by their new ones.
        let of_side = |name| count(name).filter(|_| count("side_swaps").unwrap_or(0) == 0);
        let truth = [of_side("build_input_rows"), of_side("input_rows"), metrics.output_rows()];
        Some(self.estimate?.words(truth).to_string())
    }

    pub(crate) fn on_words(&self) -> String {
        let on: Vec<_> = self.on().iter().map(|(left, right)| format!("{left} = {right}")).collect();
        on.join(" AND ")
    }
}

/// How the keys of a join that [`HybridJoinExec::supports`] are packed.
pub(crate) fn key_codec(join: &HashJoinExec) -> Result<KeyCodec> {
    let Some(types) = key_types(join) else {
        return internal_err!("HybridJoinExec over keys that it does not support");
    };
    KeyCodec::try_new(&types, join.null_equality() == NullEquality::NullEqualsNull).map_err(to_datafusion)
}

/// The types of the keys, if both sides agree on them.
fn key_types(join: &HashJoinExec) -> Option<Vec<arrow::datatypes::DataType>> {
    let (left, right) = (join.left().schema(), join.right().schema());
    join.on()
        .iter()
        .map(|(build, probe)| {
            let (build, probe) = (build.data_type(&left).ok()?, probe.data_type(&right).ok()?);
            build.equals_datatype(&probe).then_some(build)
        })
        .collect()
}

pub(crate) fn join_type(join_type: datafusion::common::JoinType) -> JoinType {
    use datafusion::common::JoinType as Host;
    match join_type {
        Host::Inner => JoinType::Inner,
        Host::Left => JoinType::Left,
        Host::Right => JoinType::Right,
        Host::Full => JoinType::Full,
        Host::LeftSemi => JoinType::LeftSemi,
        Host::LeftAnti => JoinType::LeftAnti,
        Host::LeftMark => JoinType::LeftMark,
        Host::RightSemi => JoinType::RightSemi,
        Host::RightAnti => JoinType::RightAnti,
        Host::RightMark => JoinType::RightMark,
    }
}

/// The strategies that a join may use at run time, as EXPLAIN shows them.
const STRATEGIES: &str = "strategies=[in_memory, hybrid, passes]";

impl DisplayAs for HybridJoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let planned = displayed(&self.plan, format);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let details = planned.strip_prefix("HashJoinExec").unwrap_or(&planned);
                let null_aware = if self.null_aware_mark { ", null_aware" } else { "" };
                write!(f, "HybridJoinExec{details}{null_aware}, {STRATEGIES}")?;
                self.estimate_words().map_or(Ok(()), |words| write!(f, ", {words}"))
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "{planned}")?;
                if self.null_aware_mark {
                    writeln!(f, "null_aware")?;
                }
                writeln!(f, "{STRATEGIES}")?;
                self.estimate_words().map_or(Ok(()), |words| writeln!(f, "{words}"))
            }
        }
    }
}

impl ExecutionPlan for HybridJoinExec {
    fn name(&self) -> &str {
        "HybridJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.plan.input_distribution_requirements()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.plan.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.plan.dynamic_expressions_produced()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.with_planned(&self.planned_over(children)?)?))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.with_planned(&self.plan)?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let execution = self.starting.get(partition, self.probe_partitions(), || self.start(&context, None))?;
        self.open(execution, partition, context, None)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.plan.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.plan.statistics_from_inputs(inputs, args)
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        self.plan.try_swapping_with_projection(projection)?.map(|plan| self.rewrap(plan)).transpose()
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        // Of the build keys.
        let mut own = self.plan.gather_filters_for_pushdown(phase, vec![], config)?.self_filters();
        // They would remove probe rows that have no match but still matter: for nulls, and for whether there are any rows.
        if self.null_aware_mark {
            own.clear();
        }
        filter_pushdown::describe(&self.plan, &parent_filters, own)
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        child_pushdown_result: ChildPushdownResult,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut result = self.plan.handle_child_pushdown_result(phase, child_pushdown_result, config)?;
        result.updated_node = result.updated_node.map(|plan| self.rewrap(plan)).transpose()?;
        Ok(result)
    }

    fn supports_limit_pushdown(&self) -> bool {
        self.plan.supports_limit_pushdown()
    }

    fn fetch(&self) -> Option<usize> {
        self.plan.fetch()
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        self.plan.with_fetch(limit).and_then(|plan| self.rewrap(plan).ok())
    }
}
