//! Memory with a placement.
//!
//! | placement | where | who reads it, and how |
//! |---|---|---|
//! | [`DeviceBuffer`] | GPU memory | kernels; the CPU by copies |
//! | [`HostBuffer`], pageable | CPU memory, in small or huge pages | the CPU; kernels on coherent links; copies, staged by the driver |
//! | [`HostBuffer`], pinned | the same, registered with the driver | the CPU; kernels across the link (zero-copy); copies by DMA |
//!
//! CPU memory is always mapped by this process itself and only registered with the driver, so that it survives the loss of a
//! device with what is in it.

mod device;
mod host;
mod view;

pub use device::DeviceBuffer;
pub use host::{HostBuffer, PageSize, Plain};
pub use view::{View, ViewMut};
