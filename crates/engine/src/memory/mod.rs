//! Memory pools and accounting: they decide how much of the memory limit each operator may hold.

mod headroom_pool;
mod index_statement;
mod keys;
mod statement;
mod table;

use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};

pub use headroom_pool::HeadroomPool;
pub use index_statement::changes_indexes;
pub use statement::execute_logical_plan;
pub use table::ReservedMemTable;
pub(crate) use table::{LockedRows, lock};

/// The limit of a pool in bytes; `None` without one.
pub(crate) fn limit_of(pool: &dyn MemoryPool) -> Option<usize> {
    match pool.memory_limit() {
        MemoryLimit::Finite(bytes) => Some(bytes),
        MemoryLimit::Infinite | MemoryLimit::Unknown => None,
    }
}

/// How a user raises the memory limit: the last sentence of every error that the limit causes.
pub(crate) const RAISE_MEMORY_LIMIT: &str = "Raise the limit with --memory-limit on the command line or with SET \
                                             datafusion.runtime.memory_limit in SQL.";
