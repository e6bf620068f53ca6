//! The atomic types for state that threads share without locks. `tests/loom` replaces them with a model checker's types.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
