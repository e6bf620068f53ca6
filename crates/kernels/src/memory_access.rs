//! Kernels that measure memory, and their bounds on what they are given.

use overspill_machine::driver::{Arguments, Function, LaunchShape, Stream};
use overspill_machine::memory::{DeviceBuffer, View, ViewMut};
use overspill_machine::{Error, Result};

use crate::Kernels;

const THREADS: u32 = 512;
/// Blocks of a multiprocessor: with 512 threads each, all that it holds.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// How groups of threads touch an array (paper 1, section 3.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessPattern {
    /// Whether they write.
    pub write: bool,
    /// Bytes that neighbouring threads touch together: 4 to 512, a power of two.
    pub granularity: u64,
    /// Bytes by which every access is off a multiple of the granularity: a multiple of the unit, which is 4 bytes up to a
    /// granularity of 128, 8 at 256 and 16 at 512.
    pub misalignment: u64,
    /// Accesses of each group.
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
    /// If there are not 16 bytes of GPU memory.
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

    /// Forgets the sum of the values read so far.
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

    /// Asks the stream to read values of 8 bytes in order and to add them to the sum.
    ///
    /// # Errors
    /// If the values are misaligned, or the device is lost.
    ///
    /// # Safety
    /// The values stay until the stream has done it, and so does this.
    pub unsafe fn read(&self, stream: &Stream, values: View<'_>) -> Result<()> {
        let (address, length) = (aligned(values.address(), 8)?, values.bytes() / 8);
        let result = self.result.view().address();
        // SAFETY: the parameters are the kernel's, the view holds `length` values and the result two; the rest is the caller's
        // promise.
        unsafe {
            let arguments = Arguments::default().with(&address).with(&length).with(&result);
            self.read.launch(stream, self.shape, arguments)
        }
    }

    /// Reads values of 8 bytes in order, adds them to the sum, and returns how long it took in seconds.
    ///
    /// # Errors
    /// As [`MemoryAccess::read`].
    pub fn timed_read(&mut self, stream: &Stream, values: View<'_>) -> Result<f64> {
        // SAFETY: `timed` waits for the stream.
        self.timed(stream, |this| unsafe { this.read(stream, values) })
    }

    /// Copies as much as `from` has, and returns how long it took in seconds.
    ///
    /// # Errors
    /// If `to` is shorter, one is misaligned to 16 bytes, or the device is lost.
    pub fn copy(&mut self, stream: &Stream, from: View<'_>, to: &mut ViewMut<'_>) -> Result<f64> {
        let to = to.slice(0, from.bytes())?;
        let (source, target, length) = (aligned(from.address(), 16)?, aligned(to.address(), 16)?, from.bytes() / 16);
        self.timed(stream, |this| {
            let arguments = Arguments::default().with(&target).with(&source).with(&length);
            // SAFETY: the parameters are the kernel's, both views hold `length` values, and `timed` waits for the stream.
            unsafe { this.copy.launch(stream, this.shape, arguments) }
        })
    }

    /// Touches an array at random, and returns how many accesses there were, over all groups of threads, and how long they
    /// took in seconds.
    ///
    /// # Errors
    /// If the pattern is none, or the array holds less than two accesses of it, or the device is lost.
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
            // SAFETY: the parameters are the kernel's; it touches `units` groups of units from the misalignment on, which the
            // array holds, and `timed` waits for the stream.
            unsafe { function.launch(stream, this.shape, arguments) }
        })?;
        let groups = u64::from(self.shape.blocks) * u64::from(self.shape.threads / threads);
        Ok((groups * pattern.accesses, seconds))
    }

    /// Follows indices of 8 bytes from `start` on by one thread, `steps` times. Returns where it ended and the seconds it
    /// took.
    ///
    /// # Errors
    /// If `start` lies outside, or the device is lost.
    ///
    /// # Safety
    /// Every index that is come by lies within the array.
    pub unsafe fn chase(&mut self, stream: &Stream, next: View<'_>, start: u64, steps: u64) -> Result<(u64, f64)> {
        let address = aligned(next.address(), 8)?;
        if start >= next.bytes() / 8 {
            return Err(Error::Invalid(format!("index {start} in an array of {} bytes", next.bytes())));
        }
        let result = self.result.view_mut().address();
        let seconds = self.timed(stream, |this| {
            let arguments = Arguments::default().with(&address).with(&start).with(&steps).with(&result);
            let single = LaunchShape { blocks: 1, threads: 1, scratchpad: 0 };
            // SAFETY: the parameters are the kernel's, and `timed` waits for the stream; the indices are the caller's promise.
            unsafe { this.chase.launch(stream, single, arguments) }
        })?;
        Ok((self.sum(stream)?, seconds))
    }

    /// How long the stream works at what `launch` asks of it.
    fn timed(&mut self, stream: &Stream, launch: impl FnOnce(&Self) -> Result<()>) -> Result<f64> {
        let before = stream.record()?;
        let launched = launch(self);
        let after = stream.record();
        stream.synchronize().and(launched)?;
        before.seconds_until(&after?)
    }
}

fn aligned(address: u64, bytes: u64) -> Result<u64> {
    if address.is_multiple_of(bytes) {
        Ok(address)
    } else {
        Err(Error::Invalid(format!("memory that does not start at a multiple of {bytes} bytes")))
    }
}
