//! Tables that all blocks build and probe (paper 2, section 2.1).

use std::ops::Range;
use std::sync::Arc;

use overspill_machine::driver::{Arguments, Device, Function, LaunchShape, Stream};
use overspill_machine::memory::{
    AtomicNumber, DeviceBuffer, HostBuffer, Layout, Mapping, PageSize, SpanningBuffer, SpanningLayout,
};
use overspill_machine::transfer::{Source, TransferPipeline};
use overspill_machine::{Error, Result};

use super::arguments::{HashTableArguments, JoinInput, JoinOutput, JoinSide, Pairs, Totals, Values};
use super::host_slots::{HostSlots, Lists, SharedLists, SharedSlots, SlotLayout};
use super::host_threads::fill;
use crate::{HashFunction, Kernels, KeyWidth, PrefixSum};

/// Enough of them to hide latency; each takes tuples until there are none.
const THREADS: u32 = 256;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;
/// Of a table that spans two memories.
const STRIPE: u64 = 2 << 20;
/// Of smaller arrays in CPU memory huge pages would be a waste.
const HUGE_PAGE: usize = 2 << 20;
/// Each byte of an empty slot.
const EMPTY: u8 = 0xFF;

/// Which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// For unique keys from `smallest_key` on, `slots` of them at most.
    Perfect {
        /// The key of the first slot.
        smallest_key: u64,
        /// How many keys the range has.
        slots: u64,
    },
    /// Open addressing, at most half full.
    LinearProbing,
    /// Each key once, with its values side by side.
    MultiValue,
}

impl TableKind {
    fn name(self) -> &'static str {
        match self {
            Self::Perfect { .. } => "perfect",
            Self::LinearProbing => "linear_probing",
            Self::MultiValue => "multi_value",
        }
    }
}

/// Where the slots of a table lie. What else a multi-value table has lies in GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TablePlacement {
    /// In GPU memory.
    Device,
    /// In GPU memory as far as it goes, and then in the CPU's: the hybrid hash table of paper 2, section 5.3. Kernels see
    /// one range of addresses, which takes virtual memory management ([`Mapping::Contiguous`]) unless one memory holds all.
    Spanning {
        /// Bytes of GPU memory for it.
        device_bytes: u64,
        /// The NUMA node of the rest, that which is nearest the GPU.
        node: u32,
        /// Whether the driver maps CPU pages.
        mapping: Mapping,
    },
    /// In CPU memory that the CPU reads and writes as well: the shared table of paper 2, section 6.2.
    Host,
}

#[derive(Debug)]
enum Slots {
    Device(DeviceBuffer),
    Spanning(SpanningBuffer),
    Host(HostBuffer, Arc<Device>),
}

impl Slots {
    fn new(device: &Arc<Device>, placement: TablePlacement, bytes: u64) -> Result<Self> {
        match placement {
            TablePlacement::Device => DeviceBuffer::new(device, bytes).map(Self::Device),
            TablePlacement::Spanning { device_bytes, node, mapping } => {
                let layout = SpanningLayout {
                    layout: Layout::Greedy,
                    bytes,
                    device_bytes: vec![device_bytes],
                    stripe_bytes: STRIPE,
                    node,
                };
                let buffer = SpanningBuffer::new(std::slice::from_ref(device), &layout, mapping)?;
                // Two arrays without one range of addresses are refused now, not when the table is built.
                buffer.view()?;
                Ok(Self::Spanning(buffer))
            }
            TablePlacement::Host => {
                let bytes =
                    usize::try_from(bytes).map_err(|_| Error::Invalid(format!("{bytes} bytes of CPU memory")))?;
                // A buffer takes whole pages.
                let pages = if bytes < HUGE_PAGE { PageSize::Small } else { PageSize::Huge };
                let buffer = match device.properties().coherent {
                    true => HostBuffer::new(bytes, pages)?,
                    false => HostBuffer::pinned(device, bytes, pages)?,
                };
                Ok(Self::Host(buffer, Arc::clone(device)))
            }
        }
    }

