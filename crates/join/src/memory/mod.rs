//! The memory that the state of a join may hold: memory accounts, and batches that hold no more than their rows need.

mod account;
mod compact;
mod footprint;
mod lent;
mod row_sizes;

pub use account::{Grant, MemoryHost, Purpose, UnitMemory, Unlimited};
pub use compact::{compact, compact_column};
pub use footprint::{HeldMemory, add_offset_bytes, column_bytes, row_bytes};
pub use lent::LentVec;
pub use row_sizes::{MAX_COPY_BYTES, RowSizes, copied_bytes};
pub(crate) use row_sizes::{SideSizes, fitting_pairs};
