//! One rank of an experiment: its jobs, and what all ranks tell each other.

use std::pin::pin;
use std::sync::Arc;

use arrow::buffer::Buffer;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use futures::executor::block_on;
use futures::future::{Either, select};
use overspill_exchange::all_gather;
use overspill_exchange::transport::{Endpoint, Job, JobId};

use crate::report::failed;

/// A rank. All ranks do the same in the same order.
pub(crate) struct Member {
    endpoint: Arc<Endpoint>,
    /// Fails if a rank does, and is there as long as the rank is.
    whole: Job,
    /// Jobs that it has begun.
    jobs: u64,
}

impl Member {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        let whole = Job::begin(&endpoint, JobId(0));
        Self { endpoint, whole, jobs: 1 }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Begins the next job of all ranks.
    pub(crate) fn job(&mut self) -> Job {
        self.jobs += 1;
        Job::begin(&self.endpoint, JobId(self.jobs - 1))
    }

    /// Tells all ranks that this one has failed, so that none waits for it.
    pub(crate) fn fail(&self, error: &DataFusionError) {
        self.whole.fail(&error.to_string());
    }

    /// The words of all ranks, after all have called this.
    pub(crate) fn gather(&mut self, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        let message = Buffer::from_vec(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        let job = self.job();
        let (gathering, failing) = (pin!(all_gather(&job, 0, message)), pin!(self.whole.failed()));
        let all = match block_on(select(gathering, failing)) {
            Either::Left((all, _)) => all.map_err(failed)?,
            Either::Right((error, _)) => return Err(failed(error)),
        };
        let words =
            |message: &Buffer| message.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok(all.iter().map(words).collect())
    }

    /// The longest seconds of what all ranks begin together.
    pub(crate) fn slowest(&mut self, run: impl FnOnce(&mut Self) -> Result<f64>) -> Result<f64> {
        self.gather(&[])?;
        let seconds = run(self)?;
        let all = self.gather(&[seconds.to_bits()])?;
        Ok(all.iter().map(|words| f64::from_bits(words[0])).fold(0.0, f64::max))
    }
}
