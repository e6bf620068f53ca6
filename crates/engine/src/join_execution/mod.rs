//! What the executions of all joins share, with or without an equality: memory, spill files, probe inputs and output.

pub(crate) mod disk;
pub(crate) mod equivalences;
pub(crate) mod expressions;
pub(crate) mod input;
pub(crate) mod memory;
pub(crate) mod narrow_dictionaries;
pub(crate) mod output;
pub(crate) mod read_ahead;
pub(crate) mod shared_build;
pub(crate) mod starting;
pub(crate) mod timeline;

pub(crate) use expressions::to_datafusion;
