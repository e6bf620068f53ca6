//! Compresses columns.

use overspill_machine::driver::{Function, Stream};
use overspill_machine::memory::{DeviceBuffer, View};
use overspill_machine::{Error, Result};

use super::arguments::{ChunkTask, ColumnTask, check_layers};
use super::{CHUNK, WIDTHS, index_of, launch_tasks, of_all_widths};
use crate::Kernels;
use crate::share::Share;

/// A column to compress.
#[derive(Debug, Clone, Copy)]
pub struct ColumnInput<'a> {
    /// The integers.
    pub integers: View<'a>,
    /// Bytes of an integer.
    pub width: u64,
    /// Whether its least integers are those of signed ones.
    pub is_signed: bool,
    /// Layers of runs and of deltas.
    pub layers: (u32, u32),
    /// The first word of the compressed column.
    pub head: u64,
}

/// A compressed column in GPU memory.
#[derive(Debug)]
pub struct CompressedColumn {
    /// The column, and room that it did not need.
    pub buffer: DeviceBuffer,
    /// Its bytes.
    pub bytes: u64,
}

/// Compresses columns.
#[derive(Debug)]
pub struct Compressor {
    kernels: [Function; WIDTHS.len()],
    assemble: Function,
    share: Share,
}

/// Words before the table of chunks.
const HEAD_WORDS: u64 = 3;

/// Chunks that were compressed, each with room for its integers as they are.
struct Slots {
    chunks: DeviceBuffer,
    sizes: DeviceBuffer,
}

impl ColumnInput<'_> {
    fn count(&self) -> u64 {
        self.integers.bytes() / self.width
    }

    fn chunks(&self) -> u64 {
        self.count().div_ceil(CHUNK)
    }

    /// Words of the largest chunk.
    fn slot_words(&self) -> u64 {
        1 + CHUNK * self.width / 8
    }

    /// Words of the column if it cannot be compressed.
    fn most_words(&self) -> u64 {
        HEAD_WORDS + self.chunks().div_ceil(2) + self.chunks() * self.slot_words()
    }
}

impl Compressor {
    /// # Errors
    /// If the kernels cannot be loaded.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        let (chunks, assemble) = (of_all_widths(kernels, "compress_chunks")?, kernels.function("compress_assemble")?);
        Ok(Self { kernels: chunks, assemble, share: kernels.share() })
    }

    /// Compresses columns, the chunks of all of a width in one launch, puts them together in another, and waits. Takes about twice as much
    /// GPU memory as the columns. `O(n)`.
    ///
    /// # Errors
    /// If a column is misaligned or of other integers than kernels know, there is no memory, or the device fails.
    pub fn run(&self, stream: &Stream, columns: &[ColumnInput<'_>]) -> Result<Vec<CompressedColumn>> {
        let device = stream.device();
        let mut tasks: [Vec<[u64; 6]>; WIDTHS.len()] = Default::default();
        let (mut slots, mut outputs, mut assembling) = (vec![], vec![], vec![]);
        let words = DeviceBuffer::new(device, columns.len() as u64 * 8)?;
        for (number, column) in (0..).zip(columns) {
            let tasks = &mut tasks[index_of(column.width)?];
            let own = Slots {
                chunks: DeviceBuffer::new(device, column.chunks() * column.slot_words() * 8)?,
                sizes: DeviceBuffer::new(device, column.chunks() * 4)?,
            };
            column_tasks(column, &own, tasks)?;
            let buffer = DeviceBuffer::new(device, column.most_words() * 8)?;
            let task = ColumnTask {
                to: buffer.view().address(),
                slots: own.chunks.view().address(),
                sizes: own.sizes.view().address(),
                slot_words: column.slot_words(),
                chunks: column.chunks(),
                head: column.head,
                integers: column.count(),
                words: words.view().address() + number * 8,
            };
            assembling.push(task.words());
            slots.push(own);
            outputs.push(buffer);
        }
        let launches = self.kernels.iter().zip(&tasks).zip(WIDTHS).filter(|((_, tasks), _)| !tasks.is_empty());
        let launch = |((kernel, tasks), width): ((_, &Vec<_>), u64)| {
            // Equals `compress_scratchpad`.
            let scratchpad = CHUNK * (width + 4);
            // SAFETY: the kernels take these arguments. They read the integers of the columns, and write each chunk to a slot with room for
            // it. All memory lives until the stream is done, which is waited for below, also after an error.
            unsafe { launch_tasks(kernel, self.share, stream, tasks, scratchpad) }
        };
        // SAFETY: as above; each column has room for all its chunks.
        let assemble = || unsafe { launch_tasks(&self.assemble, self.share, stream, &assembling, 0) };
        let mut lists = vec![];
        let queued = launches.map(launch).try_for_each(|list| list.map(|list| lists.push(list)));
        let queued = queued.and_then(|()| assemble()).map(|list| lists.push(list));
        let words = stream.finish(queued, || words.read::<u64>(stream, columns.len()))?;
        let compressed = |(buffer, words): (DeviceBuffer, u64)| CompressedColumn { buffer, bytes: words * 8 };
        Ok(outputs.into_iter().zip(words).map(compressed).collect())
    }
}

/// Adds a task for each chunk of a column.
fn column_tasks(column: &ColumnInput<'_>, slots: &Slots, tasks: &mut Vec<[u64; 6]>) -> Result<()> {
    check_layers(column.layers)?;
    let from = column.integers.address();
    if from % column.width != 0 || column.integers.bytes() % column.width != 0 {
        let bytes = column.integers.bytes();
        return Err(Error::Invalid(format!(
            "{bytes} bytes at the address {from:#x} are no integers of {}",
            column.width
        )));
    }
    for number in 0..column.chunks() {
        let task = ChunkTask {
            from: from + number * CHUNK * column.width,
            to: slots.chunks.view().address() + number * column.slot_words() * 8,
            result: slots.sizes.view().address() + number * 4,
            integers: (column.count() - number * CHUNK).min(CHUNK) as u32,
            words: 0,
            layers: column.layers,
            detail: u64::from(column.is_signed),
        };
        tasks.push(task.words());
    }
    Ok(())
}
