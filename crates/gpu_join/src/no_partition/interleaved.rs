//! A hash table in the memory of several GPUs (paper 2, section 6.3).
//!
//! Its pages are assigned to the GPUs in turn, so that each GPU serves its share of random accesses and all links are used at
//! once. All arrays of a table are in one such address range, including those of a multi-value table. Pages for which no GPU
//! has room are in CPU memory, after the others.

use std::sync::Arc;

use overspill_advisor::Strategy;
use overspill_kernels::{HashTable, Kernels, TableKind, TableShares};
use overspill_machine::memory::Mapping;
use overspill_machine::{Error, Result};

use super::table::{GpuTable, HASH, fill};
use crate::device::{BuildColumns, DeviceCount, DeviceRequest, Gpu, KEY, Resident};
use overspill_join::memory::Grant;
use overspill_join::parallel::{in_parallel, ranges};

/// Bytes per page of a table.
const PAGE: u64 = 2 << 20;

/// Builds a table of kind `kind` across `gpus`; `None` if a table of this kind cannot hold the keys. The part in CPU memory is
/// charged to `memory`.
pub(super) fn build(
    request: &DeviceRequest,
    gpus: &[Arc<Gpu>],
    columns: &BuildColumns,
    kind: TableKind,
    memory: &mut Grant,
) -> Result<Option<GpuTable>> {
    let first = &request.gpu;
    let bytes = HashTable::bytes(kind, KEY, columns.rows)?;
    let pages = bytes.div_ceil(PAGE);
    let left: Vec<u64> = gpus.iter().map(|gpu| gpu.resident_left() / PAGE).collect();
    let wanted = match request.tuning.table_share {
        share if share < 1.0 => (pages as f64 * share) as u64,
        _ => pages,
    };
    let on_gpus = wanted.min(left.iter().sum());
    // Multi-value tables are built in GPU memory alone, as on one GPU.
    let may_span = kind != TableKind::MultiValue && first.mapping == Mapping::Contiguous && request.tables_may_span;
    if on_gpus < pages && !may_span {
        return Err(Error::TooSmall {
            what: "the hash table of a join",
            needed: bytes,
            of: "the halves of the GPUs' memory that may stay with joins",
            available: left.iter().sum::<u64>() * PAGE,
        });
    }
    let on_host = (pages - on_gpus) * PAGE;
    if memory.try_grow(usize::try_from(on_host).unwrap_or(usize::MAX)).is_err() {
        let reason = "a hash table outside GPU memory is more than the session's memory limit leaves".to_owned();
        return Err(Error::OutOfHostMemory { bytes: on_host, reason });
    }
    let device_bytes: Vec<u64> = even_shares(on_gpus, &left).into_iter().map(|share| share * PAGE).collect();
    let holders = gpus.iter().zip(&device_bytes).filter(|(_, bytes)| **bytes > 0);
    let resident = holders.map(|(gpu, bytes)| gpu.reserve_resident(*bytes)).collect::<Result<Vec<Resident>>>()?;
    let kernels: Vec<Kernels> = gpus.iter().map(|gpu| gpu.kernels.clone()).collect();
    let shares = TableShares { device_bytes, node: first.node };
    let mut table = HashTable::interleaved(&kernels, kind, KEY, columns.rows, HASH, &shares)?;
    let spilled = bytes.saturating_sub(on_gpus * PAGE);
    let reaches_host = gpus.iter().all(|gpu| gpu.device().properties().host_native_atomics);
    let alone = if kind == TableKind::MultiValue {
        Some("keys that repeat are grouped")
    } else if !first.peers.has_atomics {
        Some("the links between the GPUs have no native atomics")
    } else if spilled > 0 && !reaches_host {
        Some("the links to CPU memory have no system-wide atomics")
    } else {
        None
    };
    let refused = match alone {
        Some(_) => fill(request, &request.turn()?.stream, &mut table, columns, kind)?,
        None => fill_by_all(request, gpus, &mut table, columns)?,
    };
    if refused > 0 {
        return Ok(None);
    }
    if let Some(reason) = alone {
        let builder = first.device().ordinal();
        let reason = format!("its build by all GPUs: {reason}, so that GPU {builder} builds");
        request.observer.noted(Strategy::GpuNoPartition, &reason);
    }
    Ok(Some(GpuTable { table, bytes, spilled, gpus: gpus.to_vec(), resident }))
}

/// All GPUs insert their share of the rows concurrently. Returns the number of rows that the table could not hold.
fn fill_by_all(
    request: &DeviceRequest,
    gpus: &[Arc<Gpu>],
    table: &mut HashTable,
    columns: &BuildColumns,
) -> Result<u64> {
    let kernels = table.build_by_all(&request.turn()?.stream)?;
    let rows = usize::try_from(columns.rows).map_err(|_| Error::Invalid(format!("{} rows", columns.rows)))?;
    let tasks: Vec<_> = gpus.iter().zip(&kernels).zip(ranges(rows, gpus.len())).collect();
    // One thread per GPU waits for that GPU. Rows are read in place: CPU memory is registered for all GPUs.
    let refused = in_parallel(gpus.len(), tasks, |((gpu, kernel), rows)| {
        let side = columns.side_of(gpu, rows.start as u64..rows.end as u64)?;
        kernel.insert(&gpu.turn(&request.share)?.stream, &side)
    });
    request.observer.add(DeviceCount::LinkBytes, columns.link_bytes_of(columns.rows));
    refused.into_iter().sum()
}

/// Distributes `pages` pages evenly, as far as each GPU has room; the total room must be enough. Remainders go to the GPUs with
/// the most room, so that small tables are not all on the same GPU.
fn even_shares(pages: u64, room: &[u64]) -> Vec<u64> {
    let mut shares = vec![0; room.len()];
    let mut order: Vec<usize> = (0..room.len()).collect();
    order.sort_by_key(|at| room[*at]);
    let mut rest = pages;
    // Start with the GPUs with the least room: pages that they cannot hold are left to the others.
    for (done, at) in order.into_iter().enumerate() {
        shares[at] = room[at].min(rest / (room.len() - done) as u64);
        rest -= shares[at];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::even_shares;

    #[test]
    fn pages_are_dealt_out_evenly_as_far_as_there_is_room() {
        assert_eq!(even_shares(6, &[10, 10, 10]), [2, 2, 2]);
        assert_eq!(even_shares(7, &[10, 10, 10]), [2, 2, 3]);
        assert_eq!(even_shares(1, &[10, 10]), [0, 1]);
        assert_eq!(even_shares(1, &[10, 9]), [1, 0]);
        assert_eq!(even_shares(0, &[10, 0]), [0, 0]);
        assert_eq!(even_shares(10, &[1, 9, 2]), [1, 7, 2]);
        assert_eq!(even_shares(12, &[1, 9, 2]), [1, 9, 2]);
        assert_eq!(even_shares(9, &[0, 9]), [0, 9]);
    }
}
