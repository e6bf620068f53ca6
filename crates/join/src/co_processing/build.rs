//! Fills a table that both processors read.

use std::sync::atomic::{AtomicU64, Ordering};

use overspill_kernels::{HashTable, SharedBuild};
use overspill_machine::Result;

use crate::device::{BuildColumns, DeviceCount, DeviceRequest, GpuStrategy};
use crate::parallel::in_parallel;

/// Rows that a thread of the CPU takes at a time, and the GPU.
const MORSEL: u64 = 1 << 14;
const BATCH: u64 = 1 << 19;

/// Keys whose cache misses overlap.
const TOGETHER: usize = 64;

/// Who fills a table.
#[derive(Debug, Clone, Copy)]
enum Worker {
    Thread,
    Gpu,
}

/// Fills a table in CPU memory on so many threads, and by the GPU where its link has system-wide atomics. Returns how many rows
/// the table could not take.
///
/// # Errors
/// If the GPU fails.
pub(crate) fn build_together(
    request: &DeviceRequest,
    table: &mut HashTable,
    columns: &BuildColumns,
    threads: usize,
) -> Result<u64> {
    let shared = table.build_shared()?;
    let mut workers = vec![Worker::Thread; threads.max(1)];
    if shared.takes_kernels() {
        workers.push(Worker::Gpu);
    } else {
        let reason = "its build by both processors: the link to the GPU has no system-wide atomics, so that the CPU builds";
        request.observer.refused(GpuStrategy::Het, reason);
    }
    let rows = Rows { request, shared, columns, next: AtomicU64::new(0) };
    // Each has a thread, whoever takes fewer rows than others.
    let refused = in_parallel(workers.len(), workers, |worker| match worker {
        Worker::Thread => Ok(rows.insert_by_thread()),
        Worker::Gpu => rows.insert_by_gpu(),
    });
    refused.into_iter().sum()
}

/// The rows that are left.
struct Rows<'a> {
    request: &'a DeviceRequest,
    shared: SharedBuild<'a>,
    columns: &'a BuildColumns,
    next: AtomicU64,
}

impl Rows<'_> {
    fn take(&self, most: u64) -> Option<std::ops::Range<u64>> {
        let start = self.next.fetch_add(most, Ordering::Relaxed);
        (start < self.columns.rows).then(|| start..(start + most).min(self.columns.rows))
    }

    fn insert_by_thread(&self) -> u64 {
        let (slots, mut refused) = (self.shared.slots(), 0);
        let columns = self.columns.on_host();
        let mut places = [None; TOGETHER];
        while let Some(rows) = self.take(MORSEL) {
            let (start, end) = (rows.start as usize, rows.end as usize);
            for start in (start..end).step_by(TOGETHER) {
                let rows = start..end.min(start + TOGETHER);
                for (place, row) in places.iter_mut().zip(rows.clone()) {
                    *place = slots.first(columns.key(row));
                }
                for (place, row) in places.iter().zip(rows) {
                    refused += u64::from(!slots.insert(columns.key(row), columns.value(row), *place));
                }
            }
        }
        refused
    }

    fn insert_by_gpu(&self) -> Result<u64> {
        let mut refused = 0;
        while let Some(rows) = self.take(BATCH) {
            let bench = self.request.gpu.turn();
            let bytes = self.columns.link_bytes_of(rows.end - rows.start);
            refused += self.shared.insert_by_kernel(&bench.stream, &self.columns.side_of(rows)?)?;
            self.request.observer.add(DeviceCount::LinkBytes, bytes);
        }
        Ok(refused)
    }
}
