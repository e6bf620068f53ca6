//! The side of the user: plans queries for the cluster, and reads their rows.

mod analyze;
mod job;
mod planner;
mod query;
mod subqueries;

use std::sync::Arc;

use ballista_core::config::{BALLISTA_ADAPTIVE_PLANNER_ENABLED, BallistaConfig};
use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;

use planner::ClusterPlanner;
use subqueries::OneRowSubqueries;

use crate::network::Network;

/// A cluster, by the address of its scheduler and the way to connect to it.
///
/// Queries that read nothing but files run on it, as a whole; all others run where the user is, and so does what is
/// done with rows: `COPY`, `INSERT` and `CREATE TABLE … AS`.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The host and the port.
    scheduler: Arc<str>,
    network: Network,
}

impl Cluster {
    /// The cluster of the scheduler at an address, a host and a port. Nothing connects before the first query.
    pub fn at(scheduler: &str, network: Network) -> Self {
        Self { scheduler: scheduler.into(), network }
    }

    /// Makes the session run queries on the cluster. Call it after
    /// [`with_overspill`](overspill::OverspillSessionExt::with_overspill), and after all other calls that add rules.
    ///
    /// # Errors
    /// A setting of DataFusion is missing, which is a bug.
    pub fn extend(&self, mut builder: SessionStateBuilder) -> Result<SessionStateBuilder> {
        let options = builder.config().get_or_insert_default().options_mut();
        options.extensions.insert(BallistaConfig::default());
        options.set(BALLISTA_ADAPTIVE_PLANNER_ENABLED, "false")?;
        // Their results are shared by the tasks of one process.
        options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
        builder = builder.with_analyzer_rule(Arc::new(OneRowSubqueries));
        let here = builder.query_planner().take();
        let planner = ClusterPlanner { here, cluster: self.clone() };
        Ok(builder.with_query_planner(Arc::new(planner)))
    }
}
