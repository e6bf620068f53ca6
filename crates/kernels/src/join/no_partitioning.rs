//! Hash tables that all blocks build and probe together (paper 2, section 2.1).

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use overspill_machine::driver::{Arguments, Device, Function, LaunchShape, Stream};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::transfer::{Source, TransferPipeline};
use overspill_machine::{Error, Result};

use super::aggregates::{PairAggregate, PairTotals, Totals};
use super::arguments::{HashTableArguments, JoinInput, JoinOutput, JoinSide, Values};
use super::host_slots::{HostSlots, Lists, SharedLists, SharedSlots, SlotLayout};
use super::pairs::AllocatedPairs;
use super::slots::{Slots, TablePlacement, TableShares};
use super::table_kind::{TableKind, slot_count};
use crate::{HashFunction, Kernels, KeyWidth, PrefixSum};

/// Threads of a block. Each takes tuples until none are left.
const THREADS: u32 = 256;
/// The value of each byte of an empty slot.
const EMPTY: u8 = 0xFF;

/// The kernels of a kind of table. They are loaded when the table is created: loading waits for running kernels, and would
/// serialize kernels that should run concurrently.
#[derive(Debug, Clone)]
struct TableKernels {
    kernels: Kernels,
    build: Function,
    /// The second pass that builds a multi-value table.
    fill: Option<Function>,
    aggregate: Function,
    allocate: Function,
}

impl TableKernels {
    fn load(kernels: &Kernels, kind: TableKind, key: KeyWidth) -> Result<Self> {
        let kernel = |name: &str| kernels.function(&format!("{name}_u{}", key.bytes() * 8));
        let probe = |sink: &str| kernel(&format!("probe_{}_{sink}", kind.name()));
        let is_multi_value = kind == TableKind::MultiValue;
        Ok(Self {
            kernels: kernels.clone(),
            build: kernel(&format!("{}_{}", if is_multi_value { "count" } else { "build" }, kind.name()))?,
            fill: is_multi_value.then(|| kernel("fill_multi_value")).transpose()?,
            aggregate: probe("aggregate")?,
            allocate: probe("allocate")?,
        })
    }

    fn shape(&self, kernel: &Function) -> Result<LaunchShape> {
        self.kernels.share().full(kernel, THREADS)
    }
}

/// A hash table.
#[derive(Debug)]
pub struct HashTable {
    /// The kernels for each device that can access the table.
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
    /// Creates an empty table for at most `capacity` tuples. A perfect table takes 8 bytes per key of the range. The other
    /// kinds have twice `capacity` slots, rounded up to a power of two: linear probing takes 8 or 16 bytes per slot, for keys
    /// of 4 or 8 bytes; multi-value takes 20 bytes and a key per slot, and 8 bytes per tuple.
    ///
    /// # Errors
    /// Arrays that are empty for this kind, and arrays that only kernels use, are allocated on the device.
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

    /// Creates an empty table for at most `capacity` tuples, with its pages interleaved over the memory of several devices.
    /// Pages that do not fit there lie in CPU memory (paper 2, section 6.3). Kernels of all these devices can probe it, each
    /// on streams of its own device. It takes [`HashTable::bytes`].
    ///
    /// # Errors
    /// If memory is not available, a device cannot access the memory of another, or the driver lacks virtual memory
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

    /// Bytes of all arrays of a table for `capacity` tuples.
    ///
    /// # Errors
    /// If the size of such a table overflows.
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

    /// The kernels for a device.
    fn on(&self, device: &Device) -> Result<&TableKernels> {
        let found = self.devices.iter().find(|on| on.kernels.device().ordinal() == device.ordinal());
        found.ok_or_else(|| Error::Invalid(format!("a hash table that GPU {} does not reach", device.ordinal())))
    }

    /// Fills the table with the build side and waits for completion. Earlier content is discarded.
    ///
    /// Returns the number of tuples that the table could not take: for perfect hashing, tuples whose key is already present
    /// or out of range; for linear probing, tuples of keys with hundreds of duplicates. If there are any, the table must not
    /// be probed, and another kind is needed.
    ///
    /// # Errors
    /// If there are more tuples than the capacity, or the device fails.
    pub fn build(&mut self, stream: &Stream, side: &JoinSide<'_>) -> Result<u64> {
        let input = side.arguments(self.key)?;
        if input.tuples > self.capacity {
            return Err(Error::Invalid(format!("{} tuples for a hash table of {}", input.tuples, self.capacity)));
        }
        self.slots.fill(stream, EMPTY)?;
        self.claims.fill(stream, EMPTY)?;
        self.starts.fill(stream, 0)?;
        self.filled.fill(stream, 0)?;
        let mut refused = DeviceBuffer::new(stream.device(), 8)?;
        refused.fill(stream, 0)?;
        let place = refused.view_mut().address();
        let table = self.arguments()?;
        let on = self.on(stream.device())?.clone();
        let shape = on.shape(&on.build)?;
        let with = Arguments::default();
        // SAFETY: the parameters match the kernel; the table was sized for this many tuples; all borrowed memory outlives the
        // stream's work, which is waited for below, also after an error.
        let launched = unsafe { on.build.launch(stream, shape, with.with(&input).with(&table).with(&place)) };
        let refused = || Ok(refused.read::<u64>(stream, 1)?[0]);
        let Some(fill) = &on.fill else { return stream.finish(launched, refused) };
        // Creating the prefix sum allocates memory, which must not fail while the kernel is at work.
        stream.synchronize().and(launched)?;
        let slots = 1 << self.bits;
        let mut prefix_sum = PrefixSum::new(&on.kernels, slots + 1)?;
        prefix_sum.run_in_place(stream, self.starts.view_mut()?)?;
        let shape = on.shape(fill)?;
        // SAFETY: as above.
        let launched = unsafe { fill.launch(stream, shape, Arguments::default().with(&input).with(&table)) };
        stream.finish(launched, refused)
    }

