//! Plans of Overspill that several processes run: how they are made ([`planning`]), and how they and their settings travel
//! ([`PlanCodec`], [`settings`]).
//!
//! Two crates run them: `overspill-cluster` by Apache Ballista, and `overspill-ranks` among the ranks of an MPI job. Each adds the codec
//! of its own nodes.

#![deny(missing_docs)]

mod codec;
mod gather;
pub mod planning;
mod scan;
pub mod settings;
mod sink;

pub use codec::PlanCodec;
pub use gather::GatherExec;
