//! Pinned memory that is registered once and reused.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::Device;
use crate::memory::{HostBuffer, PageSize};
use crate::{Error, Result};

/// Slabs of pinned memory, all of the same size. Registering memory with the driver takes longer than copying it, so the pool
/// registers all slabs when it is created, and pipelines that borrow from it need not.
#[derive(Debug)]
pub struct SlabPool {
    slab_bytes: usize,
    slabs: usize,
    free: Mutex<Vec<HostBuffer>>,
}

impl SlabPool {
    /// Maps and registers `slabs` slabs.
    ///
    /// # Errors
    /// If the system or the driver cannot provide the memory.
    pub fn new(device: &Arc<Device>, slabs: usize, slab_bytes: usize) -> Result<Arc<Self>> {
        let free =
            (0..slabs).map(|_| HostBuffer::pinned(device, slab_bytes, PageSize::Huge)).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Self { slab_bytes, slabs, free: Mutex::new(free) }))
    }

    /// Borrows a slab with unspecified contents.
    ///
    /// # Errors
    /// If all slabs are borrowed.
    pub fn take(self: &Arc<Self>) -> Result<Slab> {
        let buffer = self.free.lock().pop();
        match buffer {
            Some(buffer) => Ok(Slab { pool: Arc::clone(self), buffer: Some(buffer) }),
            None => Err(Error::Invalid(format!(
                "all {} slabs of {} bytes of pinned memory are in use",
                self.slabs, self.slab_bytes
            ))),
        }
    }
}

/// A borrowed slab. Dropping it returns it to its pool; the device must have finished with it by then.
#[derive(Debug)]
pub struct Slab {
    pool: Arc<SlabPool>,
    /// `Some` until dropped.
    buffer: Option<HostBuffer>,
}

impl Deref for Slab {
    type Target = HostBuffer;

    fn deref(&self) -> &HostBuffer {
        self.buffer.as_ref().expect("a slab has its buffer until it is dropped")
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut HostBuffer {
        self.buffer.as_mut().expect("a slab has its buffer until it is dropped")
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        self.pool.free.lock().extend(self.buffer.take());
    }
}
