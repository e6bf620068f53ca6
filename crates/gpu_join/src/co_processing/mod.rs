//! Joins that CPU and GPU execute together (paper 2, section 6).
//!
//! Both probe the hash table, which has one of two placements (figure 11). `het` has one table in CPU memory: both processors
//! fill it if the link lets them claim slots at the same time, else the CPU fills it alone. `gpu_het` has a table in GPU memory
//! that the GPU fills, and a copy of it in CPU memory, so that each processor reads its own memory.
//!
//! Batches of the probe side are morsels. A stream probes a morsel itself when it arrives, unless the GPU has no work. In that
//! case it collects a batch of morsels for the GPU and processes others while the GPU joins the batch ([`Dispatcher`]). The
//! faster processor gets more rows, and neither waits for the other before the input ends.

mod dispatcher;
mod morsel;
mod table;

pub(crate) use dispatcher::{Dispatcher, Reservation};
pub(crate) use morsel::Morsel;
pub(crate) use table::SharedTable;
