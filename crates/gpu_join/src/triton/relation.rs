//! A relation before and after its first pass.

use std::sync::Arc;

use overspill_kernels::{
    Algorithm, CountedKeys, Input, JoinSide, Output, PartitionPlan, Partitioner, PayloadInput, Radix, SecondPassInput,
    Values,
};
use overspill_machine::driver::Stream;
use overspill_machine::memory::{Layout, Mapping, SharedView, SpanningBuffer, SpanningLayout, View};
use overspill_machine::transfer::{PooledBuffer, Source};
use overspill_machine::{Error, Result};
use tracing::debug_span;

use crate::device::{Gpu, KEY};
use crate::radix::{FIRST_PASS, FirstPass, LINE_TUPLES, Tuples};

/// Bytes of consecutive pages in the same memory, for small relations and for large ones. Mapping takes the driver as long for a
/// large stripe as for a small one, but a relation needs many stripes to be an even mix of both memories.
const STRIPE: u64 = 2 << 20;
const LARGE_STRIPE: u64 = 32 << 20;
/// Stripes of a relation that is large.
const MANY_STRIPES: u64 = 16;

const KEY_BYTES: u64 = 8;

/// Bytes of a stripe of a relation, or of both its columns, with `bytes` bytes.
fn stripe_bytes(bytes: u64) -> u64 {
    if bytes >= MANY_STRIPES * LARGE_STRIPE { LARGE_STRIPE } else { STRIPE }
}

/// Returns the bytes per value in a partitioned relation, and the source of the values.
fn payload<'a>(side: &JoinSide<'a>, tuples: u64) -> (u64, PayloadInput<'a>) {
    match side.values {
        Values::Four(view) => (4, PayloadInput::Column(view)),
        Values::Eight(view) => (8, PayloadInput::Column(view)),
        Values::RowIds(first) if first + tuples <= u64::from(u32::MAX) => (4, PayloadInput::RowIds(first)),
        Values::RowIds(first) => (8, PayloadInput::RowIds(first)),
    }
}

/// A relation before its first pass, with the plan for that pass.
#[derive(Debug)]
pub(super) struct BaseRelation<'a> {
    plan: PartitionPlan,
    keys: BaseKeys<'a>,
    payload: PayloadInput<'a>,
    value_bytes: u64,
}

