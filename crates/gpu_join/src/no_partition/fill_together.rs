//! Fills a hash table in CPU memory by both processors.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use overspill_advisor::Strategy;
use overspill_kernels::{BuildKernel, HashTable, Place, SharedBuild, SharedLists, SharedSlots};
use overspill_machine::Result;

use crate::device::{BuildColumns, DeviceCount, DeviceRequest, HostColumns};
use overspill_join::parallel::in_parallel;

/// Rows that a CPU thread takes at a time, and rows that the GPU takes at a time.
const MORSEL: u64 = 1 << 14;
const BATCH: u64 = 1 << 19;

/// Number of keys whose cache misses overlap.
const TOGETHER: usize = 64;

/// Fills a table in CPU memory with `threads` CPU threads. The GPU helps if its link has system-wide atomics and the table is
/// not multi-value. Returns the number of rows that the table could not hold.
///
/// # Errors
/// If the GPU fails.
pub(super) fn fill_together(
    request: &DeviceRequest,
    strategy: Strategy,
    table: &mut HashTable,
    columns: &BuildColumns,
    threads: usize,
) -> Result<u64> {
    let note = |reason: &str| {
        request.observer.noted(strategy, &format!("the CPU builds alone: {reason}"));
    };
    match table.build_shared(threads)? {
        SharedBuild::Slots(slots, kernel) => {
            let left = insert(request, slots, kernel.as_ref(), columns, threads)?;
            // If rows are left, the table of the next kind reports its own reason.
            if kernel.is_none() && left == 0 {
                note("the link to the GPU has no system-wide atomics");
            }
            Ok(left)
        }
        SharedBuild::Lists(lists) => {
            note("keys that repeat are grouped");
            group(lists, columns.on_host(), threads);
            Ok(0)
        }
    }
}

fn insert(
    request: &DeviceRequest,
    slots: SharedSlots<'_>,
    kernel: Option<&BuildKernel<'_>>,
    columns: &BuildColumns,
    threads: usize,
) -> Result<u64> {
    let rows = Rows::new(columns.rows);
    let host = columns.on_host();
    let insert_by_thread = || {
        let mut refused = 0;
        while let Some(morsel) = rows.take(MORSEL) {
            in_groups(
                morsel,
                |row| slots.first(host.key(row)),
                |row, place| refused += u64::from(!slots.insert(host.key(row), host.value(row), place)),
            );
        }
        refused
    };
    let insert_by_gpu = |kernel: &BuildKernel<'_>| {
        let mut refused = 0;
        loop {
            // Get the turn first: the CPU can insert rows that would wait for it.
            let bench = request.turn()?;
            let Some(batch) = rows.take(BATCH) else { return Ok(refused) };
            let bytes = columns.link_bytes_of(batch.end - batch.start);
            refused += kernel.insert(&bench.stream, &columns.side_of(&request.gpu, batch)?)?;
            request.observer.add(DeviceCount::LinkBytes, bytes);
        }
    };
    // A worker without a kernel is a thread of the CPU.
    let workers: Vec<_> = std::iter::repeat_n(None, threads.max(1)).chain(kernel.map(Some)).collect();
    // Each worker has its own thread, even if some take fewer rows than others.
    let refused = in_parallel(workers.len(), workers, |worker| match worker {
        None => Ok(insert_by_thread()),
        Some(kernel) => insert_by_gpu(kernel),
    });
    refused.into_iter().sum()
}

/// Groups the values of each key.
fn group(lists: SharedLists<'_>, host: HostColumns<'_>, threads: usize) {
    let all = |work: &(dyn Fn(usize, Place) + Sync)| {
        let rows = Rows::new(host.rows() as u64);
        in_parallel(threads, vec![(); threads.max(1)], |()| {
            while let Some(morsel) = rows.take(MORSEL) {
                in_groups(morsel, |row| lists.first(host.key(row)), work);
            }
        });
    };
    all(&|row, place| lists.count(host.keys(), row, place));
    lists.place(threads);
    all(&|row, place| lists.fill(host.key(row), host.value(row), place));
}

/// Looks up the first places of a group of rows, then processes each row.
fn in_groups(rows: Range<u64>, first: impl Fn(usize) -> Place, mut work: impl FnMut(usize, Place)) {
    let (start, end) = (rows.start as usize, rows.end as usize);
    let mut places = [None; TOGETHER];
    for start in (start..end).step_by(TOGETHER) {
        let rows = start..end.min(start + TOGETHER);
        for (place, row) in places.iter_mut().zip(rows.clone()) {
            *place = first(row);
        }
        for (place, row) in places.iter().zip(rows) {
            work(row, *place);
        }
    }
}

/// The rows that no worker has taken yet.
struct Rows {
    next: AtomicU64,
    end: u64,
}

impl Rows {
    fn new(rows: u64) -> Self {
        Self { next: AtomicU64::new(0), end: rows }
    }

    fn take(&self, most: u64) -> Option<Range<u64>> {
        let start = self.next.fetch_add(most, Ordering::Relaxed);
        (start < self.end).then(|| start..(start + most).min(self.end))
    }
}
