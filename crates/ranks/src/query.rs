//! The plan node of a query on all ranks.

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion_proto::physical_plan::AsExecutionPlan;
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::future::{try_join, try_join_all};
use futures::{StreamExt, TryStreamExt, stream};
use overspill_distributed::settings::VERSION;
use overspill_exchange::Exchanged;
use overspill_exchange::transport::Receiver;

use crate::codec::RanksCodec;
use crate::error::{cause_of, of_exchange};
use crate::job::RankJob;
use crate::leader::Leader;
use crate::message::{FIRST, Order, Report};
use crate::metrics::with_ranks;
use crate::part::{close_exchanges, exchanged, in_job, open_right_sides, show_exchanged};

/// Runs a plan on all ranks. Its input is the first rank's part of it.
#[derive(Debug)]
pub struct RankQueryExec {
    leader: Arc<Leader>,
    here: Arc<dyn ExecutionPlan>,
    /// What each of the other ranks is to do.
    orders: Arc<[Order]>,
    /// The first rank's part with what all ranks have counted, once it has run to be analyzed.
    analyzed: Arc<OnceLock<Arc<dyn ExecutionPlan>>>,
}

impl RankQueryExec {
    /// Runs these parts of a plan, of each rank one. `is_analyzed` makes it show what the operators of all ranks have counted.
    ///
    /// # Errors
    /// A part has a node that cannot travel.
    pub fn try_new(
        leader: Arc<Leader>,
        parts: Vec<Arc<dyn ExecutionPlan>>,
        settings: &BTreeMap<String, String>,
        is_analyzed: bool,
    ) -> Result<Self> {
        let mut parts = parts.into_iter();
        let Some(here) = parts.next() else { return internal_err!("a query of no ranks") };
        let codec = RanksCodec::default();
        let orders = parts.map(|part| {
            let mut plan = Vec::new();
            PhysicalPlanNode::try_from_physical_plan(part, &codec)?.try_encode(&mut plan)?;
            Ok(Order { version: VERSION.to_owned(), plan, settings: settings.clone(), is_analyzed })
        });
        Ok(Self { leader, here, orders: orders.collect::<Result<_>>()?, analyzed: Arc::default() })
    }
}

/// A query that runs.
struct Running {
    job: Arc<RankJob>,
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    rows: Option<SendableRecordBatchStream>,
    reports: Vec<Receiver>,
    has_ended: bool,
    /// Where the plan goes with what all ranks have counted, if it is analyzed.
    analyzed: Option<Arc<OnceLock<Arc<dyn ExecutionPlan>>>>,
}

impl Running {
    /// Tells the other ranks what to do, and begins to do so here.
    async fn start(
        leader: Arc<Leader>,
        plan: Arc<dyn ExecutionPlan>,
        orders: Arc<[Order]>,
        analyzed: Arc<OnceLock<Arc<dyn ExecutionPlan>>>,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        let analyzed = orders.iter().any(|order| order.is_analyzed).then_some(analyzed);
        let job = Arc::new(RankJob::new(leader.begin()));
        let context = in_job(&context, context.session_config().clone(), &job);
        let reports = leader.others().map(|rank| Report::from(job.job(), rank)).collect();
        let mut running = Self { job, plan, context, rows: None, reports, has_ended: false, analyzed };
        let telling = leader.others().zip(orders.iter()).map(|(rank, order)| order.send(running.job.job(), rank));
        try_join_all(telling).await?;
        open_right_sides(&running.plan, &running.context)?;
        running.rows = Some(running.plan.execute(0, Arc::clone(&running.context))?);
        Ok(running)
    }

    /// The next rows.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(rows) = &mut self.rows {
            match rows.try_next().await {
                Ok(Some(batch)) => return Ok(Some(batch)),
                Ok(None) => self.rows = None,
                Err(error) => {
                    self.job.job().fail(&cause_of(&error));
                    return Err(error);
                }
            }
        }
        if !self.has_ended {
            self.end().await?;
            self.has_ended = true;
        }
        Ok(None)
    }

    /// Waits until all ranks have done their part.
    async fn end(&mut self) -> Result<()> {
        let sent = async {
            self.job.sent().await;
            close_exchanges(&self.plan, &self.job, &self.context)?;
            self.job.sent().await;
            match self.job.job().failure() {
                Some(failure) => Err(of_exchange(&failure)),
                None => Ok(()),
            }
        };
        let reports = try_join_all(self.reports.drain(..).map(Report::receive));
        let ((), reports) = try_join(sent, reports).await?;
        let mut sums = exchanged(&self.job);
        for (number, counters) in reports.iter().flat_map(|report| &report.exchanges) {
            let sum = sums.entry(*number).or_default();
            *sum = *sum + Exchanged::from(*counters);
        }
        show_exchanged(&self.plan, &sums, &self.job.heavy_keys_found())?;
        if let Some(analyzed) = &self.analyzed {
            let nodes = (FIRST + 1..).zip(reports.into_iter().map(|report| report.nodes));
            // A plan that runs again shows its first run.
            let _ = analyzed.set(with_ranks(&self.plan, nodes));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.job.cancel();
        }
    }
}

impl DisplayAs for RankQueryExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "ranks={}", self.leader.ranks()),
            _ => write!(f, "RankQueryExec: ranks={}", self.leader.ranks()),
        }
    }
}

impl ExecutionPlan for RankQueryExec {
    fn name(&self) -> &str {
        "RankQueryExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.here.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.analyzed.get().unwrap_or(&self.here)]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([here]) => {
                let (leader, orders) = (Arc::clone(&self.leader), Arc::clone(&self.orders));
                Ok(Arc::new(Self { leader, here, orders, analyzed: Arc::default() }))
            }
            Err(children) => internal_err!("RankQueryExec over {} inputs", children.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("partition {partition} of a query on all ranks, which has one");
        }
        let (leader, here, orders) = (Arc::clone(&self.leader), Arc::clone(&self.here), Arc::clone(&self.orders));
        let analyzed = Arc::clone(&self.analyzed);
        let rows = stream::once(Running::start(leader, here, orders, analyzed, context)).and_then(async |running| {
            Ok(stream::try_unfold(running, async |mut running| Ok(running.next().await?.map(|batch| (batch, running)))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows.try_flatten().boxed())))
    }
}