    /// Begins to fill a table by the kernels of all devices that can access it at the same time. Returns a kernel for each
    /// device, in their order. Their links must have native atomics ([`overspill_machine::driver::PeerAccess`]), and so must
    /// the links to the CPU if pages of the table lie in CPU memory. Earlier content is discarded.
    ///
    /// # Errors
    /// If the table is multi-value, as one device counts its tuples and then fills them in, or its keys are not 8 bytes wide.
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

    /// Begins to fill a table in CPU memory by the CPU and, if the link has system-wide atomics, by kernels at the same time
    /// (paper 2, section 6.2). Clears the earlier content with `threads` threads.
    ///
    /// # Errors
    /// If the table is not in CPU memory, or the CPU does not support its key width.
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

    /// The slots of a table in CPU memory, for probing by the CPU.
    ///
    /// # Errors
    /// If the table is not in CPU memory, or the CPU does not support its key width.
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

    /// Copies a table in GPU memory to `words`, which holds [`HashTable::words`] words, and waits for completion.
    ///
    /// # Errors
    /// If the table is not in GPU memory, `words` is too short, or the device fails.
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

    /// Copies a table that the CPU has filled to a table of the same kind whose slots lie in GPU memory and CPU memory, and waits
    /// for completion.
    ///
    /// # Errors
    /// If the tables differ in kind or size, are not in these memories, or the device fails.
    pub fn copy_from_host(&mut self, stream: &Stream, filled: &Self) -> Result<()> {
        let words = filled.slots.on_host()?;
        let alike = (self.kind, self.key, self.bits, self.hash) == (filled.kind, filled.key, filled.bits, filled.hash);
        match &mut self.slots {
            Slots::Spanning(slots) if alike && self.kind != TableKind::MultiValue => {
                let words = usize::try_from(slots.bytes() / 8).ok().and_then(|count| words.get(..count));
                let words = words.ok_or_else(|| Error::Invalid("a copy of a shorter hash table".to_owned()))?;
                slots.write(stream, 0, words)
            }
            _ => Err(Error::Invalid("a copy between hash tables that differ".to_owned())),
        }
    }

    /// The number of 8-byte words of a copy for the CPU.
    pub fn words(&self) -> u64 {
        self.arrays().into_iter().map(|(_, length)| length).sum()
    }

    /// The slots in a copy made by [`HashTable::copy_to_host`], for probing by the CPU.
    ///
    /// # Errors
    /// If the CPU does not support the table's key width, or the copy is too short.
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

    /// The arrays that probing reads, with the number of words of each: slots, or claims, keys, starts and values.
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

    /// Joins and aggregates without writing pairs.
    ///
    /// # Errors
    /// If there are more aggregates than [`PairAggregate::MOST`], the device fails, or 8 bytes of its memory for each are not
    /// available.
    pub fn probe_aggregate(
        &self,
        stream: &Stream,
        side: &JoinSide<'_>,
        aggregates: &[PairAggregate],
    ) -> Result<PairTotals> {
        let mut totals = Totals::new(stream, aggregates)?;
        let output = totals.output()?;
        self.probe(stream, |on| &on.aggregate, side, output, || totals.read(stream))
    }

