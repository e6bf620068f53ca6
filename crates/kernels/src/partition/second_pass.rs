//! The second pass over partitions of the first.

use std::sync::Arc;

use overspill_machine::Result;
use overspill_machine::driver::{Queued, Stream};
use overspill_machine::memory::{DeviceBuffer, SharedView, View};

use super::extents::Extents;
use super::plan::{Algorithm, KeyWidth, PartitionPlan};
use super::run::{Input, Output, Partitioner, PayloadInput};
use crate::{Kernels, Radix};

/// Maximum bytes of a key and of a value.
const COLUMN: u64 = 8;

/// Cuts partitions of a first pass into smaller ones in GPU memory, with the Shared algorithm (paper 1, section 4.2). Nothing
/// waits for the work: it is queued on one stream, and the partitions say when it is done.
#[derive(Debug)]
pub struct SecondPass<'a> {
    stream: &'a Stream,
    tuples: u64,
    /// Memory for copies of keys and values. As the stream runs one pass after another, all passes share it.
    copy: Option<[Arc<DeviceBuffer>; 2]>,
}

/// The tuples of a partition: keys of 8 bytes, and values.
#[derive(Debug, Clone)]
pub struct SecondPassInput {
    /// The keys.
    pub keys: SharedView,
    /// A value for each key.
    pub values: SharedView,
    /// The bytes of a value, 4 or 8.
    pub value_bytes: u64,
    /// Whether some of them are in CPU memory.
    pub is_spilled: bool,
}

/// Tuples in GPU memory, partitioned so that the partitions of a build side should fit the scratchpad.
#[derive(Debug)]
pub struct FinePartitions {
    keys: DeviceBuffer,
    values: DeviceBuffer,
    value_bytes: u64,
    extents: Extents,
    radix: Radix,
    tuples: u64,
}

impl SecondPassInput {
    /// The number of tuples.
    pub fn tuples(&self) -> u64 {
        self.keys.bytes() / KeyWidth::Eight.bytes()
    }
}

impl FinePartitions {
    /// The keys.
    pub fn keys(&self) -> View<'_> {
        self.keys.view()
    }

    /// The values, and the bytes of each.
    pub fn values(&self) -> (View<'_>, u64) {
        (self.values.view(), self.value_bytes)
    }

    /// Where the partitions are.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// The bits of the second pass.
    pub fn radix(&self) -> Radix {
        self.radix
    }

    /// The number of tuples.
    pub fn tuples(&self) -> u64 {
        self.tuples
    }

    /// Bytes of GPU memory that the partitions take.
    pub fn bytes(&self) -> u64 {
        self.keys.bytes() + self.values.bytes()
    }
}

impl<'a> SecondPass<'a> {
    /// Creates passes that `stream` runs one after another, over at most `tuples` tuples each.
    pub fn new(stream: &'a Stream, tuples: u64) -> Self {
        Self { stream, tuples, copy: None }
    }

    /// Queues the pass over some tuples. If some of them are in CPU memory, kernels copy them to GPU memory while they count
    /// them, so that they cross the link only once (section 6.2.3).
    ///
    /// # Errors
    /// If memory for the partitions or for the copy is not available, there are more tuples than was said, the scratchpad is too
    /// small for the fanout, or the device fails.
    pub fn queue(
        &mut self,
        kernels: &Kernels,
        input: &SecondPassInput,
        radix: Radix,
    ) -> Result<Queued<FinePartitions>> {
        let (tuples, value_bytes) = (input.tuples(), input.value_bytes);
        let key = KeyWidth::Eight;
        let plan =
            PartitionPlan::new(kernels, Algorithm::Shared, key, &[value_bytes], radix, tuples, 0)?.within_gpu()?;
        let (room, device) = (plan.output_tuples(), kernels.device());
        let mut keys = DeviceBuffer::new(device, room * key.bytes())?;
        let mut values = DeviceBuffer::new(device, room * value_bytes)?;
        let copy = if input.is_spilled { Some(self.copy()?) } else { None };
        let mut partitioner = Partitioner::new(kernels, plan)?;
        let from = Input { keys: input.keys.view()?, payloads: vec![PayloadInput::Column(input.values.view()?)] };
        let mut output = Output { keys: keys.view_mut(), payloads: vec![values.view_mut()] };
        // SAFETY: the input, the copy, the partitioner and the columns live until the work is done, in what is returned. Other
        // passes use the copy only on the same stream, before or after this one.
        let queued = unsafe {
            let mut copied = copy.as_ref().map(|[keys, values]| Output {
                keys: keys.view_mut_of_shared(),
                payloads: vec![values.view_mut_of_shared()],
            });
            partitioner.queue(self.stream, &from, copied.as_mut(), &mut output)
        };
        let extents = queued?;
        let fine = FinePartitions { keys, values, value_bytes, extents, radix, tuples };
        Queued::new(self.stream, fine, (partitioner, copy, input.clone()))
    }

    /// The stream that runs the passes.
    pub fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// Returns the memory for copies.
    fn copy(&mut self) -> Result<[Arc<DeviceBuffer>; 2]> {
        if let Some(copy) = &self.copy {
            return Ok(copy.clone());
        }
        let column = || DeviceBuffer::new(self.stream.device(), self.tuples * COLUMN).map(Arc::new);
        Ok(self.copy.insert([column()?, column()?]).clone())
    }
}
