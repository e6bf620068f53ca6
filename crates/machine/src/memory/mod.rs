//! Memory with a placement.
//!
//! | placement | where | who reads it, and how |
//! |---|---|---|
//! | [`DeviceBuffer`] | GPU memory | kernels; the CPU by copies |
//! | [`HostBuffer`], pageable | CPU memory, in small or huge pages | the CPU; kernels on coherent links; copies, staged by the driver |
//! | [`HostBuffer`], pinned | the same, registered with the driver | the CPU; kernels across the link (zero-copy); copies by DMA |
//! | [`UnifiedBuffer`] | wherever it was touched last | both; pages move by themselves |
//! | [`SpanningBuffer`] | GPU and CPU memory, in one range of addresses | kernels; the CPU by copies |
//!
//! A [`Buffer`] is one of the first two or three, chosen while the program runs. A [`SlabPool`] lends pinned memory that was registered beforehand.
//!
//! CPU memory is always mapped by this process itself and only registered with the driver, so that it survives the loss of a
//! device with what is in it; but for the CPU pages of a [`SpanningBuffer`], which are the driver's.

mod buffer;
mod device;
mod host;
mod line;
mod slab;
mod spanning;
mod unified;
mod view;

pub use buffer::{Buffer, Placement};
pub use device::DeviceBuffer;
pub(crate) use host::PinnedPart;
pub use host::{AtomicNumber, HostBuffer, PageSize, Plain};
pub use line::{CacheLine, LineWriter, prefetch, write_past_cache};
pub use slab::{Slab, SlabPool};
pub use spanning::{Layout, Mapping, Place, Segment, SpanningBuffer, SpanningLayout, check_mapping, probe_mapping};
pub use unified::UnifiedBuffer;
pub use view::{View, ViewMut};
