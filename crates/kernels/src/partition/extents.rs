//! Where partitions are.

use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, View};
use overspill_machine::{Error, Result};

/// The tuples of each partition and where they start, in GPU memory: the kernels that read partitions need not wait until the CPU
/// has learned where they are.
#[derive(Debug)]
pub struct Extents {
    /// The tuples of each partition, then the starts of the partitions and the end of the last.
    words: DeviceBuffer,
    fanout: u32,
    /// No partition ends after this tuple.
    end: u64,
}

impl Extents {
    /// Copies the start and the number of tuples of each partition to GPU memory, for work that is queued on the stream later.
    ///
    /// # Errors
    /// If a partition ends after 2^64 tuples, or the device fails.
    pub fn new(stream: &Stream, partitions: &[(u64, u64)]) -> Result<Self> {
        let ends = partitions.iter().map(|(start, count)| start.checked_add(*count));
        let end = ends.collect::<Option<Vec<_>>>().map(|ends| ends.into_iter().max().unwrap_or(0));
        let end = end.ok_or_else(|| Error::Invalid("a partition that ends after 2^64 tuples".to_owned()))?;
        let (starts, counts): (Vec<u64>, Vec<u64>) = partitions.iter().copied().unzip();
        let words = DeviceBuffer::with_values(stream, &[&counts[..], &starts, &[end]].concat())?;
        let fanout =
            u32::try_from(partitions.len()).map_err(|_| Error::Invalid(format!("{} partitions", partitions.len())))?;
        Ok(Self { words, fanout, end })
    }

    /// Memory for the extents that a pass will write. No partition may end after tuple `end`.
    pub(super) fn unwritten(stream: &Stream, fanout: u32, end: u64) -> Result<Self> {
        let words = DeviceBuffer::new(stream.device(), (2 * u64::from(fanout) + 1) * 8)?;
        Ok(Self { words, fanout, end })
    }

    /// The number of partitions.
    pub fn fanout(&self) -> u32 {
        self.fanout
    }

    /// The number of tuples that a column needs so that all partitions lie within it.
    pub fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn counts(&self) -> View<'_> {
        self.words.view()
    }

    /// The address of the starts, which follow the counts.
    pub(crate) fn starts_address(&self) -> u64 {
        self.words.view().address() + u64::from(self.fanout) * 8
    }

    /// Waits for the stream, and returns the start and the number of tuples of each partition.
    pub(super) fn read(&self, stream: &Stream) -> Result<Vec<(u64, u64)>> {
        let fanout = self.fanout as usize;
        let words: Vec<u64> = self.words.read(stream, 2 * fanout)?;
        let (counts, starts) = words.split_at(fanout);
        Ok(starts.iter().copied().zip(counts.iter().copied()).collect())
    }
}
