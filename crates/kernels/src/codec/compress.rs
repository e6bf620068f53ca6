//! Compresses columns.

use overspill_machine::driver::{Arguments, Function, Stream};
use overspill_machine::memory::{DeviceBuffer, View};
use overspill_machine::{Error, Result};

use super::arguments::{ChunkTask, ColumnTask, check_layers};
use super::{CHUNK, PLACES, Timed, WIDTHS, index_of, launch, of_all_widths, timed};
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
    begin: Function,
    gather: Function,
    share: Share,
}

/// Words before the table of chunks.
const HEAD_WORDS: u64 = 3;

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

    fn slots_bytes(&self) -> u64 {
        self.chunks() * self.slot_words() * 8
    }

    /// Words of the column if it cannot be compressed.
    fn most_words(&self) -> u64 {
        HEAD_WORDS + self.chunks().div_ceil(2) + self.chunks() * self.slot_words()
    }
}

/// What kernels are to do.
#[derive(Default)]
struct Work {
    /// By the width of integers.
    chunks: [Vec<[u64; 6]>; WIDTHS.len()],
    columns: Vec<[u64; 9]>,
    /// Chunks of all columns.
    number: u64,
}

impl Compressor {
    /// # Errors
    /// If the kernels cannot be loaded.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        let begin = kernels.function("compress_begin_columns")?;
        let gather = kernels.function("compress_gather_chunks")?;
        Ok(Self { kernels: of_all_widths(kernels, "compress_chunks")?, begin, gather, share: kernels.share() })
    }

    /// Compresses columns, the chunks of all of a width in one launch, moves them to where they belong in two more, and waits. Takes about
    /// twice as much GPU memory as the columns. `O(n)`.
    ///
    /// # Errors
    /// If a column is misaligned or of other integers than kernels know, there is no memory, or the device fails.
    pub fn run(&self, stream: &Stream, columns: &[ColumnInput<'_>]) -> Result<Timed<Vec<CompressedColumn>>> {
        let device = stream.device();
        // Before sizes are made of it.
        columns.iter().try_for_each(|column| index_of(column.width).map(drop))?;
        // Chunks that were compressed, each with room for its integers as they are.
        let slots = DeviceBuffer::new(device, columns.iter().map(ColumnInput::slots_bytes).sum())?;
        let sizes = DeviceBuffer::new(device, columns.iter().map(ColumnInput::chunks).sum::<u64>() * 4)?;
        let words = DeviceBuffer::new(device, columns.len() as u64 * 8)?;
        let (mut work, mut outputs) = (Work::default(), vec![]);
        let mut slot = slots.view().address();
        for (number, column) in (0..).zip(columns) {
            let buffer = DeviceBuffer::new(device, column.most_words() * 8)?;
            let task = ColumnTask {
                to: buffer.view().address(),
                slots: slot,
                sizes: sizes.view().address() + work.number * 4,
                slot_words: column.slot_words(),
                first_chunk: work.number,
                chunks: column.chunks(),
                head: column.head,
                integers: column.count(),
                words: words.view().address() + number * 8,
            };
            work.add(column, &task)?;
            slot += column.slots_bytes();
            outputs.push(buffer);
        }
        let lists = work.chunks.iter().map(|tasks| DeviceBuffer::with_values(stream, tasks));
        let lists = lists.collect::<Result<Vec<_>>>()?;
        let list = DeviceBuffer::with_values(stream, &work.columns)?;
        // SAFETY: the lists are of this work. Its columns, slots and sizes live until the stream is done, which `timed` waits for.
        let queue = || unsafe { self.queue(stream, &work, &lists, &list) };
        let Timed { made: words, seconds } = timed(stream, queue, || words.read::<u64>(stream, columns.len()))?;
        let compressed = |(buffer, words): (DeviceBuffer, u64)| CompressedColumn { buffer, bytes: words * 8 };
        Ok(Timed { made: outputs.into_iter().zip(words).map(compressed).collect(), seconds })
    }

    /// Queues all kernels.
    ///
    /// # Safety
    /// The lists must be those of the work, each column must have room for all its chunks, and all memory must live until the stream is
    /// done.
    unsafe fn queue(&self, stream: &Stream, work: &Work, lists: &[DeviceBuffer], list: &DeviceBuffer) -> Result<()> {
        for (((kernel, tasks), list), width) in self.kernels.iter().zip(&work.chunks).zip(lists).zip(WIDTHS) {
            let (address, number) = (list.view().address(), tasks.len() as u64);
            let arguments = Arguments::default().with(&address).with(&number);
            // Equals `compress_scratchpad`.
            let scratchpad = PLACES * (width + 4);
            // SAFETY: the kernels take these arguments. They read the integers of the columns, and write each chunk to a slot with room for
            // it.
            unsafe { launch(kernel, self.share, stream, number, scratchpad, arguments)? };
        }
        let (address, columns) = (list.view().address(), work.columns.len() as u64);
        let arguments = Arguments::default().with(&address).with(&columns);
        // SAFETY: the kernel takes these arguments, and writes what precedes the chunks of each column.
        unsafe { launch(&self.begin, self.share, stream, columns, 0, arguments)? };
        let arguments = Arguments::default().with(&address).with(&columns).with(&work.number);
        // SAFETY: the kernel takes these arguments, and writes the chunks behind that.
        unsafe { launch(&self.gather, self.share, stream, work.number, 0, arguments) }
    }
}

impl Work {
    /// Adds a column, and a task for each of its chunks.
    fn add(&mut self, column: &ColumnInput<'_>, task: &ColumnTask) -> Result<()> {
        check_layers(column.layers)?;
        let from = column.integers.address();
        if from % column.width != 0 || column.integers.bytes() % column.width != 0 {
            let bytes = column.integers.bytes();
            return Err(Error::Invalid(format!(
                "{bytes} bytes at the address {from:#x} are no integers of {}",
                column.width
            )));
        }
        let chunks = &mut self.chunks[index_of(column.width)?];
        for number in 0..column.chunks() {
            let task = ChunkTask {
                from: from + number * CHUNK * column.width,
                to: task.slots + number * column.slot_words() * 8,
                result: task.sizes + number * 4,
                integers: (column.count() - number * CHUNK).min(CHUNK) as u32,
                words: 0,
                layers: column.layers,
                detail: u64::from(column.is_signed),
            };
            chunks.push(task.words());
        }
        self.columns.push(task.words());
        self.number += column.chunks();
        Ok(())
    }
}
