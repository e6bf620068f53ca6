//! What all ranks do together.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::endpoint::Endpoint;
use super::frame::{FrameKind, JobId};
use crate::error::Error;
use crate::rank::Rank;

/// A rank's part in a job. It ends once the job is dropped, with all its clones, senders and receivers.
#[derive(Debug, Clone)]
pub struct Job(Arc<Part>);

#[derive(Debug)]
struct Part {
    endpoint: Arc<Endpoint>,
    id: JobId,
}

impl Job {
    /// Takes part in a job. All ranks number jobs alike, each job anew; numbers are best given from 0, without gaps.
    ///
    /// # Panics
    /// If a job with this number has ended here.
    pub fn begin(endpoint: &Arc<Endpoint>, id: JobId) -> Self {
        assert!(endpoint.state().job(id).is_some(), "job {} has ended on rank {}", id.0, endpoint.rank());
        Self(Arc::new(Part { endpoint: Arc::clone(endpoint), id }))
    }

    /// The endpoint of this rank.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0.endpoint
    }

    /// Says that this rank has failed. All streams of the job fail, on all ranks. Returns the failure that came first.
    pub fn fail(&self, cause: &str) -> Error {
        let Part { endpoint, id } = &*self.0;
        let rank = endpoint.rank();
        let cause: Arc<str> = cause.into();
        let own = Error::Failed { rank, cause: Arc::clone(&cause) };
        let after = {
            let mut state = endpoint.state();
            let Some(job) = state.job(*id) else { return own };
            if let Some(failure) = &job.failure {
                return failure.clone();
            }
            job.fail(rank, Arc::clone(&cause))
        };
        after.settle();
        for to in (0..endpoint.topology().ranks()).filter(|to| *to != rank) {
            self.send(to, FrameKind::Failed(rank, Arc::clone(&cause)));
        }
        own
    }

    /// The failure that came first; `None` if there is none.
    pub fn failure(&self) -> Option<Error> {
        self.0.endpoint.state().job(self.0.id).and_then(|job| job.failure.clone())
    }

    /// Waits until a rank fails.
    pub async fn failed(&self) -> Error {
        poll_fn(|context| {
            let mut state = self.0.endpoint.state();
            match state.job(self.0.id) {
                Some(job) => match &job.failure {
                    Some(failure) => Poll::Ready(failure.clone()),
                    None => {
                        job.watchers.retain(|waker| !waker.will_wake(context.waker()));
                        job.watchers.push(context.waker().clone());
                        Poll::Pending
                    }
                },
                None => Poll::Pending,
            }
        })
        .await
    }

    pub(super) fn id(&self) -> JobId {
        self.0.id
    }

    pub(super) fn send(&self, to: Rank, kind: FrameKind) {
        self.0.endpoint.send(to, self.0.id, kind);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let ended = self.endpoint.state().finish(self.id);
        drop(ended);
    }
}
