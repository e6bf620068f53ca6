//! An index over some rows of a table.

use std::ops::Deref;
use std::sync::Arc;

use datafusion::execution::memory_pool::MemoryReservation;
use overspill_gpu_join::{DeviceProblem, DeviceRoom, DeviceRows, DeviceShare, Gpu, KeptCopy};
use overspill_index::RowIndex;
use parking_lot::Mutex;

use crate::device::no_memory;

/// An index over some rows in memory, with the copy that a GPU reads once one has been asked for.
#[derive(Debug)]
pub(crate) struct IndexRun {
    index: RowIndex,
    copy: Arc<CopyPlace>,
}

/// The place of the copy, which the GPU empties when it is lost.
#[derive(Debug, Default)]
struct CopyPlace(Mutex<Option<Arc<RunCopy>>>);

impl KeptCopy for CopyPlace {
    fn drop_copy(&self) {
        // Who holds the lock makes a copy, and finds the GPU lost.
        let copy = self.0.try_lock().and_then(|mut copy| copy.take());
        drop(copy);
    }
}

/// A copy for a GPU, and the memory that pays for it.
#[derive(Debug)]
pub(crate) struct RunCopy {
    pub rows: DeviceRows,
    _memory: MemoryReservation,
}

impl IndexRun {
    pub fn new(index: RowIndex) -> Self {
        Self { index, copy: Arc::default() }
    }

    /// The copy that this GPU reads, if there is one.
    pub fn copy_on(&self, gpu: &Arc<Gpu>) -> Option<Arc<RunCopy>> {
        // A thread that makes a copy holds the lock until it is done. Nobody waits for that here.
        self.copy.0.try_lock()?.clone().filter(|copy| Arc::ptr_eq(copy.rows.gpu(), gpu))
    }

    /// The copy that this GPU reads, made now for a query with this share if there is none, in place of that for another GPU. `memory` pays
    /// for it if it is in CPU memory.
    ///
    /// # Errors
    /// If there is no memory for it, or the GPU fails.
    pub fn copied_to(
        &self,
        gpu: &Arc<Gpu>,
        share: &DeviceShare,
        memory: MemoryReservation,
    ) -> Result<Arc<RunCopy>, DeviceProblem> {
        let mut copy = self.copy.0.lock();
        if let Some(copy) = copy.as_ref().filter(|copy| Arc::ptr_eq(copy.rows.gpu(), gpu)) {
            return Ok(Arc::clone(copy));
        }
        *copy = None;
        let room = DeviceRoom::new(gpu, &self.index);
        memory.try_grow(room.host_bytes()).map_err(|error| no_memory(room.host_bytes(), &error))?;
        let made = Arc::new(RunCopy { rows: room.copy(&self.index, share)?, _memory: memory });
        gpu.keeps(Arc::downgrade(&self.copy) as _);
        Ok(Arc::clone(copy.insert(made)))
    }
}

impl Deref for IndexRun {
    type Target = RowIndex;

    fn deref(&self) -> &RowIndex {
        &self.index
    }
}
