//! The hash table of the no-partitioning join.

use std::sync::Arc;

use overspill_kernels::{HashFunction, HashTable, TableKind};
use overspill_machine::driver::Stream;
use overspill_machine::{Error, Result};

use crate::device::{BuildColumns, DeviceCount, DeviceRequest, Gpu, Resident, Seat};

/// The hash function for arbitrary keys: floating-point numbers, packed columns, hashes.
pub(super) const HASH: HashFunction = HashFunction::Murmur3;

/// The hash table of a build side.
#[derive(Debug)]
pub(crate) struct GpuTable {
    pub(crate) table: HashTable,
    pub(crate) bytes: u64,
    /// Bytes of the hash table in CPU memory.
    pub(crate) spilled: u64,
    /// The GPUs that probe it.
    pub(super) gpus: Vec<Arc<Gpu>>,
    /// The memory reserved on each GPU that holds pages of the table.
    pub(super) resident: Vec<Resident>,
}

impl GpuTable {
    /// Assigns a chunk to one of the GPUs that probe the table; `None` if that is no longer possible.
    pub(crate) fn seat(&self) -> Option<Seat> {
        self.check_living().ok().and_then(|()| Seat::take(&self.gpus))
    }

    /// Checks that all pages of the table still exist.
    ///
    /// # Errors
    /// If a GPU that holds some of them is lost.
    pub(super) fn check_living(&self) -> Result<()> {
        let lost = self.resident.iter().find(|part| part.gpu.lost_because().is_some());
        lost.map_or(Ok(()), |lost| {
            let reason = "with pages of the hash table of a join".to_owned();
            Err(Error::DeviceLost { device: lost.gpu.device().ordinal(), reason })
        })
    }
}

/// Fills a table with the first GPU, on `stream`. The caller must have the GPU's turn. Returns the number of rows that the
/// table could not hold.
pub(super) fn fill(
    request: &DeviceRequest,
    stream: &Stream,
    table: &mut HashTable,
    columns: &BuildColumns,
    kind: TableKind,
) -> Result<u64> {
    let mut side = columns.side(&request.gpu)?;
    // A repeated key is compared with the key of the first row that has it, which may be anywhere: read keys from GPU memory.
    let copied = match kind {
        TableKind::MultiValue if columns.rows * 8 <= request.gpu.workspace() / 2 => Some(columns.copy_keys(stream)?),
        _ => None,
    };
    if let Some(keys) = &copied {
        side.keys = keys.view();
    }
    let refused = table.build(stream, &side)?;
    request.observer.add(DeviceCount::LinkBytes, columns.link_bytes_of(columns.rows));
    Ok(refused)
}