/// The keys, by the processor that counts them.
#[derive(Debug)]
enum BaseKeys<'a> {
    /// A kernel will read and count them.
    Uncounted(View<'a>),
    /// The CPU has counted them.
    Counted(CountedKeys<'a>),
}

impl<'a> BaseRelation<'a> {
    /// Creates a relation from columns in CPU memory. If `algorithm` is `None`, uses Hierarchical (paper 1, section 4.3), or
    /// Shared if there is no room for Hierarchical's second level.
    pub(super) fn new(gpu: &Gpu, side: &JoinSide<'a>, radix: Radix, algorithm: Option<Algorithm>) -> Result<Self> {
        let tuples = side.keys.bytes() / KEY_BYTES;
        let (value_bytes, payload) = payload(side, tuples);
        let plan_with = |algorithm| {
            PartitionPlan::new(&gpu.kernels, algorithm, KEY, &[value_bytes], radix, tuples, gpu.workspace() / 4)
        };
        let plan = match plan_with(algorithm.unwrap_or(Algorithm::Hierarchical)) {
            Err(Error::TooSmall { .. }) if algorithm.is_none() => plan_with(Algorithm::Shared)?,
            plan => plan?,
        };
        Ok(Self { plan, keys: BaseKeys::Uncounted(side.keys), payload, value_bytes })
    }

    /// Counts the keys, which are the first keys in `keys`, on the CPU with `threads` threads (paper 1, section 6.2.8). Returns
    /// false if the CPU does not read this kind of memory.
    pub(super) fn count(&mut self, gpu: &Gpu, keys: &'a PooledBuffer, threads: usize) -> Result<bool> {
        let Source::Host(buffer) = keys.source()? else { return Ok(false) };
        let _counting = debug_span!("count keys", rows = self.plan.tuples()).entered();
        self.keys = BaseKeys::Counted(CountedKeys::new(gpu.device(), &self.plan, buffer, threads)?);
        Ok(true)
    }

    pub(super) fn tuples(&self) -> u64 {
        self.plan.tuples()
    }

    /// Bytes that cross the link in the first pass, excluding the output.
    fn link_bytes(&self) -> u64 {
        let tuples = self.plan.tuples();
        let read = if matches!(self.payload, PayloadInput::Column(_)) { self.value_bytes } else { 0 };
        // Either the keys cross once more to be counted (section 6.2.3, PS 1), or the counts cross.
        let counting = match &self.keys {
            BaseKeys::Uncounted(_) => tuples * KEY_BYTES,
            BaseKeys::Counted(_) if tuples == 0 => 0,
            BaseKeys::Counted(keys) => keys.count_bytes(),
        };
        tuples * (KEY_BYTES + read) + counting
    }
}

/// Memory for a partitioned relation, with pages in GPU memory and pages in CPU memory.
#[derive(Debug)]
pub(super) struct RelationMemory {
    keys: SpanningBuffer,
    values: SpanningBuffer,
}

impl RelationMemory {
    /// Provides memory for the partitions of `base`, at most `cached` bytes of it in GPU memory.
    pub(super) fn new(gpu: &Gpu, base: &BaseRelation<'_>, cached: u64) -> Result<Self> {
        let (room, value_bytes) = (base.plan.output_tuples(), base.value_bytes);
        let tuple = KEY_BYTES + value_bytes;
        let buffer = |width: u64| {
            let bytes = (room * width).max(width);
            let share = match gpu.mapping {
                Mapping::Contiguous => cached * width / tuple,
                // All or nothing, as two arrays do not form one address range.
                Mapping::TwoArrays if cached >= room * tuple => bytes,
                Mapping::TwoArrays => 0,
            };
            let layout = SpanningLayout {
                layout: Layout::Interleaved,
                bytes,
                device_bytes: vec![share],
                stripe_bytes: stripe_bytes(bytes),
                node: gpu.node,
            };
            SpanningBuffer::new(std::slice::from_ref(gpu.device()), &layout, gpu.mapping)
        };
        Ok(Self { keys: buffer(KEY_BYTES)?, values: buffer(value_bytes)? })
    }
}

/// A relation partitioned by the first pass, with pages in GPU memory and pages in CPU memory.
#[derive(Debug)]
pub(crate) struct PartitionedRelation {
    keys: Arc<SpanningBuffer>,
    values: Arc<SpanningBuffer>,
    value_bytes: u64,
    /// First tuple and number of tuples of each partition.
    partitions: Vec<(u64, u64)>,
    /// Bytes that crossed the link in the first pass.
    pub(super) link_bytes: u64,
}

impl PartitionedRelation {
    /// Partitions a relation in CPU memory, to memory that was provided for it.
    pub(super) fn new(gpu: &Gpu, stream: &Stream, base: BaseRelation<'_>, memory: RelationMemory) -> Result<Self> {
        let (tuples, link_bytes) = (base.plan.tuples(), base.link_bytes());
        let _partitioning = debug_span!(FIRST_PASS, rows = tuples).entered();
        let BaseRelation { plan, keys: base_keys, payload, value_bytes } = base;
        let RelationMemory { mut keys, mut values } = memory;
        let partitions = if tuples == 0 {
            vec![(0, 0); plan.radix().fanout() as usize]
        } else {
            let mut output = Output { keys: keys.view_mut()?, payloads: vec![values.view_mut()?] };
            let mut partitioner = Partitioner::new(&gpu.kernels, plan)?;
            match &base_keys {
                BaseKeys::Counted(keys) => partitioner.run_counted(stream, keys, vec![payload], &mut output)?,
                BaseKeys::Uncounted(keys) => {
                    partitioner.run(stream, &Input { keys: *keys, payloads: vec![payload] }, &mut output)?
                }
            }
        };
        let (keys, values) = (Arc::new(keys), Arc::new(values));
        let mut relation = Self { keys, values, value_bytes, partitions, link_bytes };
        relation.link_bytes += (tuples as f64 * (KEY_BYTES + value_bytes) as f64 * relation.spilled_share()) as u64;
        Ok(relation)
    }

    /// Bytes that the partitions of `tuples` tuples take in all memories.
    pub(super) fn bytes_of(tuples: u64, radix: Radix) -> u64 {
        const MOST_ALIGNMENT: u64 = 256;
        let bytes = (tuples + u64::from(radix.fanout()) * MOST_ALIGNMENT) * 2 * KEY_BYTES;
        bytes + 2 * stripe_bytes(bytes)
    }

    /// Bytes of CPU memory that `tuples` tuples take if none is cached, with a suitable fanout.
    pub(crate) fn host_bytes(tuples: usize) -> usize {
        let bytes = tuples * 5 / 2 * KEY_BYTES as usize;
        bytes + 2 * stripe_bytes(bytes as u64) as usize
    }

    /// The share of the relation's bytes in CPU memory.
    fn spilled_share(&self) -> f64 {
        self.spilled_bytes() as f64 / self.bytes() as f64
    }
}

impl FirstPass for PartitionedRelation {
    fn is_staged(&self) -> bool {
        false
    }

    fn fanout(&self) -> usize {
        self.partitions.len()
    }

    fn tuples(&self, partition: usize) -> u64 {
        self.partitions[partition].1
    }

    fn pieces<'a>(&'a self, _: &'a Gpu, partition: usize, most: u64) -> Box<dyn Iterator<Item = Result<Tuples>> + 'a> {
        let (start, tuples) = self.partitions[partition];
        debug_assert!(most > 0 && most.is_multiple_of(LINE_TUPLES), "columns of a piece start where lines do");
        Box::new((0..tuples.div_ceil(most)).map(move |number| {
            let (first, count) = (start + number * most, most.min(tuples - number * most));
            let column = |buffer: &Arc<SpanningBuffer>, width| {
                SharedView::new(Arc::clone(buffer) as _, first * width, count * width)
            };
            let (keys, values) = (column(&self.keys, KEY_BYTES)?, column(&self.values, self.value_bytes)?);
            let spilled_share = self.spilled_share();
            let (value_bytes, is_spilled) = (self.value_bytes, spilled_share > 0.0);
            Ok(Tuples::in_place(SecondPassInput { keys, values, value_bytes, is_spilled }, spilled_share))
        }))
    }

    fn bytes(&self) -> u64 {
        self.keys.bytes() + self.values.bytes()
    }

    fn spilled_bytes(&self) -> u64 {
        [&self.keys, &self.values].iter().map(|buffer| buffer.bytes() - buffer.device_bytes().min(buffer.bytes())).sum()
    }
}
