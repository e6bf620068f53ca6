//! What is stopped with a query.

use std::fmt;
use std::sync::Weak;

/// Work of a query.
pub(crate) trait Stoppable: Send + Sync {
    /// Gives back what it holds, from any thread. If that is in use, its user is about to see that the query is stopped.
    fn stop(&self);
}

/// All work of a query.
#[derive(Default)]
pub(super) struct Work(pub Vec<Weak<dyn Stoppable>>);

impl Work {
    /// Stops it. The caller holds no lock: the last of it ends the query.
    pub fn stop(self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|work| work.stop());
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} streams", self.0.len())
    }
}
