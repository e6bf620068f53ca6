//! The session that owns a value.

use std::sync::{OnceLock, Weak};

use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
use parking_lot::RwLock;

/// A reference from a value to the session that owns it, set once the session exists. It is weak, as the session owns the
/// value.
#[derive(Debug, Default)]
pub struct Owner {
    session: OnceLock<Weak<RwLock<SessionState>>>,
}

impl Owner {
    /// Sets the session. Only the first call has an effect.
    pub fn set(&self, context: &SessionContext) {
        let _ = self.session.set(context.state_weak_ref());
    }

    /// The session as it is now.
    pub fn state(&self) -> Option<SessionState> {
        Some(self.session.get()?.upgrade()?.read().clone())
    }
}
