//! Lookups in the order of the other side.

use overspill_machine::Result;
use overspill_machine::driver::{Arguments, Function, Stream};

use super::arguments::DeviceIndex;
use crate::join::{JoinInput, JoinOutput};
use crate::{AllocatedPairs, JoinSide, Kernels, KeyWidth, PairAggregate, PairTotals, Totals};

/// Threads of a block.
const THREADS: u32 = 256;

/// Joins a side with the keys of an index: each key is looked up, one after another as they come (paper 3, section 3.3).
///
/// In the pairs the build value is a row number of the index, the probe value that of the side.
#[derive(Debug)]
pub struct IndexLookup<'a> {
    kernels: Kernels,
    index: DeviceIndex<'a>,
    aggregate: Function,
    allocate: Function,
}

/// What becomes of matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sink {
    Aggregate,
    Allocate,
}

impl<'a> IndexLookup<'a> {
    /// # Errors
    /// If the kernels cannot be loaded.
    pub fn new(kernels: &Kernels, index: DeviceIndex<'a>) -> Result<Self> {
        let kernel = |sink: &str| kernels.function(&format!("look_up_{}_{sink}_u64", index.search().name()));
        Ok(Self { kernels: kernels.clone(), index, aggregate: kernel("aggregate")?, allocate: kernel("allocate")? })
    }

    /// Joins and aggregates without writing pairs. `O(log n)` a key.
    ///
    /// # Errors
    /// If there are more aggregates than [`PairAggregate::MOST`], keys or values are misaligned or too few, or the device fails.
    pub fn aggregate(&self, stream: &Stream, side: &JoinSide<'_>, aggregates: &[PairAggregate]) -> Result<PairTotals> {
        let input = side.arguments(KeyWidth::Eight)?;
        let mut totals = Totals::new(stream, aggregates)?;
        let output = totals.output()?;
        // SAFETY: the side and the totals live until the stream is done, which is waited for here, also after an error.
        let launched = unsafe { self.queue(stream, Sink::Aggregate, &input, &output) };
        stream.finish(launched, || totals.read(stream))
    }

    /// Joins and writes pairs in any order. Returns the number of matches. If they exceed the capacity of `pairs`, the remaining
    /// pairs were not written.
    ///
    /// # Errors
    /// If keys or values are misaligned or too few, or the device fails.
    pub fn allocate(&self, stream: &Stream, side: &JoinSide<'_>, pairs: &mut AllocatedPairs) -> Result<u64> {
        let input = side.arguments(KeyWidth::Eight)?;
        let output = pairs.output(stream)?;
        // SAFETY: as above, for the pairs.
        let launched = unsafe { self.queue(stream, Sink::Allocate, &input, &output) };
        stream.finish(launched, || pairs.found(stream))
    }

    /// # Safety
    /// What the arguments refer to must live until the stream has done the work.
    pub(super) unsafe fn queue(
        &self,
        stream: &Stream,
        sink: Sink,
        input: &JoinInput,
        output: &JoinOutput,
    ) -> Result<()> {
        let kernel = match sink {
            Sink::Aggregate => &self.aggregate,
            Sink::Allocate => &self.allocate,
        };
        let shape = self.kernels.share().full(kernel, THREADS)?;
        let arguments = Arguments::default().with(input).with(self.index.arguments()).with(output);
        // SAFETY: the parameters match the kernel; the index is borrowed as long as this value lives, and is one, as its maker
        // promised; the caller promises the rest.
        unsafe { kernel.launch(stream, shape, arguments) }
    }

    /// The index.
    pub fn index(&self) -> &DeviceIndex<'a> {
        &self.index
    }

    /// The kernels.
    pub(super) fn kernels(&self) -> &Kernels {
        &self.kernels
    }
}
