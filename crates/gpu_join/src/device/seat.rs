//! Assigns probe chunks to GPUs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::gpu::Gpu;

/// A probe chunk's assignment to a GPU, until dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) gpu: Arc<Gpu>,
}

impl Seat {
    /// Assigns a chunk to the GPU with the fewest chunks, or the first of several such GPUs. `None` if all GPUs are lost.
    pub(crate) fn take(gpus: &[Arc<Gpu>]) -> Option<Self> {
        loop {
            let living = gpus.iter().filter(|gpu| gpu.lost_because().is_none());
            let (gpu, chunks) =
                living.map(|gpu| (gpu, gpu.chunks.load(Ordering::Relaxed))).min_by_key(|(_, chunks)| *chunks)?;
            // Retry if another stream changed the count in the meantime.
            if gpu.chunks.compare_exchange(chunks, chunks + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Some(Self { gpu: Arc::clone(gpu) });
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.gpu.chunks.fetch_sub(1, Ordering::Relaxed);
    }
}
