//! The output of a join that materializes.

use std::sync::Arc;

use overspill_machine::Result;
use overspill_machine::driver::{Device, Stream};
use overspill_machine::memory::DeviceBuffer;

use super::arguments::JoinOutput;

const VALUE_BYTES: u64 = 8;

/// Room in GPU memory for the pairs of a join: the values of both sides of every match, 8 bytes each. Kernels take places from a
/// linear allocator (paper 1, section 5.1).
#[derive(Debug)]
pub struct AllocatedPairs {
    build: DeviceBuffer,
    probe: DeviceBuffer,
    capacity: u64,
    /// The number of matches.
    cursor: DeviceBuffer,
}

impl AllocatedPairs {
    /// Allocates room for `capacity` pairs.
    ///
    /// # Errors
    /// If 16 bytes of GPU memory for each are not available.
    pub fn new(device: &Arc<Device>, capacity: u64) -> Result<Self> {
        let column = || DeviceBuffer::new(device, capacity * VALUE_BYTES);
        Self::in_columns(column()?, column()?, capacity)
    }

    /// Takes the first `capacity` places of two columns on the same device.
    ///
    /// # Errors
    /// If a column is shorter.
    pub fn in_columns(build: DeviceBuffer, probe: DeviceBuffer, capacity: u64) -> Result<Self> {
        let bytes = capacity.saturating_mul(VALUE_BYTES);
        build.view().slice(0, bytes).and(probe.view().slice(0, bytes))?;
        let cursor = DeviceBuffer::new(build.device(), VALUE_BYTES)?;
        Ok(Self { build, probe, capacity, cursor })
    }

    /// The number of pairs that there is room for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Waits for the stream that the work was queued on, and returns the number of matches. If they exceed the capacity, the
    /// remaining pairs were not written, and the join must be repeated with more room.
    ///
    /// # Errors
    /// If the work failed.
    pub fn found(&self, stream: &Stream) -> Result<u64> {
        Ok(self.cursor.read::<u64>(stream, 1)?[0])
    }

    /// The values of the build side and those of the probe side.
    pub fn columns(&self) -> [&DeviceBuffer; 2] {
        [&self.build, &self.probe]
    }

    /// Drops earlier pairs in stream order, and returns the arguments of kernels that write others.
    pub(crate) fn output(&mut self, stream: &Stream) -> Result<JoinOutput> {
        self.cursor.fill(stream, 0)?;
        Ok(JoinOutput {
            cursor: self.cursor.view().address(),
            capacity: self.capacity,
            build_values: self.build.view_mut().address(),
            probe_values: self.probe.view_mut().address(),
            ..JoinOutput::default()
        })
    }
}
