//! Sorts that finish in the memory they are given.
//!
//! DataFusion's sort counts views into shared buffers once for each batch, returns the memory for its merge to the pool
//! before it merges, and then competes for it. With a small limit it fails even if its rows would fit. This sort keeps the
//! memory for its next step:
//!
//! ```text
//!  input ─▶ compact ─▶ sort into runs ─▶ merge ─────────────────────────▶ output
//!                        │   state: a spillable consumer, which counts
//!                        │   rows and the keys that the merge compares
//!                        ▼ refused
//!                      merge ─▶ file   (as long as there is input)
//!                        files ─▶ merge as many as memory allows ─▶ file, or output if all were merged
//!                        working buffers: a consumer of their own, kept from the first batch to the last
//! ```

mod exec;
mod memory;
mod sorter;

pub use exec::SpillingSortExec;
