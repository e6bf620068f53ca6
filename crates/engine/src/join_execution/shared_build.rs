//! The build side that all streams of an execution share.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;

type Reading<B> = Shared<BoxFuture<'static, Result<Arc<B>, Arc<DataFusionError>>>>;

/// A build side, read by any stream that polls it.
pub(crate) struct SharedBuild<B>(Mutex<Unasked<B>>);

struct Unasked<B> {
    /// `None` once every stream has asked for it, so that its memory is freed when the last stream is done with it.
    build: Option<Reading<B>>,
    missing: usize,
}

impl<B: Send + Sync + 'static> SharedBuild<B> {
    /// A build side for `streams` streams that `read` reads.
    pub fn new(streams: usize, read: impl Future<Output = Result<B>> + Send + 'static) -> Self {
        let build = read.map(|build| build.map(Arc::new).map_err(Arc::new)).boxed().shared();
        Self(Mutex::new(Unasked { build: Some(build), missing: streams }))
    }

    /// The build side, to read it before a stream asks for it. `None` once all streams have asked.
    pub fn ahead(&self) -> Option<Reading<B>> {
        self.0.lock().build.clone()
    }

    /// The build side. Each stream asks for it once.
    pub fn get(&self) -> Option<Reading<B>> {
        let mut unasked = self.0.lock();
        unasked.missing = unasked.missing.saturating_sub(1);
        if unasked.missing == 0 { unasked.build.take() } else { unasked.build.clone() }
    }
}