    fn fill(&mut self, stream: &Stream, byte: u8) -> Result<()> {
        match self {
            Self::Device(buffer) => buffer.fill(stream, byte),
            Self::Spanning(buffer) => buffer.fill(stream, byte),
            Self::Host(buffer, _) => {
                buffer.as_mut_slice::<u8>().fill(byte);
                Ok(())
            }
        }
    }

    /// As words that the CPU reads.
    fn on_host(&self) -> Result<&[u64]> {
        match self {
            Self::Host(buffer, _) => Ok(buffer.as_slice()),
            Self::Device(_) | Self::Spanning(_) => Err(not_on_host()),
        }
    }

    /// As numbers that several threads write, all of whose bytes are this one now; so many threads see to that.
    fn shared<A: AtomicNumber>(&mut self, byte: u8, threads: usize) -> Result<&[A]> {
        match self {
            Self::Host(buffer, _) => {
                fill(buffer.as_mut_slice(), byte, threads);
                Ok(buffer.as_atomic_slice())
            }
            Self::Device(_) | Self::Spanning(_) => Err(not_on_host()),
        }
    }

    fn address(&self) -> Result<u64> {
        match self {
            Self::Device(buffer) => Ok(buffer.view().address()),
            Self::Spanning(buffer) => Ok(buffer.view()?.address()),
            Self::Host(buffer, device) => Ok(buffer.view(device)?.address()),
        }
    }
}

/// The kernels of a kind of table. They are loaded with it: loading waits for kernels that run, and so would put others that
/// should run together one after the other.
#[derive(Debug)]
struct TableKernels {
    build: Function,
    /// The second pass of building a multi-value table.
    fill: Option<Function>,
    aggregate: Function,
    allocate: Function,
    count: Function,
    write: Function,
}

impl TableKernels {
    fn load(kernels: &Kernels, kind: TableKind, key: KeyWidth) -> Result<Self> {
        let kernel = |name: &str| kernels.function(&format!("{name}_u{}", key.bytes() * 8));
        let probe = |sink: &str| kernel(&format!("probe_{}_{sink}", kind.name()));
        let is_multi_value = kind == TableKind::MultiValue;
        Ok(Self {
            build: if is_multi_value {
                kernel("count_multi_value")?
            } else {
                kernel(&format!("build_{}", kind.name()))?
            },
            fill: is_multi_value.then(|| kernel("fill_multi_value")).transpose()?,
            aggregate: probe("aggregate")?,
            allocate: probe("allocate")?,
            count: probe("count")?,
            write: probe("write")?,
        })
    }
}

/// A hash table.
#[derive(Debug)]
pub struct HashTable {
    kernels: Kernels,
    table_kernels: TableKernels,
    kind: TableKind,
    key: KeyWidth,
    capacity: u64,
    bits: u32,
    hash: HashFunction,
    slots: Slots,
    claims: Slots,
    slot_keys: Slots,
    starts: Slots,
    filled: Slots,
    values: Slots,
}

