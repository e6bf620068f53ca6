//! The plan node of the theta join.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::joins::utils::build_join_schema;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties,
};
use overspill_join::spec::Side;
use overspill_join::spill::SpillTuning;
use overspill_join::theta::ThetaSpec;

use super::condition::Condition;
use super::context::ThetaContext;
use super::execution::Execution;
use super::metrics::ThetaMetrics;
use super::stream::ThetaJoinStream;
use crate::config::OverspillConfig;
use crate::fused_aggregate::displayed;
use crate::hybrid_join::join_type;
use crate::join_execution::disk::DiskStore;
use crate::join_execution::equivalences;
use crate::join_execution::expressions::column_source;
use crate::join_execution::input::{ProbeInputs, open_plan};
use crate::join_execution::memory::JoinMemory;
use crate::join_execution::starting::StartingExecution;
use crate::join_execution::timeline::JoinTimeline;

/// A join without an equality of keys that finishes: on inequalities, on any other condition, or without a condition.
///
/// The left input is the build side, shared by all streams. The right input is the probe side; each stream reads one of its
/// partitions. If the build side does not fit in memory it moves to a file, which is read once for each chunk of the probe
/// side that fits.
///
/// DataFusion plans the join as a [`NestedLoopJoinExec`] or [`CrossJoinExec`]. This node keeps the former for distribution
/// and what can be pushed through it, but never executes it.
#[derive(Debug)]
pub struct ThetaJoinExec {
    plan: NestedLoopJoinExec,
    condition: Option<Condition>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    starting: StartingExecution<Execution>,
}

impl ThetaJoinExec {
    /// Whether the operator supports this join: both inputs must be bounded.
    pub fn supports(join: &NestedLoopJoinExec) -> bool {
        !join.left().boundedness().is_unbounded() && !join.right().boundedness().is_unbounded()
    }

    /// Replaces a planned nested loop join.
    ///
    /// # Errors
    /// Fails if the plan is inconsistent.
    pub fn try_new(join: &NestedLoopJoinExec) -> Result<Self> {
        let plan = NestedLoopJoinExecBuilder::from(join).build()?;
        let condition = plan.filter().map(|filter| {
            let (build, probe) = (plan.left().schema(), plan.right().schema());
            Condition::new(filter, &build, &probe)
        });
        let properties = plan.properties();
        let left_columns = plan.left().schema().fields().len();
        let equivalences = equivalences::of_join(
            properties.equivalence_properties(),
            *plan.join_type(),
            left_columns,
            plan.projection().as_deref(),
        )?;
        let properties = PlanProperties::clone(properties).with_eq_properties(equivalences);
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        Ok(Self {
            condition: condition.transpose()?,
            plan,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            starting: StartingExecution::default(),
        })
    }

    /// The join that this node replaces. It is never executed.
    pub fn planned(&self) -> &NestedLoopJoinExec {
        &self.plan
    }

    /// The build side.
    pub fn left(&self) -> &Arc<dyn ExecutionPlan> {
        self.plan.left()
    }

    /// The probe side.
    pub fn right(&self) -> &Arc<dyn ExecutionPlan> {
        self.plan.right()
    }

    /// The kind of join.
    pub fn join_type(&self) -> datafusion::common::JoinType {
        *self.plan.join_type()
    }

    fn partitions(&self) -> usize {
        self.right().output_partitioning().partition_count()
    }

    fn spec(&self, batch_size: usize) -> Result<ThetaSpec> {
        let plan = &self.plan;
        let (left, right) = (self.left().schema(), self.right().schema());
        let (_, columns) = build_join_schema(&left, &right, plan.join_type());
        let output_columns = match plan.projection() {
            Some(projection) => projection.iter().map(|index| column_source(&columns[*index])).collect(),
            None => columns.iter().map(column_source).collect(),
        };
        let search = |side| self.condition.as_ref().map_or(Ok(None), |condition| condition.search(side));
        Ok(ThetaSpec {
            join_type: join_type(*plan.join_type()),
            condition: self.condition.as_ref().map(Condition::whole),
            build_search: search(Side::Build)?,
            probe_search: search(Side::Probe)?,
            build_schema: left,
            probe_schema: right,
            output_schema: self.schema(),
            output_columns,
            batch_size,
        })
    }

