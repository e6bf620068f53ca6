//! Memory with a placement.
//!
//! | placement | location | read by |
//! |---|---|---|
//! | [`DeviceBuffer`] | GPU memory | kernels; the CPU by copies |
//! | [`HostBuffer`], pageable | CPU memory, in small or huge pages | the CPU; kernels on coherent links; copies, staged by the driver |
//! | [`HostBuffer`], pinned | the same, registered with the driver | the CPU; kernels across the link (zero-copy); copies by DMA |
//! | [`UnifiedBuffer`] | where it was touched last | both; pages move automatically |
//! | [`SpanningBuffer`] | GPU and CPU memory, in one address range | kernels; the CPU by copies |
//!
//! A [`Buffer`] is one of the first three, chosen at run time.
//!
//! This process maps all CPU memory itself and only registers it with the driver, so that the memory and its contents survive
//! the loss of a device. The exception is the CPU pages of a [`SpanningBuffer`], which belong to the driver.

mod buffer;
mod device;
mod host;
mod line;
mod pages;
mod place;
mod small_pages;
mod spanning;
mod unified;
mod view;

pub use buffer::{Buffer, Placement};
pub use device::DeviceBuffer;
pub(crate) use host::PinnedPart;
pub use host::{AtomicNumber, HostBuffer, PageSize, Plain};
pub use line::{LineWriter, write_past_cache};
pub use pages::{HUGE, PageVec, SharedNumber};
pub use place::{DevicePlace, DividedBuffer};
pub use small_pages::in_small_pages;
pub use spanning::{Layout, Mapping, Place, Segment, SpanningBuffer, SpanningLayout, check_mapping, probe_mapping};
pub use unified::UnifiedBuffer;
pub use view::{Readable, SharedView, View, ViewMut};

pub use crate::cache_line::{CacheLine, prefetch};
