//! A relation after its first pass, and parts of it after the second.

use overspill_kernels::{
    Algorithm, Input, JoinSide, Output, PartitionPlan, PartitionedSide, Partitioner, PayloadInput,
};
use overspill_kernels::{Radix, Values};
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, Layout, Mapping, SpanningBuffer, SpanningLayout, View};
use overspill_machine::{Error, Result};

use crate::device::{Gpu, KEY};

/// Bytes of a stretch of pages in one memory.
const STRIPE: u64 = 2 << 20;

const KEY_BYTES: u64 = 8;

/// Columns that kernels read, of which there is a value for each key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) keys: View<'a>,
    pub(super) values: Values<'a>,
}

impl Columns<'_> {
    fn tuples(&self) -> u64 {
        self.keys.bytes() / KEY_BYTES
    }

    /// Bytes of a value, and where it comes from.
    fn payload(&self) -> (u64, PayloadInput<'_>) {
        match self.values {
            Values::Four(view) => (4, PayloadInput::Column(view)),
            Values::Eight(view) => (8, PayloadInput::Column(view)),
            Values::RowIds(first) if first + self.tuples() <= u64::from(u32::MAX) => (4, PayloadInput::RowIds(first)),
            Values::RowIds(first) => (8, PayloadInput::RowIds(first)),
        }
    }
}

/// A relation that the first pass has partitioned, in pages of which some lie in GPU memory and the others in CPU memory.
#[derive(Debug)]
pub(super) struct PartitionedRelation {
    keys: SpanningBuffer,
    values: SpanningBuffer,
    value_bytes: u64,
    /// Where each partition starts, and how many tuples it has.
    pub(super) partitions: Vec<(u64, u64)>,
    /// Bytes that crossed the link.
    pub(super) link_bytes: u64,
}

impl PartitionedRelation {
    /// Partitions columns in CPU memory with the Hierarchical algorithm (paper 1, section 4.3), or with Shared where its second
    /// level finds no room. `cached` bytes of the result may lie in GPU memory.
    pub(super) fn new(gpu: &Gpu, stream: &Stream, columns: &Columns<'_>, radix: Radix, cached: u64) -> Result<Self> {
        let tuples = columns.tuples();
        let (value_bytes, payload) = columns.payload();
        let plan_with = |algorithm| {
            PartitionPlan::new(gpu.kernels(), algorithm, KEY, &[value_bytes], radix, tuples, gpu.workspace() / 4)
        };
        let plan = match plan_with(Algorithm::Hierarchical) {
            Err(Error::TooSmall { .. }) => plan_with(Algorithm::Shared)?,
            plan => plan?,
        };
        let room = plan.output_tuples();
        let tuple = KEY_BYTES + value_bytes;
        let buffer = |width: u64| {
            let bytes = (room * width).max(width);
            let share = match gpu.mapping() {
                Mapping::Contiguous => cached * width / tuple,
                // Only as a whole, as two arrays have no common addresses.
                Mapping::TwoArrays if cached >= room * tuple => bytes,
                Mapping::TwoArrays => 0,
            };
            let layout = SpanningLayout {
                layout: Layout::Interleaved,
                bytes,
                device_bytes: vec![share],
                stripe_bytes: STRIPE,
                node: gpu.node(),
            };
            SpanningBuffer::new(std::slice::from_ref(gpu.device()), &layout, gpu.mapping())
        };
        let (mut keys, mut values) = (buffer(KEY_BYTES)?, buffer(value_bytes)?);
        let input = Input { keys: columns.keys, payloads: vec![payload] };
        let read = if matches!(payload, PayloadInput::Column(_)) { value_bytes } else { 0 };
        let partitions = if tuples == 0 {
            vec![(0, 0); radix.fanout() as usize]
        } else {
            let mut output = Output { keys: keys.view_mut()?, payloads: vec![values.view_mut()?] };
            Partitioner::new(gpu.kernels(), plan)?.run(stream, &input, &mut output)?
        };
        let mut relation = Self { keys, values, value_bytes, partitions, link_bytes: 0 };
        // Keys are read once more to be counted (section 6.2.3, PS 1).
        let written = (tuples as f64 * tuple as f64 * relation.spilled_share()) as u64;
        relation.link_bytes = tuples * (2 * KEY_BYTES + read) + written;
        Ok(relation)
    }

