//! Tables that all blocks build and probe (paper 2, section 2.1).

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use overspill_machine::driver::{Arguments, Device, Function, LaunchShape, Stream};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::transfer::{Source, TransferPipeline};
use overspill_machine::{Error, Result};

use super::aggregates::{PairAggregate, PairTotals, Totals};
use super::arguments::{HashTableArguments, JoinInput, JoinOutput, JoinSide, Pairs, Values};
use super::host_slots::{HostSlots, Lists, SharedLists, SharedSlots, SlotLayout};
use super::slots::{Slots, TablePlacement, TableShares};
use crate::{HashFunction, Kernels, KeyWidth, PrefixSum};

/// Enough of them to hide latency; each takes tuples until there are none.
const THREADS: u32 = 256;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;
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
    /// Bytes of the arrays of a table for so many tuples: slots, and of a multi-value table claims, keys, starts, how
    /// many values are filled in, and values. All are multiples of 8.
    fn arrays(self, key: KeyWidth, capacity: u64) -> Result<[u64; 6]> {
        let slot_count = slot_count(capacity)?;
        // A range of keys may be as wide as keys are: a product that wraps would be a small buffer for a large table.
        let bytes_of = |count: u64, width: u64| {
            let bytes = count.checked_mul(width);
            bytes.ok_or_else(|| Error::Invalid(format!("a hash table of {count} slots of {width} bytes")))
        };
        let only = |bytes| [bytes, 0, 0, 0, 0, 0];
        Ok(match (self, key) {
            (Self::Perfect { slots, .. }, _) => only(bytes_of(slots, 8)?),
            (Self::LinearProbing, KeyWidth::Four) => only(bytes_of(slot_count, 8)?),
            (Self::LinearProbing, KeyWidth::Eight) => only(bytes_of(slot_count, 16)?),
            (Self::MultiValue, _) => [
                0,
                bytes_of(slot_count, 8)?,
                bytes_of(slot_count, key.bytes())?,
                bytes_of(slot_count + 1, 8)?,
                bytes_of(slot_count, 4)?,
                bytes_of(capacity, 8)?,
            ],
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Perfect { .. } => "perfect",
            Self::LinearProbing => "linear_probing",
            Self::MultiValue => "multi_value",
        }
    }
}

/// The kernels of a kind of table. They are loaded with it: loading waits for kernels that run, and so would put others that
/// should run together one after the other.
#[derive(Debug, Clone)]
struct TableKernels {
    kernels: Kernels,
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
            kernels: kernels.clone(),
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

    fn shape(&self) -> LaunchShape {
        self.kernels.share().full(BLOCKS_PER_MULTIPROCESSOR, THREADS)
    }
}

/// Slots of a table for so many tuples, of kinds that have a number of them.
fn slot_count(capacity: u64) -> Result<u64> {
    let count = capacity.max(1).checked_mul(2).and_then(u64::checked_next_power_of_two);
    count.ok_or_else(|| Error::Invalid(format!("a hash table of {capacity} tuples")))
}

