//! GPUs that join together.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use overspill_machine::driver::Device;
use overspill_machine::{Error, Result};

use super::gpu::Gpu;

/// The GPUs that hold and probe a hash table together with another GPU (paper 2, section 6.3).
#[derive(Debug, Default)]
pub(crate) struct Peers {
    others: Vec<Arc<Gpu>>,
    has_atomics: bool,
    refused: Option<Error>,
}

impl Peers {
    /// Returns the peers of `first` if every GPU can access the memory of every other and map its pages. Otherwise returns no
    /// peers, and the reason.
    pub(super) fn of(first: &Arc<Device>, others: Vec<Arc<Gpu>>) -> Result<Self> {
        let devices: Vec<_> = std::iter::once(first).chain(others.iter().map(|gpu| gpu.device())).collect();
        let mut has_atomics = true;
        for device in &devices {
            if !device.properties().virtual_memory_management {
                return Ok(Self::refused_by(Error::Unsupported {
                    device: device.ordinal(),
                    what: "virtual memory management, by which a hash table lies in the memory of several GPUs",
                }));
            }
            for peer in devices.iter().filter(|peer| peer.ordinal() != device.ordinal()) {
                let access = device.access_to(peer)?;
                if !access.reads_and_writes {
                    return Ok(Self::refused_by(Error::NoPeerAccess {
                        device: device.ordinal(),
                        peer: peer.ordinal(),
                    }));
                }
                has_atomics &= access.native_atomics;
            }
        }
        Ok(Self { others, has_atomics, refused: None })
    }

    fn refused_by(error: Error) -> Self {
        Self { refused: Some(error), ..Self::default() }
    }

    /// The GPUs other than the first.
    pub(super) fn others(&self) -> &[Arc<Gpu>] {
        &self.others
    }

    /// Whether atomic operations on the memory of any GPU are atomic for all GPUs, so that all of them can fill a table at
    /// the same time.
    pub(crate) fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    /// The reason why the first GPU joins alone, if other GPUs were requested.
    pub(crate) fn refused(&self) -> Option<&Error> {
        self.refused.as_ref()
    }
}

/// A probe chunk's assignment to a GPU, until dropped.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Gpu>);

impl Seat {
    /// Assigns a chunk to the GPU with the fewest chunks, or the first of several such GPUs. `None` if all GPUs are lost.
    pub(crate) fn take(gpus: &[Arc<Gpu>]) -> Option<Self> {
        loop {
            let living = gpus.iter().filter(|gpu| gpu.lost_because().is_none());
            let (gpu, chunks) =
                living.map(|gpu| (gpu, gpu.chunks().load(Ordering::Relaxed))).min_by_key(|(_, chunks)| *chunks)?;
            // Retry if another stream changed the count in the meantime.
            if gpu.chunks().compare_exchange(chunks, chunks + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Some(Self(Arc::clone(gpu)));
            }
        }
    }

    /// The GPU.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.chunks().fetch_sub(1, Ordering::Relaxed);
    }
}
