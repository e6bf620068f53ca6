//! Build sides of joins on the probe side that are read before the join's own.

use std::sync::{Arc, Weak};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::future::{self, BoxFuture, FutureExt};

use super::context::BuildAhead;
use super::exec::HybridJoinExec;
use super::execution::Execution;
use crate::join_execution::shared_build::SharedBuild;
use crate::membership_filter::MembershipSlot;

/// An execution of a join that was started for its build side alone. Dropped, it ends unless a stream has joined it.
pub(super) struct EarlyBuild {
    join: Arc<dyn ExecutionPlan>,
    /// The node keeps it until each stream has been started. To keep it here would keep memory that the join is done with.
    execution: Weak<Execution>,
}

impl EarlyBuild {
    /// Starts the joins of `probe` that publish their keys in `slots`.
    pub fn start(
        probe: &Arc<dyn ExecutionPlan>,
        slots: &[Arc<MembershipSlot>],
        task: &Arc<TaskContext>,
    ) -> Result<Vec<Box<dyn BuildAhead>>> {
        let mut started: Vec<Box<dyn BuildAhead>> = vec![];
        if slots.is_empty() {
            return Ok(started);
        }
        probe.apply(|node| {
            if let Some(join) = node.downcast_ref::<HybridJoinExec>()
                && join.membership.as_ref().is_some_and(|own| slots.iter().any(|slot| Arc::ptr_eq(own, slot)))
            {
                let execution = join.starting.ahead(join.probe_partitions(), || join.start(task, None))?;
                started.push(Box::new(Self { join: Arc::clone(node), execution: Arc::downgrade(&execution) }));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(started)
    }
}

impl BuildAhead for EarlyBuild {
    fn read(&self) -> BoxFuture<'static, Result<()>> {
        let execution = self.execution.upgrade();
        let build = execution.as_ref().and_then(|execution| execution.build.as_ref()).and_then(SharedBuild::ahead);
        match build {
            Some(build) => build.map(|build| build.map(drop).map_err(DataFusionError::Shared)).boxed(),
            None => future::ready(Ok(())).boxed(),
        }
    }
}

impl Drop for EarlyBuild {
    fn drop(&mut self) {
        if let Some(join) = self.join.downcast_ref::<HybridJoinExec>() {
            join.starting.forget(&self.execution);
        }
    }
}
