//! Windowed partitioning: lookups in the order of the index.

use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, View};
use overspill_machine::{Error, Result};

use super::look_up::{IndexLookup, Sink};
use crate::join::JoinOutput;
use crate::{
    Algorithm, AllocatedPairs, Extents, Input, JoinSide, KeyWidth, Output, PairAggregate, PairTotals, PartitionPlan,
    Partitioner, PayloadInput, Radix, Totals, Values,
};

/// Bits of a key that partitions are chosen by, at most: 2048 partitions (paper 3, section 4.3).
const BITS: u32 = 11;
const KEY: u64 = 8;

/// Joins a side with the keys of an index in tumbling windows (paper 3, section 5). The keys of a window are partitioned in GPU memory
/// by the bits that decide the way through the index, and looked up in that order, so that neighbouring threads read the same pages.
/// Neither side is materialized.
///
/// Two streams take windows in turn: while one partitions in GPU memory, the other reads across the link.
#[derive(Debug)]
pub struct WindowedLookup<'a> {
    lookup: &'a IndexLookup<'a>,
    window: u64,
    value_width: u64,
    lanes: [Lane; 2],
}

/// A pass over a window, and where its partitions are.
#[derive(Debug)]
struct WindowPass {
    partitioner: Partitioner,
    extents: Extents,
}

impl WindowPass {
    fn new(lookup: &IndexLookup<'_>, stream: &Stream, tuples: u64, value_width: u64) -> Result<Self> {
        let (smallest, largest) = lookup.index().range();
        // More partitions than keys would not bring these nearer to each other.
        let most = tuples.max(2).ilog2().min(BITS);
        let radix = Radix::in_key_order(most, smallest, largest)?;
        let (algorithm, key) = (Algorithm::Linear, KeyWidth::Eight);
        let plan = PartitionPlan::new(lookup.kernels(), algorithm, key, &[value_width], radix, tuples, 0)?;
        let partitioner = Partitioner::new(lookup.kernels(), plan.without_gaps()?)?;
        let extents = partitioner.extents(stream)?;
        Ok(Self { partitioner, extents })
    }
}

/// A stream with memory for the window that it works on.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    /// The pass over a full window, and over a shorter one.
    full: Option<WindowPass>,
    shorter: Option<WindowPass>,
    /// The keys as they came, which so cross the link once.
    copy: DeviceBuffer,
    /// The values as they came.
    value_copy: DeviceBuffer,
    keys: DeviceBuffer,
    values: DeviceBuffer,
}

impl Lane {
    fn new(lookup: &IndexLookup<'_>, window: u64, value_width: u64, copies_values: bool) -> Result<Self> {
        let device = lookup.kernels().device();
        let column = |bytes| DeviceBuffer::new(device, window * bytes);
        Ok(Self {
            stream: Stream::new(device)?,
            full: None,
            shorter: None,
            copy: column(KEY)?,
            value_copy: column(if copies_values { value_width } else { 0 })?,
            keys: column(KEY)?,
            values: column(value_width)?,
        })
    }

    /// Queues a window.
    ///
    /// # Safety
    /// The side, and what the output refers to, must live until the stream has done the work, and this value as well.
    unsafe fn queue(
        &mut self,
        lookup: &IndexLookup<'_>,
        side: &JoinSide<'_>,
        value_width: u64,
        sink: Sink,
        output: &JoinOutput,
    ) -> Result<()> {
        let tuples = side.keys.bytes() / KEY;
        let Self { stream, full, shorter, copy, value_copy, keys, values } = self;
        let kept = if copy.bytes() == tuples * KEY { full } else { shorter };
        let pass = match kept {
            Some(pass) if pass.partitioner.plan().tuples() == tuples => pass,
            _ => {
                // The stream may still be at work with the pass that is replaced.
                stream.synchronize()?;
                kept.insert(WindowPass::new(lookup, stream, tuples, value_width)?)
            }
        };
        let WindowPass { partitioner, extents } = pass;
        let payload = match side.values {
            Values::Four(view) | Values::Eight(view) => PayloadInput::Column(view),
            Values::RowIds(first) => PayloadInput::RowIds(first),
        };
        let input = Input { keys: side.keys, payloads: vec![payload] };
        let mut copied = Output { keys: copy.view_mut(), payloads: vec![value_copy.view_mut()] };
        let mut partitioned = Output { keys: keys.view_mut(), payloads: vec![values.view_mut()] };
        // SAFETY: this value, which has the partitioner and the columns, lives until the stream is done, as the caller promises.
        unsafe { partitioner.queue_with(stream, &input, Some(&mut copied), &mut partitioned, extents) }?;
        let values = values.view().slice(0, tuples * value_width)?;
        let values = if value_width == 8 { Values::Eight(values) } else { Values::Four(values) };
        let side = JoinSide { keys: keys.view().slice(0, tuples * KEY)?, values };
        let input = side.arguments(KeyWidth::Eight)?;
        // SAFETY: as above. The stream partitions before it looks up.
        unsafe { lookup.queue(stream, sink, &input, output) }
    }
}