    /// As [`HashTable::probe_aggregate`], for keys in CPU memory that a transfer method brings to the GPU: the keys in the
    /// byte range `part` of the source. Kernels can read the tuples' values, which start with the source's first tuple.
    ///
    /// # Errors
    /// If the method cannot read the source, the part does not hold whole keys, there are fewer values than keys, or as
    /// [`HashTable::probe_aggregate`].
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
        // The pipeline has streams of its own.
        stream.synchronize()?;
        self.probe_part(pipeline, keys, part, values, |on| &on.aggregate, output)?;
        totals.read(&stream)
    }

    /// Joins and writes pairs in any order, in one pass over the probe side. Returns the number of matches. If they exceed
    /// the capacity of `pairs`, the remaining pairs were not written, and the join must be repeated with more room.
    ///
    /// # Errors
    /// If the device fails.
    pub fn probe_allocate(&self, stream: &Stream, side: &JoinSide<'_>, pairs: &mut AllocatedPairs) -> Result<u64> {
        let output = pairs.output(stream)?;
        self.probe(stream, |on| &on.allocate, side, output, || pairs.found(stream))
    }

    /// As [`HashTable::probe_allocate`], for keys in CPU memory that a transfer method brings to the GPU: the keys in the
    /// byte range `part` of the source. A tuple's value is its number in the source, starting with 0.
    ///
    /// # Errors
    /// If the method cannot read the source, the part does not hold whole keys, or the device fails.
    pub fn probe_transferred(
        &self,
        pipeline: &mut TransferPipeline,
        keys: Source<'_>,
        part: Range<u64>,
        pairs: &mut AllocatedPairs,
    ) -> Result<u64> {
        let stream = Stream::new(pipeline.device())?;
        let output = pairs.output(&stream)?;
        // The pipeline has streams of its own.
        stream.synchronize()?;
        self.probe_part(pipeline, keys, part, Values::RowIds(0), |on| &on.allocate, output)?;
        pairs.found(&stream)
    }

    /// Probes with keys that a transfer method brings to the GPU, and values that kernels can read.
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
        let shape = on.shape(kernel(on))?;
        let table = self.arguments()?;
        pipeline.run_part(keys, part, |stream, offset, view| {
            let values = values.slice(offset / width, view.bytes() / width)?;
            let input = JoinSide { keys: view, values }.arguments(self.key)?;
            let arguments = Arguments::default().with(&input).with(&table).with(&output);
            // SAFETY: the parameters match the kernel; the memory they refer to is borrowed or owned by the caller until the
            // pipeline ends, which waits for its streams, also after an error.
            unsafe { kernel(on).launch(stream, shape, arguments) }
        })
    }

    /// Probes, and returns what `read` reads of the output, which waits for the stream.
    fn probe<T>(
        &self,
        stream: &Stream,
        kernel: impl FnOnce(&TableKernels) -> &Function,
        side: &JoinSide<'_>,
        output: JoinOutput,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let input: JoinInput = side.arguments(self.key)?;
        let table = self.arguments()?;
        let on = self.on(stream.device())?;
        let kernel = kernel(on);
        let shape = on.shape(kernel)?;
        // SAFETY: the parameters match the kernel; the memory they refer to is borrowed or owned by the caller until the
        // stream's work ends, which is waited for here, also after an error.
        let launched =
            unsafe { kernel.launch(stream, shape, Arguments::default().with(&input).with(&table).with(&output)) };
        stream.finish(launched, read)
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

/// A table in CPU memory during its build.
#[derive(Debug)]
pub enum SharedBuild<'a> {
    /// Filled by any number of threads, and by kernels where the link has system-wide atomics.
    Slots(SharedSlots<'a>, Option<BuildKernel<'a>>),
    /// Contiguous values of a multi-value table, filled by CPU threads only.
    Lists(SharedLists<'a>),
}

/// A kernel that fills a table while kernels of other devices or CPU threads may fill it as well.
#[derive(Debug)]
pub struct BuildKernel<'a> {
    kernel: Function,
    arguments: HashTableArguments,
    shape: LaunchShape,
    key: KeyWidth,
    /// Borrows the table that the kernel writes.
    table: PhantomData<&'a HashTable>,
}

impl BuildKernel<'_> {
    fn load(on: &TableKernels, kind: TableKind, key: KeyWidth, arguments: HashTableArguments) -> Result<Self> {
        let kernel = on.kernels.function(&format!("build_shared_{}_u64", kind.name()))?;
        Ok(Self { shape: on.shape(&kernel)?, kernel, arguments, key, table: PhantomData })
    }

    /// Inserts tuples into the table and waits for completion. Returns the number that it could not take, as
    /// [`HashTable::build`] does.
    ///
    /// # Errors
    /// If the device fails. The number of tuples inserted is then unknown.
    pub fn insert(&self, stream: &Stream, side: &JoinSide<'_>) -> Result<u64> {
        let input = side.arguments(self.key)?;
        let mut refused = DeviceBuffer::new(stream.device(), 8)?;
        refused.fill(stream, 0)?;
        let place = refused.view_mut().address();
        let arguments = Arguments::default().with(&input).with(&self.arguments).with(&place);
        // SAFETY: the parameters match the kernel. It writes slots of the table, which this value borrows. No one reads them
        // meanwhile, and other writers claim them by system-wide atomic operations, as this kernel does. Borrowed memory
        // outlives the stream's work, which is waited for here, also after an error.
        let launched = unsafe { self.kernel.launch(stream, self.shape, arguments) };
        stream.finish(launched, || Ok(refused.read::<u64>(stream, 1)?[0]))
    }
}
