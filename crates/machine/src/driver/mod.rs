//! The CUDA driver: loading it, its devices, streams, events and modules.
//!
//! One driver is loaded for the life of the process: NVIDIA's, or the stand-in that runs kernels on the CPU.

mod device;
mod kept;
mod library;
mod module;
mod peers;
mod stream;
mod timeline;
mod virtual_clock;

pub use device::{Device, Properties};
pub use kept::PinnedBudget;
pub(crate) use kept::{MappedPages, MappedRun};
pub use library::{Driver, DriverKind};
pub use module::{Arguments, Function, LaunchShape, Module};
pub use peers::PeerAccess;
pub(crate) use stream::Ticket;
pub use stream::{Event, Queued, Stream};
pub use virtual_clock::{Charge, VirtualClock};