impl<'a> WindowedLookup<'a> {
    /// Lookups in windows of at most `window` keys, whose values have `value_width` bytes (4 or 8), and come in a column or are row
    /// ids.
    ///
    /// # Errors
    /// If the window is empty, or memory for two windows is not available: each takes twice 8 bytes a key, and the bytes of its
    /// values, twice for those of a column.
    pub fn new(lookup: &'a IndexLookup<'a>, window: u64, value_width: u64, are_row_ids: bool) -> Result<Self> {
        if window == 0 || ![4, 8].contains(&value_width) {
            return Err(Error::Invalid(format!("windows of {window} keys with values of {value_width} bytes")));
        }
        let lane = || Lane::new(lookup, window, value_width, !are_row_ids);
        Ok(Self { lookup, window, value_width, lanes: [lane()?, lane()?] })
    }

    /// As [`IndexLookup::aggregate`].
    ///
    /// # Errors
    /// As [`IndexLookup::aggregate`], or if values differ from what was said.
    pub fn aggregate(&mut self, side: &JoinSide<'_>, aggregates: &[PairAggregate]) -> Result<PairTotals> {
        let mut totals = Totals::new(&self.lanes[0].stream, aggregates)?;
        let output = totals.output()?;
        // SAFETY: the totals live until all streams are done.
        unsafe { self.run(side, Sink::Aggregate, &output) }?;
        totals.read(&self.lanes[0].stream)
    }

    /// As [`IndexLookup::allocate`].
    ///
    /// # Errors
    /// As [`IndexLookup::allocate`], or if values differ from what was said.
    pub fn allocate(&mut self, side: &JoinSide<'_>, pairs: &mut AllocatedPairs) -> Result<u64> {
        let output = pairs.output(&self.lanes[0].stream)?;
        // SAFETY: the pairs live until all streams are done.
        unsafe { self.run(side, Sink::Allocate, &output) }?;
        pairs.found(&self.lanes[0].stream)
    }

    /// Queues all windows and waits for them, also after an error.
    ///
    /// # Safety
    /// What the output refers to must live until this returns. The first stream has been told to initialize it.
    unsafe fn run(&mut self, side: &JoinSide<'_>, sink: Sink, output: &JoinOutput) -> Result<()> {
        side.arguments(KeyWidth::Eight)?;
        let tuples = side.keys.bytes() / KEY;
        let fits = match side.values {
            Values::Four(_) => self.value_width == 4,
            Values::Eight(_) => self.value_width == 8,
            Values::RowIds(first) => self.value_width == 8 || first + tuples <= 1 << 32,
        };
        if !fits {
            let width = self.value_width;
            return Err(Error::Invalid(format!("values that are not the {width} bytes which windows have room for")));
        }
        // SAFETY: the caller promises it; the side is borrowed until all streams are done.
        let queued = unsafe { self.queue_all(side, tuples, sink, output) };
        let done = self.lanes.iter().map(|lane| lane.stream.synchronize()).collect::<Vec<_>>();
        done.into_iter().fold(queued, Result::and)
    }

    /// # Safety
    /// As [`Self::run`], until all streams are done.
    unsafe fn queue_all(&mut self, side: &JoinSide<'_>, tuples: u64, sink: Sink, output: &JoinOutput) -> Result<()> {
        let [first, second] = &mut self.lanes;
        second.stream.wait(&first.stream.record()?)?;
        let mut begin = 0;
        for number in 0.. {
            let count = self.window.min(tuples - begin);
            if count == 0 {
                break;
            }
            let keys: View<'_> = side.keys.slice(begin * KEY, count * KEY)?;
            let part = JoinSide { keys, values: side.values.slice(begin, count)? };
            // SAFETY: the caller promises it, and this value is borrowed until all streams are done.
            unsafe { self.lanes[number % 2].queue(self.lookup, &part, self.value_width, sink, output) }?;
            begin += count;
        }
        Ok(())
    }
}