impl HashTable {
    /// An empty table for at most `capacity` tuples. It takes 8 bytes for each key of the range (perfect); 8 or 16 for each
    /// slot of twice the capacity, rounded up to a power of two (linear probing, keys of 4 or 8 bytes); or for each such slot 20
    /// and a key, and 8 for each tuple (multi-value).
    ///
    /// # Errors
    /// If there is no memory for it, or no range of addresses over two memories.
    pub fn new(
        kernels: &Kernels,
        kind: TableKind,
        key: KeyWidth,
        capacity: u64,
        hash: HashFunction,
        placement: TablePlacement,
    ) -> Result<Self> {
        let device = kernels.device();
        let slot_count = capacity
            .max(1)
            .checked_mul(2)
            .and_then(u64::checked_next_power_of_two)
            .ok_or_else(|| Error::Invalid(format!("a hash table of {capacity} tuples")))?;
        // A range of keys may be as wide as keys are: a product that wraps would be a small buffer for a large table.
        let bytes_of = |count: u64, width: u64| {
            let bytes = count.checked_mul(width);
            bytes.ok_or_else(|| Error::Invalid(format!("a hash table of {count} slots of {width} bytes")))
        };
        let is_multi_value = kind == TableKind::MultiValue;
        let slots = match (kind, key) {
            (TableKind::Perfect { slots, .. }, _) => bytes_of(slots, 8)?,
            (TableKind::LinearProbing, KeyWidth::Four) => bytes_of(slot_count, 8)?,
            (TableKind::LinearProbing, KeyWidth::Eight) => bytes_of(slot_count, 16)?,
            (TableKind::MultiValue, _) => 0,
        };
        // Those of kinds that have none, and those that kernels alone use, are the device's.
        let arrays =
            if placement == TablePlacement::Host && is_multi_value { placement } else { TablePlacement::Device };
        let buffer = |count: u64, width: u64| {
            Slots::new(device, arrays, if is_multi_value { bytes_of(count, width)? } else { 0 })
        };
        Ok(Self {
            // A multi-value table has none.
            slots: Slots::new(device, if is_multi_value { TablePlacement::Device } else { placement }, slots)?,
            claims: buffer(slot_count, 8)?,
            slot_keys: buffer(slot_count, key.bytes())?,
            starts: buffer(slot_count + 1, 8)?,
            filled: buffer(slot_count, 4)?,
            values: buffer(capacity, 8)?,
            kernels: kernels.clone(),
            table_kernels: TableKernels::load(kernels, kind, key)?,
            kind,
            key,
            capacity,
            bits: slot_count.ilog2(),
            hash,
        })
    }

    /// Fills the table with the build side, and waits for it. What was in it before is gone.
    ///
    /// Returns how many tuples it could not take: for perfect hashing those whose key is there already or out of range, for linear
    /// probing those of keys with hundreds of duplicates. If there are any, the table must not be probed: another kind is
    /// needed.
    ///
    /// # Errors
    /// If there are more tuples than the capacity, or the device fails.
    pub fn build(&mut self, stream: &Stream, side: &JoinSide<'_>) -> Result<u64> {
        let input = side.arguments(self.key)?;
        if input.tuples() > self.capacity {
            return Err(Error::Invalid(format!("{} tuples for a hash table of {}", input.tuples(), self.capacity)));
        }
        self.slots.fill(stream, EMPTY)?;
        self.claims.fill(stream, EMPTY)?;
        self.starts.fill(stream, 0)?;
        self.filled.fill(stream, 0)?;
        let mut refused = DeviceBuffer::from_slice(stream, &[0u64])?;
        let place = refused.view_mut().address();
        let table = self.arguments()?;
        let shape = self.shape();
        let with = Arguments::default();
        // SAFETY: the parameters are the kernel's own; the table was made for as many tuples; everything borrowed outlives the
        // stream's work, which is waited for here, also after an error.
        let launched =
            unsafe { self.table_kernels.build.launch(stream, shape, with.with(&input).with(&table).with(&place)) };
        stream.synchronize().and(launched)?;
        if let Some(fill) = &self.table_kernels.fill {
            let slots = 1 << self.bits;
            let mut prefix_sum = PrefixSum::new(&self.kernels, slots + 1)?;
            let Slots::Device(starts) = &mut self.starts else {
                return Err(Error::Invalid("a multi-value table in CPU memory, which the CPU fills".to_owned()));
            };
            prefix_sum.run_in_place(stream, starts.view_mut())?;
            // SAFETY: as above.
            let launched = unsafe { fill.launch(stream, shape, Arguments::default().with(&input).with(&table)) };
            stream.synchronize().and(launched)?;
        }
        Ok(refused.read::<u64>(stream, 1)?[0])
    }

