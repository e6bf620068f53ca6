//! One rank of an experiment, whose errors are those of experiments.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::error::DataFusionError;
use overspill_exchange::transport::{Endpoint, Job};

use crate::report::failed;

/// A rank. All ranks do the same in the same order.
pub(crate) struct Member(overspill_exchange::Member);

impl Member {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self(overspill_exchange::Member::new(endpoint))
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        self.0.endpoint()
    }

    /// Begins the next job of all ranks.
    pub(crate) fn job(&mut self) -> Job {
        self.0.job()
    }

    /// Tells all ranks that this one has failed, so that none waits for it.
    pub(crate) fn fail(&self, error: &DataFusionError) {
        self.0.fail(&error.to_string());
    }

    /// The words of all ranks, after all have called this.
    pub(crate) fn gather(&mut self, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        self.0.gather(words).map_err(failed)
    }

    /// The longest seconds of what all ranks begin together.
    pub(crate) fn slowest(&mut self, run: impl FnOnce(&mut Self) -> Result<f64>) -> Result<f64> {
        self.gather(&[])?;
        let seconds = run(self)?;
        self.0.most(seconds).map_err(failed)
    }
}
