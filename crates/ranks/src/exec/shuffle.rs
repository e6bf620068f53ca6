//! The plan node that brings rows with equal keys to the same rank.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::{StreamExt, TryStreamExt};
use overspill_exchange::{ShuffleSpec, Side};
use parking_lot::Mutex;

use super::lanes::split;
use super::{Way, counted, lane_of, properties};
use crate::error::{cause_of, of_exchange};
use crate::job::{Exchanging, HeavyJoin, Lane, RankJob};

/// Brings rows with equal keys to the same rank, in as many lanes as it has partitions: lane `i` of a rank sends to lane `i` of the others,
/// and what arrives is split among the lanes of the rank.
#[derive(Debug)]
pub struct RankShuffleExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    lanes: usize,
    way: Way,
    /// The join that it is a side of, if its heavy keys are found out.
    heavy: Option<(HeavyJoin, Side)>,
    /// All lanes are opened at once, by whoever asks for one first.
    opening: Mutex<()>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RankShuffleExec {
    /// Shuffles the rows of an input.
    pub fn new(input: Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>, lanes: usize, way: Way) -> Self {
        let properties = properties(input.schema(), Partitioning::Hash(keys.clone(), lanes));
        Self {
            input,
            keys,
            lanes,
            way,
            heavy: None,
            opening: Mutex::default(),
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The same exchange as a side of a join whose heavy keys are found out.
    #[must_use]
    pub fn with_heavy_keys(mut self, heavy: Option<(HeavyJoin, Side)>) -> Self {
        self.heavy = heavy;
        self
    }

    /// The join that it is a side of, if its heavy keys are found out.
    pub fn heavy_keys(&self) -> Option<(HeavyJoin, Side)> {
        self.heavy
    }

    /// The keys.
    pub fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.keys
    }

    /// The number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// How rows travel.
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// What it counts.
    pub fn counters(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    /// Opens all lanes, and makes them [ready](RankJob::ready). Their rows have those of their keys that are not columns, too.
    ///
    /// # Errors
    /// If the input cannot be executed, or its keys cannot be hashed.
    pub fn open(&self, context: &Arc<TaskContext>) -> Result<()> {
        let job = RankJob::of(context)?;
        let lanes = (0..self.lanes).map(|lane| self.open_lane(lane, &job, context)).collect::<Result<Vec<_>>>()?;
        let lanes: Vec<Lane> = match <[_; 1]>::try_from(lanes) {
            Ok([rows]) => vec![rows.boxed()],
            Err(lanes) => split(lanes, &self.keys)?.into_iter().map(StreamExt::boxed).collect(),
        };
        job.make_ready(self.way.number, lanes);
        Ok(())
    }

    fn open_lane(&self, lane: usize, job: &Arc<RankJob>, context: &Arc<TaskContext>) -> Result<Exchanging> {
        let rows = lane_of(&self.input, lane, self.lanes, context)?;
        let (with_keys, keys) = self.with_keys()?;
        let spec = ShuffleSpec {
            number: job.open(self.way.number, lane),
            schema: Arc::clone(&with_keys.schema),
            keys,
            // Nulls are equal for what groups rows, and a null that matches nothing may be anywhere.
            null_equal: true,
            levels: self.way.levels,
            is_compressed: self.way.is_compressed,
            round_bytes: self.way.round_bytes,
            heavy: self.heavy.map(|(join, side)| (job.heavy_keys(&join, 2 * self.lanes), side)),
        };
        let rows = rows.map(move |batch| with_keys.add(batch?).map_err(|error| cause_of(&error)));
        let shuffle = spec.start(job.job(), rows).map_err(|error| of_exchange(&error))?;
        job.count(self.way.number, shuffle.metrics);
        let rows = Exchanging::new(Arc::clone(job), shuffle.driver, shuffle.output);
        Ok(match self.heavy {
            Some((join, Side::Left)) => rows.starting(Some(join.number)),
            Some((join, Side::Right)) => {
                job.starts_with(join.number, &rows);
                rows
            }
            None => rows,
        })
    }

    /// The rows with those of their keys that are not columns, and the place of each key in them.
    fn with_keys(&self) -> Result<(WithKeys, Vec<usize>)> {
        let schema = self.input.schema();
        let mut fields = schema.fields().to_vec();
        let (mut computed, mut places) = (vec![], vec![]);
        for (number, key) in self.keys.iter().enumerate() {
            if let Some(column) = key.downcast_ref::<Column>() {
                places.push(column.index());
                continue;
            }
            places.push(fields.len());
            let (data_type, nullable) = (key.data_type(&schema)?, key.nullable(&schema)?);
            fields.push(Arc::new(Field::new(format!("key {number}"), data_type, nullable)));
            computed.push(Arc::clone(key));
        }
        Ok((WithKeys { schema: Arc::new(Schema::new(fields)), computed }, places))
    }
}

/// Computes keys that are not columns, so that they travel with their rows.
#[derive(Clone)]
struct WithKeys {
    schema: SchemaRef,
    computed: Vec<Arc<dyn PhysicalExpr>>,
}

impl WithKeys {
    fn add(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if self.computed.is_empty() {
            return Ok(batch);
        }
        let rows = batch.num_rows();
        let keys = self.computed.iter().map(|key| key.evaluate(&batch)?.into_array(rows));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let columns = batch.columns().iter().cloned().chain(keys).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

impl DisplayAs for RankShuffleExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let keys = self.keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let Way { levels, is_compressed, .. } = self.way;
        match format {
            DisplayFormatType::TreeRender => write!(f, "keys={keys}"),
            _ => {
                write!(f, "RankShuffleExec: keys=[{keys}], levels={levels}, compressed={is_compressed}")?;
                if self.heavy.is_some() { write!(f, ", heavy keys stay") } else { Ok(()) }
            }
        }
    }
}

impl ExecutionPlan for RankShuffleExec {
    fn name(&self) -> &str {
        "RankShuffleExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut next = TreeNodeRecursion::Continue;
        for key in &self.keys {
            next = next.visit_sibling(|| f(key))?;
        }
        Ok(next)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => {
                Ok(Arc::new(Self::new(input, self.keys.clone(), self.lanes, self.way).with_heavy_keys(self.heavy)))
            }
            Err(children) => internal_err!("RankShuffleExec over {} inputs", children.len()),
        }
    }

    fn execute(&self, lane: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let job = RankJob::of(&context)?;
        {
            let _opening = self.opening.lock();
            if !job.is_open(self.way.number, lane) {
                self.open(&context)?;
            }
        }
        let Some(rows) = job.ready(self.way.number, lane) else {
            return internal_err!("lane {lane} of an exchange between ranks is read twice");
        };
        let (schema, columns) = (self.input.schema(), self.input.schema().fields().len());
        let without_keys = {
            let schema = Arc::clone(&schema);
            move |batch: RecordBatch| {
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let columns = batch.columns()[..columns].to_vec();
                Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?)
            }
        };
        let rows = rows.and_then(move |batch| std::future::ready(without_keys(batch)));
        Ok(counted(schema, rows, &self.metrics, lane))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
