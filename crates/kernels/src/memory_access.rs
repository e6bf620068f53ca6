//! Kernels that measure memory, and the checks of their arguments.

use overspill_machine::driver::{Arguments, Function, LaunchShape, Stream};
use overspill_machine::memory::{DeviceBuffer, View, ViewMut};
use overspill_machine::{Error, Result};

use crate::Kernels;

const THREADS: u32 = 512;
/// Blocks per multiprocessor. With 512 threads each, they fill it.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// The access pattern of thread groups on an array (paper 1, section 3.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessPattern {
    /// Whether the threads write.
    pub write: bool,
    /// Bytes that neighbouring threads access together: 4 to 512, a power of two.
    pub granularity: u64,
    /// The offset in bytes of every access from a multiple of the granularity. It must be a multiple of the unit: 4 bytes up
    /// to a granularity of 128, 8 at 256 and 16 at 512.
    pub misalignment: u64,
    /// The number of accesses of each group.
    pub accesses: u64,
}

/// The kernels of `memory_access.cuh`.
#[derive(Debug)]
pub struct MemoryAccess {
    read: Function,
    copy: Function,
    chase: Function,
    random_read: [Function; 3],
    random_write: [Function; 3],
    shape: LaunchShape,
    result: DeviceBuffer,
}

impl MemoryAccess {
    /// # Errors
    /// If 16 bytes of GPU memory are not available.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        let units = |direction: &str| -> Result<[Function; 3]> {
            let function = |bytes: u32| kernels.function(&format!("measure_random_{direction}_{bytes}"));
            Ok([function(4)?, function(8)?, function(16)?])
        };
        Ok(Self {
            read: kernels.function("measure_read")?,
            copy: kernels.function("measure_copy")?,
            chase: kernels.function("measure_chase")?,
            random_read: units("read")?,
            random_write: units("write")?,
            shape: LaunchShape {
                blocks: kernels.device().properties().multiprocessors * BLOCKS_PER_MULTIPROCESSOR,
                threads: THREADS,
                scratchpad: 0,
            },
            result: DeviceBuffer::new(kernels.device(), 16)?,
        })
    }

    /// Resets the sum of the values read.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn reset(&mut self, stream: &Stream) -> Result<()> {
        self.result.fill(stream, 0)?;
        stream.synchronize()
    }

    /// The sum of the values read since the last reset, modulo 2^64.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn sum(&self, stream: &Stream) -> Result<u64> {
        Ok(self.result.read::<u64>(stream, 1)?[0])
    }

    /// Enqueues a kernel that reads 8-byte values in order and adds them to the sum.
    ///
    /// # Errors
    /// If the values are misaligned, or the device is lost.
    ///
    /// # Safety
    /// The values and `self` must stay valid until the stream has finished the work.
    pub unsafe fn read(&self, stream: &Stream, values: View<'_>) -> Result<()> {
        let (address, length) = (aligned(values.address(), 8)?, values.bytes() / 8);
        let result = self.result.view().address();
        // SAFETY: the parameters match the kernel, the view holds `length` values and the result two; the caller promises the
        // rest.
        unsafe {
            let arguments = Arguments::default().with(&address).with(&length).with(&result);
            self.read.launch(stream, self.shape, arguments)
        }
    }

    /// Reads 8-byte values in order, adds them to the sum, and returns the time taken in seconds.
    ///
    /// # Errors
    /// As [`MemoryAccess::read`].
    pub fn timed_read(&mut self, stream: &Stream, values: View<'_>) -> Result<f64> {
        // SAFETY: `timed` waits for the stream.
        self.timed(stream, |this| unsafe { this.read(stream, values) })
    }

    /// Copies all bytes of `from`, and returns the time taken in seconds.
    ///
    /// # Errors
    /// If `to` is shorter, one of them is not aligned to 16 bytes, or the device is lost.
    pub fn copy(&mut self, stream: &Stream, from: View<'_>, to: &mut ViewMut<'_>) -> Result<f64> {
        let to = to.slice(0, from.bytes())?;
        let (source, target, length) = (aligned(from.address(), 16)?, aligned(to.address(), 16)?, from.bytes() / 16);
        self.timed(stream, |this| {
            let arguments = Arguments::default().with(&target).with(&source).with(&length);
            // SAFETY: the parameters match the kernel, both views hold `length` values, and `timed` waits for the stream.
            unsafe { this.copy.launch(stream, this.shape, arguments) }
        })
    }

    /// Accesses an array at random places. Returns the number of accesses of all thread groups and the time taken in seconds.
    ///
    /// # Errors
    /// If the pattern is invalid, the array is misaligned, holds fewer than two accesses or more than 2^32 - 1, or the device
    /// is lost.
    pub fn access_randomly(
        &mut self,
        stream: &Stream,
        array: &mut ViewMut<'_>,
        pattern: AccessPattern,
    ) -> Result<(u64, f64)> {
        let granularity = pattern.granularity;
        if !granularity.is_power_of_two() || !(4..=512).contains(&granularity) {
            return Err(Error::Invalid(format!("accesses of {granularity} bytes: 4 to 512, a power of two")));
        }
        let unit = (granularity / 32).clamp(4, 16);
        let threads = u32::try_from(granularity / unit).map_err(|error| Error::Invalid(error.to_string()))?;
        let misalignment = pattern.misalignment;
        if !misalignment.is_multiple_of(unit) {
            return Err(Error::Invalid(format!("{misalignment} bytes off are not a multiple of a unit of {unit}")));
        }
        let units = array.bytes().saturating_sub(misalignment) / granularity;
        if units < 2 || units > u64::from(u32::MAX) {
            return Err(Error::Invalid(format!(
                "an array of {} bytes for accesses of {granularity}: it must hold two, and at most 2^32",
                array.bytes()
            )));
        }
        let address = aligned(array.address(), 128)?;
        let functions = if pattern.write { &self.random_write } else { &self.random_read };
        let function = functions[unit.ilog2() as usize - 2].clone();
        let result = self.result.view_mut().address();
        let seconds = self.timed(stream, |this| {
            let arguments = Arguments::default()
                .with(&address)
                .with(&units)
                .with(&threads)
                .with(&misalignment)
                .with(&pattern.accesses)
                .with(&result);
            // SAFETY: the parameters match the kernel; it accesses `units` groups of units starting at the misalignment,
            // which the array holds, and `timed` waits for the stream.
            unsafe { function.launch(stream, this.shape, arguments) }
        })?;
        let groups = u64::from(self.shape.blocks) * u64::from(self.shape.threads / threads);
        Ok((groups * pattern.accesses, seconds))
    }

    /// Follows 8-byte indices from `start` with one thread, for `steps` steps. Returns the last index and the time taken in
    /// seconds.
    ///
    /// # Errors
    /// If `start` lies outside, or the device is lost.
    ///
    /// # Safety
    /// Every index visited must lie within the array.
    pub unsafe fn chase(&mut self, stream: &Stream, next: View<'_>, start: u64, steps: u64) -> Result<(u64, f64)> {
        let address = aligned(next.address(), 8)?;
        if start >= next.bytes() / 8 {
            return Err(Error::Invalid(format!("index {start} in an array of {} bytes", next.bytes())));
        }
        let result = self.result.view_mut().address();
        let seconds = self.timed(stream, |this| {
            let arguments = Arguments::default().with(&address).with(&start).with(&steps).with(&result);
            let single = LaunchShape { blocks: 1, threads: 1, scratchpad: 0 };
            // SAFETY: the parameters match the kernel, and `timed` waits for the stream; the caller promises valid indices.
            unsafe { this.chase.launch(stream, single, arguments) }
        })?;
        Ok((self.sum(stream)?, seconds))
    }

    /// Seconds that the stream spends on the work that `launch` enqueues.
    fn timed(&mut self, stream: &Stream, launch: impl FnOnce(&Self) -> Result<()>) -> Result<f64> {
        stream.timed(|| launch(self)).map(|((), seconds)| seconds)
    }
}

fn aligned(address: u64, bytes: u64) -> Result<u64> {
    if address.is_multiple_of(bytes) {
        Ok(address)
    } else {
        Err(Error::Invalid(format!("memory that does not start at a multiple of {bytes} bytes")))
    }
}