    fn start(&self, task: &Arc<TaskContext>) -> Result<Execution> {
        let config = task.session_config().options().extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
        let metrics = ThetaMetrics::new(&self.metrics);
        let partitions = self.partitions();
        let spec = Arc::new(self.spec(task.session_config().batch_size())?);
        let columns = spec.build_schema.fields().len().max(spec.probe_schema.fields().len());
        let floor = SpillTuning::floor(columns);
        let memory = JoinMemory::new(
            task.memory_pool(),
            format!("ThetaJoin({})", self.on_words()),
            config.join_memory_limit,
            floor,
            partitions + 1,
            1,
            metrics.peak_mem_used.clone(),
        );
        let timeline = JoinTimeline::new(self.on_words());
        let (build, probe) = (&spec.build_schema, &spec.probe_schema);
        let store = DiskStore::new(build, probe, &metrics.disk, &config, task, Arc::clone(&timeline));
        let spills = config.spill && task.runtime_env().disk_manager.tmp_files_enabled();
        let inputs = ProbeInputs::new(
            spec.join_type,
            self.right().output_partitioning().partition_count(),
            open_plan(self.right(), Arc::clone(task)),
        );
        let context = ThetaContext { spec, store, memory, metrics, timeline, spills, floor, partitions };
        Ok(Execution::new(Arc::new(context), self.left().execute(0, Arc::clone(task))?, inputs))
    }

    fn on_words(&self) -> String {
        self.plan.filter().map_or_else(|| "every pair".to_owned(), |filter| filter.expression().to_string())
    }

    /// The inequalities used for searching, and the ways in which the join may run.
    fn details(&self) -> String {
        let strategies = "strategies=[in_memory, blocks]";
        match self.condition.as_ref().map(Condition::to_string).filter(|search| !search.is_empty()) {
            Some(search) => format!("search=[{search}], {strategies}"),
            None => strategies.to_owned(),
        }
    }

    /// The same node with another planned join; its metrics are kept.
    fn rewrap(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| match node.downcast_ref::<NestedLoopJoinExec>() {
            Some(join) if Self::supports(join) => Ok(Transformed::yes(Arc::new(Self::try_new(join)?) as _)),
            _ => Ok(Transformed::no(node)),
        })
        .map(|transformed| transformed.data)
    }
}

impl DisplayAs for ThetaJoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let planned = displayed(&self.plan, format);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let details = planned.strip_prefix("NestedLoopJoinExec").unwrap_or(&planned);
                write!(f, "ThetaJoinExec{details}, {}", self.details())
            }
            DisplayFormatType::TreeRender => {
                write!(f, "{planned}")?;
                writeln!(f, "{}", self.details())
            }
        }
    }
}

impl ExecutionPlan for ThetaJoinExec {
    fn name(&self) -> &str {
        "ThetaJoinExec"
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

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let [left, right] = &children[..] else {
            return internal_err!("ThetaJoinExec over {} inputs", children.len());
        };
        let plan = NestedLoopJoinExecBuilder::new(Arc::clone(left), Arc::clone(right), self.join_type())
            .with_filter(self.plan.filter().cloned())
            .with_projection_ref(self.plan.projection().clone())
            .build()?;
        Ok(Arc::new(Self::try_new(&plan)?))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::try_new(&self.plan)?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let build_partitions = self.left().output_partitioning().partition_count();
        if build_partitions != 1 {
            return internal_err!("ThetaJoinExec over {build_partitions} build partitions");
        }
        let execution = self.starting.get(partition, self.partitions(), || self.start(&context))?;
        let input = match &execution.inputs {
            Some(inputs) => {
                inputs.open(partition)?;
                None
            }
            None => Some(self.right().execute(partition, context)?),
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        Ok(ThetaJoinStream::new(execution, partition, input, baseline).into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.plan.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        // DataFusion knows the number of pairs of a cross join, but not of a nested loop join without a filter.
        if self.plan.filter().is_none() && self.join_type() == datafusion::common::JoinType::Inner {
            let cross = CrossJoinExec::new(Arc::clone(self.left()), Arc::clone(self.right()));
            let statistics = cross.statistics_from_inputs(inputs, args)?;
            return Ok(Arc::new(Arc::unwrap_or_clone(statistics).project(self.plan.projection().as_ref())));
        }
        self.plan.statistics_from_inputs(inputs, args)
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        self.plan.try_swapping_with_projection(projection)?.map(Self::rewrap).transpose()
    }
}