/// A hash table.
#[derive(Debug)]
pub struct HashTable {
    /// The kernels on each device that reaches the table.
    devices: Vec<TableKernels>,
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
        let is_multi_value = kind == TableKind::MultiValue;
        // Those of kinds that have none, and those that kernels alone use, are the device's.
        let [near, others] = match placement {
            _ if !is_multi_value => [placement, TablePlacement::Device],
            TablePlacement::Host => [TablePlacement::Device, TablePlacement::Host],
            TablePlacement::Device | TablePlacement::Spanning { .. } => [TablePlacement::Device; 2],
        };
        let [slots, claims, slot_keys, starts, filled, values] = kind.arrays(key, capacity)?;
        let other = |bytes| Slots::new(kernels.device(), others, bytes);
        let slots = Slots::new(kernels.device(), near, slots)?;
        let lists = [other(claims)?, other(slot_keys)?, other(starts)?, other(filled)?, other(values)?];
        Self::of(std::slice::from_ref(kernels), kind, key, capacity, hash, slots, lists)
    }

    /// An empty table for at most `capacity` tuples in the memory of several devices, page by page, and what they have
    /// no room for in CPU memory (paper 2, section 6.3). Kernels of all of them look tuples up, each by streams of its
    /// own device. It takes [`HashTable::bytes`].
    ///
    /// # Errors
    /// If there is no memory for it, a device does not reach that of another, or the driver lacks virtual memory
    /// management.
    pub fn interleaved(
        kernels: &[Kernels],
        kind: TableKind,
        key: KeyWidth,
        capacity: u64,
        hash: HashFunction,
        shares: &TableShares,
    ) -> Result<Self> {
        let devices: Vec<_> = kernels.iter().map(|kernels| Arc::clone(kernels.device())).collect();
        let [slots, lists @ ..] = Slots::interleaved(&devices, shares, kind.arrays(key, capacity)?)?;
        Self::of(kernels, kind, key, capacity, hash, slots, lists)
    }

    /// Bytes of all arrays of a table for so many tuples.
    ///
    /// # Errors
    /// If no table can have so many.
    pub fn bytes(kind: TableKind, key: KeyWidth, capacity: u64) -> Result<u64> {
        let arrays = kind.arrays(key, capacity)?;
        let bytes = arrays.into_iter().try_fold(0u64, u64::checked_add);
        bytes.ok_or_else(|| Error::Invalid(format!("a hash table of {capacity} tuples")))
    }

    fn of(
        kernels: &[Kernels],
        kind: TableKind,
        key: KeyWidth,
        capacity: u64,
        hash: HashFunction,
        slots: Slots,
        [claims, slot_keys, starts, filled, values]: [Slots; 5],
    ) -> Result<Self> {
        let devices = kernels.iter().map(|kernels| TableKernels::load(kernels, kind, key)).collect::<Result<_>>()?;
        let bits = slot_count(capacity)?.ilog2();
        Ok(Self { devices, kind, key, capacity, bits, hash, slots, claims, slot_keys, starts, filled, values })
    }

    /// The kernels on a device.
    fn on(&self, device: &Device) -> Result<&TableKernels> {
        let found = self.devices.iter().find(|on| on.kernels.device().ordinal() == device.ordinal());
        found.ok_or_else(|| Error::Invalid(format!("a hash table that GPU {} does not reach", device.ordinal())))
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
        let on = self.on(stream.device())?.clone();
        let shape = on.shape();
        let with = Arguments::default();
        // SAFETY: the parameters are the kernel's own; the table was made for as many tuples; everything borrowed outlives the
        // stream's work, which is waited for here, also after an error.
        let launched = unsafe { on.build.launch(stream, shape, with.with(&input).with(&table).with(&place)) };
        stream.synchronize().and(launched)?;
        if let Some(fill) = &on.fill {
            let slots = 1 << self.bits;
            let mut prefix_sum = PrefixSum::new(&on.kernels, slots + 1)?;
            prefix_sum.run_in_place(stream, self.starts.view_mut()?)?;
            // SAFETY: as above.
            let launched = unsafe { fill.launch(stream, shape, Arguments::default().with(&input).with(&table)) };
            stream.synchronize().and(launched)?;
        }
        Ok(refused.read::<u64>(stream, 1)?[0])
    }

    /// Begins to fill a table by kernels of all devices that reach it, at the same time: one for each, in their order.
    /// Their links must have native atomics ([`overspill_machine::driver::PeerAccess`]), and those to the CPU as well
    /// if pages of the table lie there. What was in it before is gone.
    ///
    /// # Errors
    /// If it is a multi-value table, whose tuples one device counts and then fills in, or its keys are not of 8 bytes.
    pub fn build_by_all(&mut self, stream: &Stream) -> Result<Vec<BuildKernel<'_>>> {
        self.slot_layout()?;
        if self.kind == TableKind::MultiValue {
            return Err(Error::Invalid("a multi-value table, which one GPU fills".to_owned()));
        }
        self.slots.fill(stream, EMPTY)?;
        stream.synchronize()?;
        let arguments = self.arguments()?;
        self.devices.iter().map(|on| BuildKernel::load(on, self.kind, self.key, arguments)).collect()
    }

    /// Begins to fill a table in CPU memory, by the CPU and, where the link has system-wide atomics, by kernels at the same time
    /// (paper 2, section 6.2). What was in it before is gone, which so many threads see to.
    ///
    /// # Errors
    /// If the table is not in CPU memory, or of a width of keys that the CPU does not know.
    pub fn build_shared(&mut self, threads: usize) -> Result<SharedBuild<'_>> {
        let layout = self.slot_layout()?;
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
        let arguments = self.arguments()?;
        let is_atomic = |on: &&TableKernels| on.kernels.device().properties().host_native_atomics;
        let slots = SharedSlots::new(layout, self.slots.shared(EMPTY, threads)?);
        let kernel = self.devices.first().filter(is_atomic);
        let kernel = kernel.map(|on| BuildKernel::load(on, self.kind, self.key, arguments)).transpose()?;
        Ok(SharedBuild::Slots(slots, kernel))
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

    /// Joins and aggregates, without writing pairs.
    ///
    /// # Errors
    /// If the aggregates are more than [`PairAggregate::MOST`], or the device fails or has no memory for 8 bytes for each.
    pub fn probe_aggregate(
        &self,
        stream: &Stream,
        side: &JoinSide<'_>,
        aggregates: &[PairAggregate],
    ) -> Result<PairTotals> {
        let mut totals = Totals::new(stream, aggregates)?;
        self.probe(stream, |on| &on.aggregate, side, totals.output()?)?;
        totals.read(stream)
    }

    /// The same for keys that lie in CPU memory and come by a transfer method: those in `part` of the source, in bytes. The
    /// tuples' values lie where kernels read them, from the first of the source on.
    ///
    /// # Errors
    /// If the method cannot read the source, the part is no keys, there are fewer values, or as [`HashTable::probe_aggregate`].
    pub fn probe_aggregate_transferred(
        &self,
        pipeline: &mut TransferPipeline,
        keys: Source<'_>,
        part: Range<u64>,
        values: Values<'_>,
        aggregates: &[PairAggregate],
    ) -> Result<PairTotals> {
        let stream = Stream::new(pipeline.device())?;
        let mut totals = Totals::new(&stream, aggregates)?;
        let output = totals.output()?;
        self.probe_part(pipeline, keys, part, values, |on| &on.aggregate, output)?;
        totals.read(&stream)
    }

    /// Joins and writes pairs in any order, in one pass over the probe side. Returns how many matches there are; if that is more
    /// than there is room for, the rest was not written, and the join must be repeated with more room.
    ///
    /// # Errors
    /// If the device fails.
    pub fn probe_allocate(&self, stream: &Stream, side: &JoinSide<'_>, pairs: &mut Pairs<'_>) -> Result<u64> {
        let mut cursor = DeviceBuffer::from_slice(stream, &[0u64])?;
        let output = pairs.allocated_by(cursor.view_mut().address());
        self.probe(stream, |on| &on.allocate, side, output)?;
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
        let cursor_stream = Stream::new(pipeline.device())?;
        let mut cursor = DeviceBuffer::from_slice(&cursor_stream, &[0u64])?;
        let output = pairs.allocated_by(cursor.view_mut().address());
        self.probe_part(pipeline, keys, part, Values::RowIds(0), |on| &on.allocate, output)?;
        Ok(cursor.read::<u64>(&cursor_stream, 1)?[0])
    }

    /// Probes with keys that come by a transfer method, whose values lie where kernels read them.
    fn probe_part(
        &self,
        pipeline: &mut TransferPipeline,
        keys: Source<'_>,
        part: Range<u64>,
        values: Values<'_>,
        kernel: impl Fn(&TableKernels) -> &Function,
        output: JoinOutput,
    ) -> Result<()> {
        let width = self.key.bytes();
        if !part.start.is_multiple_of(width) || !part.end.is_multiple_of(width) {
            return Err(Error::Invalid(format!("keys of {width} bytes in bytes {part:?}")));
        }
        let on = self.on(pipeline.device())?;
        let table = self.arguments()?;
        pipeline.run_part(keys, part, |stream, offset, view| {
            let values = values.slice(offset / width, view.bytes() / width)?;
            let input = JoinSide { keys: view, values }.arguments(self.key)?;
            let arguments = Arguments::default().with(&input).with(&table).with(&output);
            // SAFETY: the parameters are the kernel's own; what they lead to is borrowed or owned by the caller until the pipeline
            // ends, which waits for its streams, also after an error.
            unsafe { kernel(on).launch(stream, on.shape(), arguments) }
        })
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
        let kernels = &self.on(stream.device())?.kernels;
        let blocks = u64::from(self.on(stream.device())?.shape().blocks);
        let mut counts = DeviceBuffer::new(kernels.device(), blocks * 8)?;
        let output = JoinOutput { block_counts: counts.view_mut().address(), ..JoinOutput::default() };
        self.probe(stream, |on| &on.count, side, output)?;
        let matches = PrefixSum::new(kernels, blocks)?.run_in_place(stream, counts.view_mut())?;
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
        self.probe(stream, |on| &on.write, side, output)?;
        Ok(matches)
    }

    fn probe(
        &self,
        stream: &Stream,
        kernel: impl FnOnce(&TableKernels) -> &Function,
        side: &JoinSide<'_>,
        output: JoinOutput,
    ) -> Result<()> {
        let input: JoinInput = side.arguments(self.key)?;
        let table = self.arguments()?;
        let on = self.on(stream.device())?;
        // SAFETY: the parameters are the kernel's own; what they lead to is borrowed or owned by the caller until the stream's
        // work is waited for here, also after an error.
        let launched = unsafe {
            kernel(on).launch(stream, on.shape(), Arguments::default().with(&input).with(&table).with(&output))
        };
        stream.synchronize().and(launched)
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

/// A table in CPU memory that is being filled.
#[derive(Debug)]
pub enum SharedBuild<'a> {
    /// By any number of threads, and by kernels where the link has system-wide atomics.
    Slots(SharedSlots<'a>, Option<BuildKernel<'a>>),
    /// Values that lie side by side, by threads of the CPU alone.
    Lists(SharedLists<'a>),
}

/// A kernel that fills a table while kernels of other devices, or threads of the CPU, may do so as well.
#[derive(Debug)]
pub struct BuildKernel<'a> {
    kernel: Function,
    arguments: HashTableArguments,
    shape: LaunchShape,
    key: KeyWidth,
    /// The table that it writes.
    table: PhantomData<&'a HashTable>,
}

