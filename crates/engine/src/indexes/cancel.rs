//! Stops the threads of a statement when the statement is cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells threads to stop when it is dropped. The future that waits for the threads holds it, and a cancelled statement drops that
/// future.
#[derive(Debug, Default)]
pub(crate) struct CancelOnDrop(Arc<AtomicBool>);

impl CancelOnDrop {
    /// What the threads look at.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
