//! The names of ranks.

/// The number of a rank: a GPU or a socket, with a process or a thread of its own.
pub type Rank = usize;
