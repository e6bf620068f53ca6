//! The exclusive prefix sum of an array.

use overspill_machine::driver::{Arguments, Function, Stream};
use overspill_machine::memory::{DeviceBuffer, View, ViewMut};
use overspill_machine::{Error, Result};

use crate::Kernels;
use crate::share::Share;

const THREADS: u32 = 256;
/// Equals `kScanValuesPerThread`.
const TILE: u64 = THREADS as u64 * 8;
/// The maximum number of blocks of a launch. Each block takes tiles until none are left.
const MAX_BLOCKS: u64 = 4096;

/// Exclusive prefix sums of arrays up to a maximum length, with the memory they need.
#[derive(Debug)]
pub struct PrefixSum {
    sum_tiles: Function,
    scan_tile_sums: Function,
    scan_tiles: Function,
    share: Share,
    capacity: u64,
    tile_sums: DeviceBuffer,
    total: DeviceBuffer,
}

impl PrefixSum {
    /// Takes 8 bytes of GPU memory for every 2048 values of `capacity`, and 8 bytes more.
    ///
    /// # Errors
    /// If memory is not available.
    pub fn new(kernels: &Kernels, capacity: u64) -> Result<Self> {
        Ok(Self {
            sum_tiles: kernels.function("prefix_sum_sum_tiles")?,
            scan_tile_sums: kernels.function("prefix_sum_scan_tile_sums")?,
            scan_tiles: kernels.function("prefix_sum_scan_tiles")?,
            share: kernels.share(),
            capacity,
            tile_sums: DeviceBuffer::new(kernels.device(), capacity.div_ceil(TILE).max(1) * 8)?,
            total: DeviceBuffer::new(kernels.device(), 8)?,
        })
    }

    /// Writes to `sums` the sum of the values before each value, and returns the total. Sums wrap at 2^64. Reads the values
    /// twice and writes the sums once.
    ///
    /// # Errors
    /// If there are more values than the capacity, `sums` is shorter, or the device fails.
    pub fn run(&mut self, stream: &Stream, values: View<'_>, sums: ViewMut<'_>) -> Result<u64> {
        if sums.bytes() < values.bytes() {
            return Err(Error::Invalid(format!(
                "sums of {} bytes of values do not fit {}",
                values.bytes(),
                sums.bytes()
            )));
        }
        self.launch(stream, values.address(), values.bytes() / 8, sums.address())
    }

    /// Replaces each value by the sum of the values before it, and returns the total.
    ///
    /// # Errors
    /// If there are more values than the capacity, or the device fails.
    pub fn run_in_place(&mut self, stream: &Stream, values: ViewMut<'_>) -> Result<u64> {
        self.launch(stream, values.address(), values.bytes() / 8, values.address())
    }

    /// `from` and `to` are the addresses of `length` values each, borrowed by the caller.
    fn launch(&mut self, stream: &Stream, from: u64, length: u64, to: u64) -> Result<u64> {
        if length > self.capacity {
            return Err(Error::Invalid(format!("a prefix sum of {length} values, made for {} at most", self.capacity)));
        }
        let tiles = length.div_ceil(TILE);
        let blocks = u32::try_from(tiles.min(MAX_BLOCKS)).unwrap_or(u32::MAX);
        let (shape, single) = (self.share.shape(blocks, THREADS, 0), self.share.shape(1, THREADS, 0));
        let (tile_sums, total) = (self.tile_sums.view_mut().address(), self.total.view_mut().address());
        // SAFETY: the parameters match the kernels, `tile_sums` has room for every tile and `to` for every value, and the
        // callers' borrows outlive the stream's work, which is waited for below, also after an error.
        let launched = unsafe {
            self.sum_tiles
                .launch(stream, shape, Arguments::default().with(&from).with(&length).with(&tile_sums))
                .and_then(|()| {
                    self.scan_tile_sums.launch(
                        stream,
                        single,
                        Arguments::default().with(&tile_sums).with(&tiles).with(&total),
                    )
                })
                .and_then(|()| {
                    let arguments = Arguments::default().with(&from).with(&length).with(&tile_sums).with(&to);
                    self.scan_tiles.launch(stream, shape, arguments)
                })
        };
        stream.finish(launched, || Ok(self.total.read::<u64>(stream, 1)?[0]))
    }
}