    /// Begins to fill a table in CPU memory, by the CPU and, where the link has system-wide atomics, by kernels at the same time
    /// (paper 2, section 6.2). What was in it before is gone, which so many threads see to.
    ///
    /// # Errors
    /// If the table is not in CPU memory, or of a width of keys that the CPU does not know.
    pub fn build_shared(&mut self, threads: usize) -> Result<SharedBuild<'_>> {
        let layout = self.slot_layout()?;
        let (arguments, shape) = (self.arguments()?, self.shape());
        if self.kind == TableKind::MultiValue {
            return Ok(SharedBuild::Lists(SharedLists {
                layout,
                claims: self.claims.shared(EMPTY, threads)?,
                keys: self.slot_keys.shared(EMPTY, threads)?,
                starts: self.starts.shared(0, threads)?,
                filled: self.filled.shared(0, threads)?,
                values: self.values.shared(EMPTY, threads)?,
            }));
        }
        let kernel = match self.kernels.device().properties().host_native_atomics {
            true => Some(self.kernels.function(&format!("build_shared_{}_u64", self.kind.name()))?),
            false => None,
        };
        let slots = SharedSlots::new(layout, self.slots.shared(EMPTY, threads)?);
        let by_kernel = |kernel| BuildKernel { kernel, arguments, shape, key: self.key, _slots: slots };
        Ok(SharedBuild::Slots(slots, kernel.map(by_kernel)))
    }

    /// The slots of a table in CPU memory, for lookups by the CPU.
    ///
    /// # Errors
    /// If the table is not in CPU memory, or of a width of keys that the CPU does not know.
    pub fn host_slots(&self) -> Result<HostSlots<'_>> {
        let layout = self.slot_layout()?;
        Ok(match self.kind {
            TableKind::MultiValue => {
                let lists = Lists {
                    keys: self.slot_keys.on_host()?,
                    starts: self.starts.on_host()?,
                    values: self.values.on_host()?,
                };
                HostSlots::new(layout, self.claims.on_host()?, lists)
            }
            _ => HostSlots::new(layout, self.slots.on_host()?, Lists { keys: &[], starts: &[], values: &[] }),
        })
    }

    /// Copies a table in GPU memory to `words`, as long as [`HashTable::words`] says, and waits for it.
    ///
    /// # Errors
    /// If the table is elsewhere, there is no room for it, or the device fails.
    pub fn copy_to_host(&self, stream: &Stream, words: &mut [u64]) -> Result<()> {
        let mut rest = words;
        for (array, length) in self.arrays() {
            let Some((part, others)) =
                usize::try_from(length).ok().and_then(|length| rest.split_at_mut_checked(length))
            else {
                return Err(Error::Invalid("a copy of a hash table without room for it".to_owned()));
            };
            match array {
                Slots::Device(buffer) => buffer.read_into(stream, part)?,
                Slots::Spanning(_) | Slots::Host(..) => {
                    return Err(Error::Invalid("a copy of a table that is not in GPU memory alone".to_owned()));
                }
            }
            rest = others;
        }
        Ok(())
    }

    /// Words of 8 bytes that a copy for the CPU has.
    pub fn words(&self) -> u64 {
        self.arrays().into_iter().map(|(_, length)| length).sum()
    }

    /// A copy made by [`HashTable::copy_to_host`], for lookups by the CPU.
    ///
    /// # Errors
    /// If the table is of a width of keys that the CPU does not know, or the copy is too short.
    pub fn slots_in<'a>(&self, copy: &'a [u64]) -> Result<HostSlots<'a>> {
        let mut parts: [&[u64]; 4] = [&[]; 4];
        let mut rest = copy;
        for (part, (_, length)) in parts.iter_mut().zip(self.arrays()) {
            let split = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
            (*part, rest) = split.ok_or_else(|| Error::Invalid("a copy of another hash table".to_owned()))?;
        }
        let [slots, keys, starts, values] = parts;
        Ok(HostSlots::new(self.slot_layout()?, slots, Lists { keys, starts, values }))
    }

    /// What lookups read, with the words of each: slots, or claims, keys, starts and values.
    fn arrays(&self) -> Vec<(&Slots, u64)> {
        let slot_count = 1 << self.bits;
        match self.kind {
            TableKind::Perfect { slots, .. } => vec![(&self.slots, slots)],
            TableKind::LinearProbing => vec![(&self.slots, 2 * slot_count)],
            TableKind::MultiValue => vec![
                (&self.claims, slot_count),
                (&self.slot_keys, slot_count),
                (&self.starts, slot_count + 1),
                (&self.values, self.capacity),
            ],
        }
    }

    fn slot_layout(&self) -> Result<SlotLayout> {
        if self.key != KeyWidth::Eight {
            let bytes = self.key.bytes();
            return Err(Error::Invalid(format!("a table of keys of {bytes} bytes, which the CPU does not know")));
        }
        Ok(SlotLayout::new(self.kind, self.bits, self.hash))
    }

    /// Joins and sums.
    ///
    /// # Errors
    /// If the device fails or has no memory for 16 bytes.
    pub fn probe_aggregate(&self, stream: &Stream, side: &JoinSide<'_>) -> Result<Totals> {
        let mut totals = DeviceBuffer::from_slice(stream, &[0u64; 2])?;
        let output = JoinOutput { totals: totals.view_mut().address(), ..JoinOutput::default() };
        self.probe(stream, &self.table_kernels.aggregate, side, output)?;
        let read: Vec<u64> = totals.read(stream, 2)?;
        Ok(Totals { matches: read[0], sum: read[1] })
    }

    /// Joins and writes pairs in any order, in one pass over the probe side. Returns how many matches there are; if that is more
    /// than there is room for, the rest was not written, and the join must be repeated with more room.
    ///
    /// # Errors
    /// If the device fails.
    pub fn probe_allocate(&self, stream: &Stream, side: &JoinSide<'_>, pairs: &mut Pairs<'_>) -> Result<u64> {
        let mut cursor = DeviceBuffer::from_slice(stream, &[0u64])?;
        let output = pairs.allocated_by(cursor.view_mut().address());
        self.probe(stream, &self.table_kernels.allocate, side, output)?;
        Ok(cursor.read::<u64>(stream, 1)?[0])
    }

    /// As [`HashTable::probe_allocate`], for keys that lie in CPU memory and come by a transfer method: those in `part` of the
    /// source, in bytes. A tuple's value is its number, of which the first in the source is 0.
    ///
    /// # Errors
    /// If the method cannot read the source, the part is no keys, or the device fails.
    pub fn probe_transferred(
        &self,
        pipeline: &mut TransferPipeline,
        keys: Source<'_>,
        part: Range<u64>,
        pairs: &mut Pairs<'_>,
    ) -> Result<u64> {
        let width = self.key.bytes();
        if !part.start.is_multiple_of(width) || !part.end.is_multiple_of(width) {
            return Err(Error::Invalid(format!("keys of {width} bytes in bytes {part:?}")));
        }
        let cursor_stream = Stream::new(self.kernels.device())?;
        let mut cursor = DeviceBuffer::from_slice(&cursor_stream, &[0u64])?;
        let output = pairs.allocated_by(cursor.view_mut().address());
        let table = self.arguments()?;
        pipeline.run_part(keys, part, |stream, offset, view| {
            let side = JoinSide { keys: view, values: Values::RowIds(offset / width) };
            let input = side.arguments(self.key)?;
            let arguments = Arguments::default().with(&input).with(&table).with(&output);
            // SAFETY: the parameters are the kernel's own; what they lead to is borrowed or owned until the pipeline ends, which
            // waits for its streams, also after an error.
            unsafe { self.table_kernels.allocate.launch(stream, self.shape(), arguments) }
        })?;
        Ok(cursor.read::<u64>(&cursor_stream, 1)?[0])
    }

    /// Joins twice: first it counts matches, then `room` is asked for memory for just so many pairs, and they are written.
    /// Returns how many.
    ///
    /// # Errors
    /// Whatever `room` returns, or if the device fails.
    pub fn probe_materialize<'r>(
        &self,
        stream: &Stream,
        side: &JoinSide<'_>,
        room: impl FnOnce(u64) -> Result<Pairs<'r>>,
    ) -> Result<u64> {
        let blocks = u64::from(self.shape().blocks);
        let mut counts = DeviceBuffer::new(self.kernels.device(), blocks * 8)?;
        let output = JoinOutput { block_counts: counts.view_mut().address(), ..JoinOutput::default() };
        self.probe(stream, &self.table_kernels.count, side, output)?;
        let matches = PrefixSum::new(&self.kernels, blocks)?.run_in_place(stream, counts.view_mut())?;
        let pairs = room(matches)?;
        if pairs.capacity() < matches {
            return Err(Error::Invalid(format!("room for {} pairs, and there are {matches}", pairs.capacity())));
        }
        let output = JoinOutput {
            block_counts: counts.view_mut().address(),
            build_values: pairs.build.address(),
            probe_values: pairs.probe.address(),
            ..JoinOutput::default()
        };
        self.probe(stream, &self.table_kernels.write, side, output)?;
        Ok(matches)
    }

    fn probe(&self, stream: &Stream, kernel: &Function, side: &JoinSide<'_>, output: JoinOutput) -> Result<()> {
        let input: JoinInput = side.arguments(self.key)?;
        let table = self.arguments()?;
        // SAFETY: the parameters are the kernel's own; what they lead to is borrowed or owned by the caller until the stream's
        // work is waited for here, also after an error.
        let launched = unsafe {
            kernel.launch(stream, self.shape(), Arguments::default().with(&input).with(&table).with(&output))
        };
        stream.synchronize().and(launched)
    }

    fn shape(&self) -> LaunchShape {
        self.kernels.share().full(BLOCKS_PER_MULTIPROCESSOR, THREADS)
    }

    fn arguments(&self) -> Result<HashTableArguments> {
        let (slot_count, smallest_key) = match self.kind {
            TableKind::Perfect { smallest_key, slots } => (slots, smallest_key),
            TableKind::LinearProbing | TableKind::MultiValue => (1 << self.bits, 0),
        };
        Ok(HashTableArguments {
            slots: self.slots.address()?,
            claims: self.claims.address()?,
            slot_keys: self.slot_keys.address()?,
            starts: self.starts.address()?,
            filled: self.filled.address()?,
            values: self.values.address()?,
            slot_count,
            smallest_key,
            bits: self.bits,
            hash_function: self.hash as u32,
        })
    }
}

