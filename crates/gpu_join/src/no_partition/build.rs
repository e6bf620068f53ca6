//! Builds the hash table: which kind, and in which memory.

use std::sync::Arc;
use std::time::Instant;

use overspill_advisor::Strategy;
use overspill_join::memory::Grant;
use overspill_kernels::{HashTable, TableKind, TablePlacement};
use overspill_machine::memory::Mapping;
use overspill_machine::{Error, Result};

use super::fill_together::fill_together;
use super::interleaved;
use super::table::{GpuTable, HASH, fill};
use crate::device::{BuildColumns, BuildValues, DeviceCount, DeviceRequest, KEY};

/// Maximum number of arrays of a table in CPU memory, and the page sizes to which each array is rounded up.
const ARRAYS: u64 = 5;
const SMALL_PAGE: u64 = 4 << 10;
const HUGE_PAGE: u64 = 2 << 20;

/// The memory in which a hash table is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// In the memory of all GPUs that join together, as far as it fits, then in CPU memory. If a GPU alone cannot fill that part,
    /// CPU threads do.
    Gpu { threads: usize },
    /// In the memory of the first GPU only.
    GpuAlone,
    /// In CPU memory. CPU threads fill it too.
    Host { threads: usize },
}

impl GpuTable {
    /// Builds the first kind of table that the keys and GPU memory allow: perfect (a range of unique keys), linear probing
    /// (unique keys), multi-value (any keys).
    ///
    /// The part in CPU memory is charged to `memory`.
    pub(crate) fn build(
        request: &DeviceRequest,
        columns: &BuildColumns,
        home: Home,
        memory: &mut Grant,
    ) -> Result<Self> {
        let gpus = match home {
            Home::Gpu { .. } => request.gpu.together(),
            Home::GpuAlone | Home::Host { .. } => vec![Arc::clone(&request.gpu)],
        };
        if let Some(error) = request.gpu.peers.refused.as_ref().filter(|_| matches!(home, Home::Gpu { .. })) {
            let reason = format!("several GPUs: {error}, so that GPU {} joins alone", request.gpu.device().ordinal());
            request.observer.noted(Strategy::GpuNoPartition, &reason);
        }
        // Refuse now rather than when the first chunk arrives.
        for gpu in &gpus {
            request.transfer_method(gpu).check_device(gpu.device().properties())?;
        }
        let mut refused = None;
        let mut is_unique = true;
        for kind in kinds(columns) {
            if kind == TableKind::LinearProbing && !is_unique {
                continue;
            }
            let paid = memory.bytes();
            let made = match gpus.as_slice() {
                [_] => Self::of_kind(request, columns, kind, home, memory),
                _ => interleaved::build(request, &gpus, columns, kind, memory),
            };
            if !matches!(made, Ok(Some(_))) {
                memory.shrink(memory.bytes() - paid);
            }
            match made {
                Ok(Some(table)) => return Ok(table),
                Ok(None) => is_unique = false,
                // A table of another kind may be smaller.
                Err(error @ (Error::TooSmall { .. } | Error::OverBudget { .. } | Error::OutOfHostMemory { .. })) => {
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::Invalid("no hash table takes these keys".to_owned())))
    }

    /// Builds a table of kind `kind` on one GPU or in CPU memory; `None` if a table of this kind cannot hold the keys.
    fn of_kind(
        request: &DeviceRequest,
        columns: &BuildColumns,
        kind: TableKind,
        home: Home,
        memory: &mut Grant,
    ) -> Result<Option<Self>> {
        let gpu = &request.gpu;
        let is_on_host = matches!(home, Home::Host { .. });
        let bytes = HashTable::bytes(kind, KEY, columns.rows)?;
        // Bytes that may be in CPU memory, and bytes that must be in GPU memory.
        let (slots, others) = if kind == TableKind::MultiValue && !is_on_host { (0, bytes) } else { (bytes, 0) };
        let left = gpu.resident_left();
        let wanted = match request.tuning.table_share {
            _ if is_on_host => 0,
            share if share < 1.0 => (slots as f64 * share) as u64,
            _ => slots,
        };
        let table_on_device = wanted.min(left.saturating_sub(others));
        let too_small = Error::TooSmall {
            what: "the hash table of a join",
            needed: bytes,
            of: "the half of GPU memory that may stay with joins",
            available: left,
        };
        if others > left {
            return Err(too_small);
        }
        let may_span =
            matches!(home, Home::Gpu { .. }) && gpu.mapping == Mapping::Contiguous && request.tables_may_span;
        let placement = if is_on_host {
            TablePlacement::Host
        } else if table_on_device == slots {
            TablePlacement::Device
        } else if may_span {
            TablePlacement::Spanning { device_bytes: table_on_device, node: gpu.node, mapping: gpu.mapping }
        } else {
            // One address range over both memories is not available.
            return Err(too_small);
        };
        let spilled = slots - table_on_device;
        // Each array is rounded up to whole pages.
        let pages = if is_on_host { ARRAYS * if spilled < HUGE_PAGE { SMALL_PAGE } else { HUGE_PAGE } } else { 0 };
        let host_bytes = usize::try_from(spilled + pages).unwrap_or(usize::MAX);
        if memory.try_grow(host_bytes).is_err() {
            let reason = "a hash table outside GPU memory is more than the session's memory limit leaves".to_owned();
            return Err(Error::OutOfHostMemory { bytes: spilled, reason });
        }
        let resident = gpu.reserve_resident(table_on_device + others)?;
        let empty = |placement| HashTable::new(&gpu.kernels, kind, KEY, columns.rows, HASH, placement);
        let spanning = || {
            let begin = Instant::now();
            let table = empty(placement);
            if spilled > 0 {
                request.observer.add(DeviceCount::MappingTime, begin.elapsed().as_nanos() as u64);
            }
            table
        };
        // What a copy takes that the CPU fills.
        let copied = usize::try_from(bytes + ARRAYS * HUGE_PAGE).unwrap_or(usize::MAX);
        let (table, refused) = match home {
            Home::Host { threads } => {
                let mut table = empty(placement)?;
                let refused = fill_together(request, Strategy::Het, &mut table, columns, threads)?;
                (table, refused)
            }
            // Each insertion by a kernel would compare and swap across the link, at its rate of single accesses.
            Home::Gpu { threads }
                if spilled > 0 && !gpu.device().properties().host_native_atomics && memory.try_grow(copied).is_ok() =>
            {
                let mut filled = empty(TablePlacement::Host)?;
                let refused = fill_together(request, Strategy::GpuNoPartition, &mut filled, columns, threads)?;
                if refused > 0 {
                    return Ok(None);
                }
                let mut table = spanning()?;
                table.copy_from_host(&request.turn()?.stream, &filled)?;
                request.observer.add(DeviceCount::LinkBytes, table_on_device);
                drop(filled);
                memory.shrink(copied);
                (table, refused)
            }
            Home::Gpu { .. } | Home::GpuAlone => {
                let mut table = spanning()?;
                let bench = request.turn()?;
                let refused = fill(request, &bench.stream, &mut table, columns, kind)?;
                (table, refused)
            }
        };
        let (gpus, resident) = (vec![Arc::clone(gpu)], vec![resident]);
        Ok((refused == 0).then_some(Self { table, bytes, spilled, gpus, resident }))
    }
}

/// The kinds of table to try, in order.
fn kinds(columns: &BuildColumns) -> impl Iterator<Item = TableKind> + use<> {
    let takes_unique = !matches!(columns.values, BuildValues::Words { has_all_ones: true, .. });
    let perfect = columns.range.filter(|_| columns.is_dense()).and_then(|(smallest_key, largest)| {
        let slots = (largest - smallest_key).checked_add(1)?;
        Some(TableKind::Perfect { smallest_key, slots })
    });
    let unique = takes_unique.then_some(TableKind::LinearProbing);
    perfect.filter(|_| takes_unique).into_iter().chain(unique).chain([TableKind::MultiValue])
}
