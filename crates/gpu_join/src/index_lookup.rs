//! Lookups in an index over the rows of a table (paper 3: Schmeißer, Lutz and Markl, *Efficiently Indexing Large Data on GPUs with Fast
//! Interconnects*, EDBT 2025).
//!
//! The index is copied once to where kernels read it. The keys come in ascending order, so that neighbouring threads already read
//! neighbouring places of the index, which is what windowed partitioning is for (section 5). They are looked up in tumbling windows all the
//! same, as each has memory for its matches.

use std::sync::Arc;

use overspill_index::{PlacedIndex, RowIndex};
use overspill_kernels::{AllocatedPairs, IndexLookup, JoinSide, Values};
use overspill_machine::Result;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{HUGE, PageSize, Placement};

use crate::device::{DeviceProblem, DeviceShare, Gpu, PAIR_BYTES, Resident, too_many_pairs};

/// The most keys of a window: 32 MiB of them (section 5.2.2).
const WINDOW: u64 = 1 << 22;

/// An index in GPU memory takes at most `1 / SHARE` of its limit, which joins also need.
const SHARE: u64 = 8;

/// The number of arrays of a placed index, at most: each takes whole pages.
const ARRAYS: usize = 4;

/// A copy of an index over rows of a table that kernels read: in GPU memory if it is small beside it, else in CPU memory.
#[derive(Debug)]
pub struct DeviceRows {
    gpu: Arc<Gpu>,
    index: PlacedIndex,
    _resident: Option<Resident>,
}

/// Room for such a copy.
#[derive(Debug)]
pub struct DeviceRoom {
    gpu: Arc<Gpu>,
    /// In GPU memory; otherwise in CPU memory.
    resident: Option<Resident>,
    pages: PageSize,
    host_bytes: usize,
}

impl DeviceRoom {
    /// Chooses where a copy of the index goes, and reserves the GPU memory if it goes there.
    pub fn new(gpu: &Arc<Gpu>, index: &RowIndex) -> Self {
        let bytes = index.bytes();
        let pages = if bytes < HUGE { PageSize::Small } else { PageSize::Huge };
        let whole = bytes + ARRAYS * pages.bytes();
        let is_small = whole as u64 <= gpu.device().memory_limit() / SHARE;
        let resident = if is_small { gpu.reserve_resident(whole as u64).ok() } else { None };
        Self { gpu: Arc::clone(gpu), host_bytes: if resident.is_some() { 0 } else { whole }, resident, pages }
    }

    /// Bytes of CPU memory that the copy takes.
    pub fn host_bytes(&self) -> usize {
        self.host_bytes
    }

    /// Copies the index for a query with this share. `O(n)`.
    ///
    /// # Errors
    /// If there is no such memory after all, or the GPU fails.
    pub fn copy(self, index: &RowIndex, share: &DeviceShare) -> Result<DeviceRows, DeviceProblem> {
        let Self { gpu, resident, pages, .. } = self;
        if let Some(error) = gpu.lost_because() {
            return Err(DeviceProblem::Refused(error.clone()));
        }
        let pinned = !gpu.device().properties().coherent;
        let placement = if resident.is_some() { Placement::Device } else { Placement::Host { pages, pinned } };
        let stream = Stream::new(gpu.device());
        let copy = stream.and_then(|stream| PlacedIndex::new(&stream, index.index(), Some(index.rows()), placement));
        match copy {
            Ok(index) => Ok(DeviceRows { gpu, index, _resident: resident }),
            Err(error) => Err(DeviceProblem::of(&gpu, share, error)),
        }
    }
}

impl DeviceRows {
    /// The GPU that reads it.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The most keys that are worth looking up at a time.
    pub fn window(&self) -> usize {
        WINDOW.min(self.most_pairs()) as usize
    }

    /// The number of matches that there is memory for: a quarter of what a join may use in its turn.
    fn most_pairs(&self) -> u64 {
        self.gpu.workspace() / 4 / PAIR_BYTES
    }

    /// Adds the numbers of the rows with these keys, in any order. Waits for the query's turn on the GPU, and blocks the thread.
    /// `O(log n)` a key.
    ///
    /// # Errors
    /// If one key has more rows than there is memory for, there is no memory for the keys, the GPU fails, or it was given to other
    /// queries. Then no numbers are added.
    pub fn look_up(&self, share: &Arc<DeviceShare>, keys: &[u64], rows: &mut Vec<u32>) -> Result<(), DeviceProblem> {
        if let Some(error) = self.gpu.lost_because() {
            return Err(DeviceProblem::Refused(error.clone()));
        }
        let before = rows.len();
        self.find(share, keys, rows).map_err(|error| {
            rows.truncate(before);
            DeviceProblem::of(&self.gpu, share, error)
        })
    }

    fn find(&self, share: &Arc<DeviceShare>, keys: &[u64], rows: &mut Vec<u32>) -> Result<()> {
        let device = self.gpu.device();
        let mut window = self.gpu.host.take(size_of_val(keys))?;
        window.as_mut_slice()?[..keys.len()].copy_from_slice(keys);
        let window = window.view()?;
        let lookup = IndexLookup::new(&self.gpu.kernels, self.index.on(device)?)?;
        let most = self.most_pairs();
        let bench = self.gpu.turn(share)?;
        let mut pairs = AllocatedPairs::new(device, most.min(keys.len() as u64))?;
        let (mut rest, mut step) = (0..keys.len() as u64, keys.len() as u64);
        while !rest.is_empty() {
            let count = step.min(rest.end - rest.start);
            let side = JoinSide { keys: window.slice(rest.start * 8, count * 8)?, values: Values::RowIds(0) };
            let found = lookup.allocate(&bench.stream, &side, &mut pairs)?;
            if found <= pairs.capacity() {
                self.read(&bench.stream, &pairs, found, rows)?;
                rest.start += count;
            } else if found <= most || pairs.capacity() < most {
                // The old pairs first make room for the new ones.
                drop(pairs);
                pairs = AllocatedPairs::new(device, found.min(most))?;
            } else if count > 1 {
                step = count / 2;
            } else {
                return Err(too_many_pairs("the rows with one key", found, most));
            }
        }
        Ok(())
    }

    /// Adds the row numbers of the first `found` pairs.
    fn read(&self, stream: &Stream, pairs: &AllocatedPairs, found: u64, rows: &mut Vec<u32>) -> Result<()> {
        let found = found as usize;
        if found == 0 {
            return Ok(());
        }
        let mut numbers = self.gpu.host.take(found * size_of::<u64>())?;
        let numbers = &mut numbers.as_mut_slice::<u64>()?[..found];
        let [of_index, _] = pairs.columns();
        of_index.read_into(stream, numbers)?;
        rows.extend(numbers.iter().map(|number| *number as u32));
        Ok(())
    }
}
