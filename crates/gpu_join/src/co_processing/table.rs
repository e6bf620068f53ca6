//! A hash table that both CPU and GPU probe.

use std::sync::Arc;

use overspill_advisor::Strategy;
use overspill_kernels::HostSlots;
use overspill_machine::transfer::{HostPool, PooledBuffer};
use overspill_machine::{Error, Result};

use super::Dispatcher;
use crate::device::{BuildColumns, DeviceCount, DeviceRequest};
use crate::no_partition::{GpuTable, Home};
use overspill_join::memory::Grant;

/// A table of the GPU that the CPU reads as well or has a copy of.
#[derive(Debug)]
pub(crate) struct SharedTable {
    pub(crate) table: GpuTable,
    /// The CPU's copy, if the table is in GPU memory: pinned, as copies to pageable memory take several times as long.
    copy: Option<PooledBuffer>,
    pub(crate) dispatcher: Arc<Dispatcher>,
}

impl SharedTable {
    /// Builds one table in CPU memory (`het`), charged to `memory`.
    pub(crate) fn on_host(
        request: &DeviceRequest,
        columns: &BuildColumns,
        threads: usize,
        memory: &mut Grant,
    ) -> Result<Self> {
        let table = GpuTable::build(request, columns, Home::Host { threads }, memory)?;
        table.table.host_slots()?;
        Ok(Self { table, copy: None, dispatcher: Arc::default() })
    }

    /// Builds a table in GPU memory, and a copy of it for the CPU (`gpu_het`), charged to `memory`.
    pub(crate) fn copied(request: &DeviceRequest, columns: &BuildColumns, memory: &mut Grant) -> Result<Self> {
        let table = GpuTable::build(request, columns, Home::GpuAlone, memory)?;
        let (words, needed) = (table.table.words(), table.table.words() * 8);
        let bytes = usize::try_from(needed).map_err(|_| Error::Invalid(format!("a table of {words} words")))?;
        let room = HostPool::size_for(bytes);
        if memory.try_grow(room).is_err() {
            let reason = "a copy of the hash table for the CPU is more than the session's memory limit leaves";
            return Err(Error::OutOfHostMemory { bytes: needed, reason: reason.to_owned() });
        }
        let copied = request.gpu.host.take(bytes).and_then(|mut copy| {
            table.table.copy_to_host(&request.turn()?.stream, copy.as_mut_slice()?)?;
            request.observer.add(DeviceCount::LinkBytes, needed);
            Ok(copy)
        });
        match copied {
            Ok(copy) => Ok(Self { table, copy: Some(copy), dispatcher: Arc::default() }),
            Err(error) => {
                memory.shrink(room);
                Err(error)
            }
        }
    }

    /// The slots that the CPU reads.
    pub(crate) fn slots(&self) -> Result<HostSlots<'_>> {
        match &self.copy {
            Some(copy) => self.table.table.slots_in(copy.as_slice()),
            None => self.table.table.host_slots(),
        }
    }

    pub(crate) fn strategy(&self) -> Strategy {
        if self.copy.is_some() { Strategy::GpuHet } else { Strategy::Het }
    }
}
