//! Joins that CPU and GPU work on together (paper 2, section 6).
//!
//! Both look rows up, in one of two placements of the hash table (figure 11): `het` has one table in CPU memory, which both
//! processors fill where the link lets them claim slots at the same time, and which the CPU fills where it does not; `gpu_het`
//! has a table that the GPU fills in its memory, and a copy of it for the CPU, so that each reads memory of its own.
//!
//! Batches of the probe side are morsels. A stream looks one up as it comes, unless the GPU has no work: then it collects a batch
//! of morsels for it and goes on with others while the GPU joins them ([`Dispatcher`], [`Flight`]). Whoever is faster gets
//! more, and nobody waits for the other before the input ends.

mod build;
mod dispatcher;
mod flight;
mod morsel;
mod table;

pub(crate) use dispatcher::{Dispatcher, Reservation};
pub(crate) use flight::Flight;
pub(crate) use morsel::Morsel;
pub(crate) use table::SharedTable;

pub(crate) use build::build_together;
