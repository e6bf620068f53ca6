//! One rank of an experiment, in which all ranks take the same steps.

use std::pin::pin;
use std::sync::Arc;

use arrow::buffer::Buffer;
use futures::executor::block_on;
use futures::future::{Either, select};

use crate::error::Result;
use crate::gather::all_gather;
use crate::transport::{Endpoint, Job, JobId};

/// A rank of an experiment: its jobs, and what all ranks tell each other. All ranks do the same in the same order, each on a thread of its own.
#[derive(Debug)]
pub struct Member {
    endpoint: Arc<Endpoint>,
    /// Fails if a rank does, and is there as long as the rank is.
    whole: Job,
    /// Jobs that it has begun.
    jobs: u64,
}

impl Member {
    /// The rank of an endpoint whose jobs it begins, all of them.
    pub fn new(endpoint: Arc<Endpoint>) -> Self {
        let whole = Job::begin(&endpoint, JobId(0));
        Self { endpoint, whole, jobs: 1 }
    }

    /// The endpoint of the rank.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Begins the next job of all ranks.
    pub fn job(&mut self) -> Job {
        self.jobs += 1;
        Job::begin(&self.endpoint, JobId(self.jobs - 1))
    }

    /// Tells all ranks that this one has failed, so that none waits for it.
    pub fn fail(&self, cause: &str) {
        self.whole.fail(cause);
    }

    /// The words of all ranks, by rank, after all have called this. Without words it is a barrier.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn gather(&mut self, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        let message = Buffer::from_vec(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        let job = self.job();
        let (gathering, failing) = (pin!(all_gather(&job, 0, message)), pin!(self.whole.failed()));
        let all = match block_on(select(gathering, failing)) {
            Either::Left((all, _)) => all?,
            Either::Right((error, _)) => return Err(error),
        };
        let words =
            |message: &Buffer| message.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok(all.iter().map(words).collect())
    }

    /// The most of what ranks have measured.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn most(&mut self, measured: f64) -> Result<f64> {
        let all = self.gather(&[measured.to_bits()])?;
        Ok(all.iter().map(|words| f64::from_bits(words[0])).fold(0.0, f64::max))
    }
}