impl BuildKernel<'_> {
    fn load(on: &TableKernels, kind: TableKind, key: KeyWidth, arguments: HashTableArguments) -> Result<Self> {
        let kernel = on.kernels.function(&format!("build_shared_{}_u64", kind.name()))?;
        Ok(Self { kernel, arguments, shape: on.shape(), key, table: PhantomData })
    }

    /// Fills tuples into the table, and waits for it. Returns how many it could not take, as [`HashTable::build`] does.
    ///
    /// # Errors
    /// If the device fails; how many of the tuples are in the table is then unknown.
    pub fn insert(&self, stream: &Stream, side: &JoinSide<'_>) -> Result<u64> {
        let input = side.arguments(self.key)?;
        let mut refused = DeviceBuffer::from_slice(stream, &[0u64])?;
        let place = refused.view_mut().address();
        let arguments = Arguments::default().with(&input).with(&self.arguments).with(&place);
        // SAFETY: the parameters are the kernel's own. It writes slots of the table, which this value borrows and which
        // nobody reads meanwhile: others claim them as it does, by atomic operations of the whole system. What is
        // borrowed outlives the stream's work, which is waited for here, also after an error.
        let launched = unsafe { self.kernel.launch(stream, self.shape, arguments) };
        stream.synchronize().and(launched)?;
        Ok(refused.read::<u64>(stream, 1)?[0])
    }
}