    /// Bytes of memory that the partitions of so many tuples take, in all memories.
    pub(super) fn bytes(tuples: u64, radix: Radix) -> u64 {
        const MOST_ALIGNMENT: u64 = 256;
        (tuples + u64::from(radix.fanout()) * MOST_ALIGNMENT) * 2 * KEY_BYTES + 2 * STRIPE
    }

    /// Bytes of CPU memory that so many tuples take if none is cached, of a fanout that suits them.
    pub(super) fn host_bytes(tuples: usize) -> usize {
        tuples * 5 / 2 * KEY_BYTES as usize + 2 * STRIPE as usize
    }

    /// Bytes of it in CPU memory.
    pub(super) fn spilled_bytes(&self) -> u64 {
        [&self.keys, &self.values].iter().map(|buffer| buffer.bytes() - buffer.device_bytes().min(buffer.bytes())).sum()
    }

    /// The share of it in CPU memory.
    pub(super) fn spilled_share(&self) -> f64 {
        self.spilled_bytes() as f64 / (self.keys.bytes() + self.values.bytes()) as f64
    }

    /// Partitions some of its tuples further, in GPU memory. Those that lie in CPU memory are copied to GPU memory while they are
    /// counted, so that they cross the link once (section 6.2.3).
    pub(super) fn refine(
        &self,
        gpu: &Gpu,
        stream: &Stream,
        first: u64,
        tuples: u64,
        radix: Radix,
    ) -> Result<FinePartitions> {
        let plan = PartitionPlan::new(gpu.kernels(), Algorithm::Shared, KEY, &[self.value_bytes], radix, tuples, 0)?;
        let room = plan.output_tuples();
        let column = |tuples: u64, width: u64| DeviceBuffer::new(gpu.device(), tuples * width);
        let mut fine = FinePartitions {
            keys: column(room, KEY_BYTES)?,
            values: column(room, self.value_bytes)?,
            value_bytes: self.value_bytes,
            partitions: Vec::new(),
        };
        let input = Input {
            keys: self.keys.view()?.slice(first * KEY_BYTES, tuples * KEY_BYTES)?,
            payloads: vec![PayloadInput::Column(
                self.values.view()?.slice(first * self.value_bytes, tuples * self.value_bytes)?,
            )],
        };
        let mut partitioner = Partitioner::new(gpu.kernels(), plan)?;
        let mut output = Output { keys: fine.keys.view_mut(), payloads: vec![fine.values.view_mut()] };
        fine.partitions = if self.spilled_bytes() == 0 {
            partitioner.run(stream, &input, &mut output)?
        } else {
            let (mut keys, mut values) = (column(tuples, KEY_BYTES)?, column(tuples, self.value_bytes)?);
            let mut copy = Output { keys: keys.view_mut(), payloads: vec![values.view_mut()] };
            partitioner.run_copying(stream, &input, &mut copy, &mut output)?
        };
        Ok(fine)
    }

    /// Bytes of the link that reading so many tuples takes.
    pub(super) fn link_bytes_of(&self, tuples: u64) -> u64 {
        (tuples as f64 * (KEY_BYTES + self.value_bytes) as f64 * self.spilled_share()) as u64
    }
}

/// A part of a relation in GPU memory, whose partitions are meant to fit the scratchpad.
#[derive(Debug)]
pub(super) struct FinePartitions {
    keys: DeviceBuffer,
    values: DeviceBuffer,
    value_bytes: u64,
    partitions: Vec<(u64, u64)>,
}

impl FinePartitions {
    pub(super) fn side(&self) -> PartitionedSide<'_> {
        let values = match self.value_bytes {
            4 => Values::Four(self.values.view()),
            _ => Values::Eight(self.values.view()),
        };
        PartitionedSide { side: JoinSide { keys: self.keys.view(), values }, partitions: &self.partitions }
    }
}
