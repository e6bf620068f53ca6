//! Placement of the arrays of a table.

use std::sync::Arc;

use overspill_machine::driver::{Device, Stream};
use overspill_machine::memory::{
    AtomicNumber, DeviceBuffer, HostBuffer, Layout, Mapping, PageSize, SpanningBuffer, SpanningLayout, ViewMut,
};
use overspill_machine::{Error, Result};

use super::host_threads::fill;

/// The stripe size of a table that spans several memories.
const STRIPE: u64 = 2 << 20;
/// Smaller arrays in CPU memory use small pages, as huge pages would waste memory.
const HUGE_PAGE: usize = 2 << 20;

/// The placement of a table. A multi-value table supports only GPU memory and `Host`; with `Spanning` all of it lies in GPU
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TablePlacement {
    /// In GPU memory.
    Device,
    /// In GPU memory up to a limit, and in CPU memory beyond it: the hybrid hash table of paper 2, section 5.3. Kernels see
    /// one address range, which requires virtual memory management ([`Mapping::Contiguous`]) unless one memory holds the
    /// whole table.
    Spanning {
        /// Bytes of GPU memory for the table.
        device_bytes: u64,
        /// The NUMA node for the remainder, nearest to the GPU.
        node: u32,
        /// Whether the driver maps CPU pages.
        mapping: Mapping,
    },
    /// In CPU memory that the CPU reads and writes as well: the shared table of paper 2, section 6.2.
    Host,
}

/// The parts of a table in the memory of several devices. The remainder lies in CPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableShares {
    /// Bytes of each device's memory for the table, in device order. They are whole pages of 2 MiB, as many as there is
    /// room for.
    pub device_bytes: Vec<u64>,
    /// The NUMA node for the remainder.
    pub node: u32,
}

#[derive(Debug)]
pub(super) enum Slots {
    Device(DeviceBuffer),
    Spanning(SpanningBuffer),
    Host(HostBuffer, Arc<Device>),
}

impl Slots {
    pub fn new(device: &Arc<Device>, placement: TablePlacement, bytes: u64) -> Result<Self> {
        match placement {
            TablePlacement::Device => DeviceBuffer::new(device, bytes).map(Self::Device),
            TablePlacement::Spanning { device_bytes, node, mapping } => {
                let layout = SpanningLayout {
                    layout: Layout::Greedy,
                    bytes,
                    device_bytes: vec![device_bytes],
                    stripe_bytes: STRIPE,
                    node,
                };
                let buffer = SpanningBuffer::new(std::slice::from_ref(device), &layout, mapping)?;
                // Refuse arrays without a contiguous address range now, not when the table is built.
                buffer.view()?;
                Ok(Self::Spanning(buffer))
            }
            TablePlacement::Host => {
                let bytes =
                    usize::try_from(bytes).map_err(|_| Error::Invalid(format!("{bytes} bytes of CPU memory")))?;
                // A buffer occupies whole pages.
                let pages = if bytes < HUGE_PAGE { PageSize::Small } else { PageSize::Huge };
                let buffer = match device.properties().coherent {
                    true => HostBuffer::new(bytes, pages)?,
                    false => HostBuffer::pinned(device, bytes, pages)?,
                };
                Ok(Self::Host(buffer, Arc::clone(device)))
            }
        }
    }

    /// Allocates arrays of `arrays` bytes that follow each other in pages of several devices, evenly interleaved as long as
    /// there is room, and then in pages of CPU memory. All devices read and write all arrays.
    pub fn interleaved<const N: usize>(
        devices: &[Arc<Device>],
        shares: &TableShares,
        arrays: [u64; N],
    ) -> Result<[Self; N]> {
        let bytes = arrays.into_iter().try_fold(0, u64::checked_add);
        let bytes = bytes.ok_or_else(|| Error::Invalid("a hash table that no memory has room for".to_owned()))?;
        let layout = SpanningLayout {
            layout: Layout::GreedyInterleaved,
            bytes,
            device_bytes: shares.device_bytes.clone(),
            stripe_bytes: STRIPE,
            node: shares.node,
        };
        let mut rest = SpanningBuffer::new(devices, &layout, Mapping::Contiguous)?;
        let mut parts = Vec::with_capacity(N);
        for bytes in arrays {
            let (part, after) = rest.split_at(bytes)?;
            parts.push(Self::Spanning(part));
            rest = after;
        }
        parts.try_into().map_err(|_| Error::Invalid("a hash table with fewer arrays than it has".to_owned()))
    }

    pub fn fill(&mut self, stream: &Stream, byte: u8) -> Result<()> {
        match self {
            Self::Device(buffer) => buffer.fill(stream, byte),
            Self::Spanning(buffer) => buffer.fill(stream, byte),
            Self::Host(buffer, _) => {
                buffer.as_mut_slice::<u8>().fill(byte);
                Ok(())
            }
        }
    }

    /// A mutable view of an array that only devices write.
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>> {
        match self {
            Self::Device(buffer) => Ok(buffer.view_mut()),
            Self::Spanning(buffer) => buffer.view_mut(),
            Self::Host(..) => Err(Error::Invalid("a table in CPU memory, which the CPU fills".to_owned())),
        }
    }

    /// The array as words that the CPU reads.
    pub fn on_host(&self) -> Result<&[u64]> {
        match self {
            Self::Host(buffer, _) => Ok(buffer.as_slice()),
            Self::Device(_) | Self::Spanning(_) => Err(not_on_host()),
        }
    }

    /// Sets every byte to `byte` with `threads` threads, and returns the array as atomics that several threads write.
    pub fn shared<A: AtomicNumber>(&mut self, byte: u8, threads: usize) -> Result<&[A]> {
        match self {
            Self::Host(buffer, _) => {
                fill(buffer.as_mut_slice(), byte, threads);
                Ok(buffer.as_atomic_slice())
            }
            Self::Device(_) | Self::Spanning(_) => Err(not_on_host()),
        }
    }

    pub fn address(&self) -> Result<u64> {
        match self {
            Self::Device(buffer) => Ok(buffer.view().address()),
            Self::Spanning(buffer) => Ok(buffer.view()?.address()),
            Self::Host(buffer, device) => Ok(buffer.view(device)?.address()),
        }
    }
}

fn not_on_host() -> Error {
    Error::Invalid("a table in GPU memory, which the CPU does not read".to_owned())
}