fn not_on_host() -> Error {
    Error::Invalid("a table in GPU memory, which the CPU does not read".to_owned())
}

/// A table in CPU memory that is being filled.
#[derive(Debug)]
pub enum SharedBuild<'a> {
    /// By any number of threads, and by kernels where the link has system-wide atomics.
    Slots(SharedSlots<'a>, Option<BuildKernel<'a>>),
    /// Values that lie side by side, by threads of the CPU alone.
    Lists(SharedLists<'a>),
}

/// A kernel that fills a table in CPU memory while threads of the CPU may do so as well.
#[derive(Debug)]
pub struct BuildKernel<'a> {
    kernel: Function,
    arguments: HashTableArguments,
    shape: LaunchShape,
    key: KeyWidth,
    /// Those that it writes.
    _slots: SharedSlots<'a>,
}

impl BuildKernel<'_> {
    /// Fills tuples into the table, and waits for it. Returns how many it could not take, as [`HashTable::build`] does.
    ///
    /// # Errors
    /// If the device fails; how many of the tuples are in the table is then unknown.
    pub fn insert(&self, stream: &Stream, side: &JoinSide<'_>) -> Result<u64> {
        let input = side.arguments(self.key)?;
        let mut refused = DeviceBuffer::from_slice(stream, &[0u64])?;
        let place = refused.view_mut().address();
        let arguments = Arguments::default().with(&input).with(&self.arguments).with(&place);
        // SAFETY: the parameters are the kernel's own. It writes slots of the table, which this value borrows with them, and which others see as atomic numbers alone; it claims them by atomic operations of the whole system. What is
        // borrowed outlives the stream's work, which is waited for here, also after an error.
        let launched = unsafe { self.kernel.launch(stream, self.shape, arguments) };
        stream.synchronize().and(launched)?;
        Ok(refused.read::<u64>(stream, 1)?[0])
    }
}
