//! The atomic types of what several threads share without locks. `tests/loom` puts a model checker's in their place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
