//! Decompresses columns.

use overspill_machine::driver::{Arguments, Function, Stream};
use overspill_machine::memory::{DeviceBuffer, View, ViewMut};
use overspill_machine::{Error, Result};

use super::arguments::{ChunkTask, check_layers};
use super::{CHUNK, Timed, WIDTHS, index_of, launch, of_all_widths, timed};
use crate::Kernels;
use crate::share::Share;

/// A column to decompress, whose head the CPU has read.
#[derive(Debug)]
pub struct ColumnOutput<'a> {
    /// The whole column.
    pub column: View<'a>,
    /// The number of words of 8 bytes before its chunks.
    pub head_words: u64,
    /// Where each chunk ends, in words after these.
    pub ends: &'a [u32],
    /// Layers of runs and of deltas.
    pub layers: (u32, u32),
    /// Bytes of an integer.
    pub width: u64,
    /// Where the integers go.
    pub integers: ViewMut<'a>,
}

/// What was found in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decompressed {
    /// The part of the chunks in the checksum of the column.
    pub checksum: u64,
    /// Chunks that are none of a column with such layers. Their integers are unspecified.
    pub damaged: u64,
}

/// Decompresses columns.
#[derive(Debug)]
pub struct Decompressor {
    kernels: [Function; WIDTHS.len()],
    share: Share,
}

impl Decompressor {
    /// # Errors
    /// If the kernels cannot be loaded.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        Ok(Self { kernels: of_all_widths(kernels, "decompress_chunks")?, share: kernels.share() })
    }

    /// Decompresses columns, all of a width in one launch, and waits. `O(n)`.
    ///
    /// # Errors
    /// If the chunks of a column do not lie in it, it has more or fewer integers than chunks for them, or the device fails.
    pub fn run(&self, stream: &Stream, columns: &mut [ColumnOutput<'_>]) -> Result<Timed<Vec<Decompressed>>> {
        let results = DeviceBuffer::with_values(stream, &vec![[0_u64; 2]; columns.len()])?;
        let mut tasks: [Vec<[u64; 6]>; WIDTHS.len()] = Default::default();
        for (number, column) in (0..).zip(columns.iter_mut()) {
            column.add_tasks(results.view().address() + number * 16, &mut tasks[index_of(column.width)?])?;
        }
        let lists = tasks.iter().map(|tasks| DeviceBuffer::with_values(stream, tasks)).collect::<Result<Vec<_>>>()?;
        let queue = || {
            self.kernels.iter().zip(&tasks).zip(&lists).try_for_each(|((kernel, tasks), list)| {
                let (address, number) = (list.view().address(), tasks.len() as u64);
                let arguments = Arguments::default().with(&address).with(&number);
                // SAFETY: the kernels take these arguments. They read chunks where `add_tasks` has found them to lie in the columns, and
                // write as many integers as have room. Columns, lists and results live until the stream is done, which `timed` waits for.
                unsafe { launch(kernel, self.share, stream, number, 0, arguments) }
            })
        };
        let read = || results.read::<[u64; 2]>(stream, columns.len());
        let Timed { made: found, seconds } = timed(stream, queue, read)?;
        let found = found.into_iter().map(|[checksum, damaged]| Decompressed { checksum, damaged });
        Ok(Timed { made: found.collect(), seconds })
    }
}

impl ColumnOutput<'_> {
    /// Adds a task for each chunk, with the address of what is found in the column.
    fn add_tasks(&mut self, result: u64, tasks: &mut Vec<[u64; 6]>) -> Result<()> {
        check_layers(self.layers)?;
        let integers = self.integers.bytes() / self.width;
        if integers.div_ceil(CHUNK) != self.ends.len() as u64 {
            return Err(Error::Invalid(format!("{integers} integers in {} chunks", self.ends.len())));
        }
        let (from, to) = (self.column.address(), self.integers.address());
        if from % 8 != 0 || to % self.width != 0 {
            return Err(Error::Invalid(format!("columns at the addresses {from:#x} and {to:#x} are misaligned")));
        }
        let words = self.column.bytes() / 8;
        let mut begin = 0;
        for (number, end) in (0..).zip(self.ends) {
            if *end < begin || self.head_words.saturating_add(u64::from(*end)) > words {
                return Err(Error::Invalid(format!("a chunk from word {begin} to {end} of a column of {words} words")));
            }
            let place = self.head_words + u64::from(begin);
            let task = ChunkTask {
                from: from + place * 8,
                to: to + number * CHUNK * self.width,
                result,
                integers: (integers - number * CHUNK).min(CHUNK) as u32,
                words: end - begin,
                layers: self.layers,
                detail: place,
            };
            tasks.push(task.words());
            begin = *end;
        }
        Ok(())
    }
}
