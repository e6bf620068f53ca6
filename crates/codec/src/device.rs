//! The same on a GPU, with the same bytes.

use overspill_kernels::{ColumnInput, ColumnOutput, CompressedColumn, Compressor, Decompressor, Kernels, Timed};
use overspill_machine::driver::Stream;
use overspill_machine::memory::{View, ViewMut};

use crate::error::{Error, Result};
use crate::format::{ColumnInfo, MOST_BYTES, WRONG_CHECKSUM};
use crate::integer::{Bits, Integer};
use crate::stack::Stack;

/// Integers in memory that kernels read.
#[derive(Debug, Clone, Copy)]
pub struct DeviceIntegers<'a> {
    integers: View<'a>,
    width: usize,
    is_signed: bool,
    stack: Stack,
}

impl<'a> DeviceIntegers<'a> {
    /// The integers that are in a part of memory, to be compressed by a stack.
    pub fn new<I: Integer>(integers: View<'a>, stack: Stack) -> Self {
        Self { integers, width: I::Bits::BYTES, is_signed: I::IS_SIGNED, stack }
    }

    fn input(&self) -> Result<ColumnInput<'a>> {
        let Self { integers, width, is_signed, stack } = *self;
        let bytes = usize::try_from(integers.bytes()).unwrap_or(usize::MAX);
        if bytes > MOST_BYTES {
            return Err(Error::TooLarge(bytes));
        }
        let head = ColumnInfo { width, stack, values: bytes / width }.first_word();
        let layers = (stack.runs() as u32, stack.deltas() as u32);
        Ok(ColumnInput { integers, width: width as u64, is_signed, layers, head })
    }
}

/// A compressed column in memory that kernels read, and room for its integers.
#[derive(Debug)]
pub struct DeviceColumn<'a> {
    head: DeviceHead,
    column: View<'a>,
    integers: ViewMut<'a>,
}

/// What the CPU has read of a column.
#[derive(Debug)]
struct DeviceHead {
    info: ColumnInfo,
    /// Where each chunk ends.
    ends: Vec<u32>,
    /// The part that the chunks must have in the checksum.
    checksum: u64,
}

impl<'a> DeviceColumn<'a> {
    /// The column in a part of memory. `head` are its first bytes, with the table of its chunks: [`ColumnInfo::head_bytes`] of them.
    ///
    /// # Errors
    /// If these are not the first bytes of a column, or there is room for more or fewer integers than it has.
    pub fn new(head: &[u8], column: View<'a>, integers: ViewMut<'a>) -> Result<Self> {
        let info = ColumnInfo::of(head)?;
        let ends = info.ends(head)?;
        if integers.bytes() != (info.values * info.width) as u64 {
            return Err(Error::Damaged("it has another number of integers"));
        }
        let checksum = info.checksum_of_chunks(head)?;
        Ok(Self { head: DeviceHead { info, ends, checksum }, column, integers })
    }
}

/// Compresses and decompresses columns on a GPU: all layers of all columns of a width in one launch (paper 4, section 4).
#[derive(Debug)]
pub struct DeviceCascade {
    compressor: Compressor,
    decompressor: Decompressor,
}

impl DeviceCascade {
    /// # Errors
    /// If the kernels cannot be loaded.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        Ok(Self { compressor: Compressor::new(kernels)?, decompressor: Decompressor::new(kernels)? })
    }

    /// Compresses columns, and waits. Their bytes are those that [`Cascade::compress`](crate::Cascade::compress) writes. Takes about twice
    /// as much GPU memory as the columns. `O(n)`.
    ///
    /// # Errors
    /// If a column is too large, there is no memory, or the device fails.
    pub fn compress(&self, stream: &Stream, columns: &[DeviceIntegers<'_>]) -> Result<Timed<Vec<CompressedColumn>>> {
        let inputs = columns.iter().map(DeviceIntegers::input).collect::<Result<Vec<_>>>()?;
        Ok(self.compressor.run(stream, &inputs)?)
    }

    /// Decompresses columns, and waits. `O(n)`.
    ///
    /// # Errors
    /// If a column is damaged, or the device fails. Then the integers of all are unspecified.
    pub fn decompress(&self, stream: &Stream, columns: Vec<DeviceColumn<'_>>) -> Result<Timed<()>> {
        let parts = columns.into_iter().map(|DeviceColumn { head, column, integers }| (head, (column, integers)));
        let (heads, memory): (Vec<_>, Vec<_>) = parts.unzip();
        let outputs =
            heads.iter().zip(memory).map(|(DeviceHead { info, ends, .. }, (column, integers))| ColumnOutput {
                column,
                head_words: (info.head_bytes() / 8) as u64,
                ends,
                layers: (info.stack.runs() as u32, info.stack.deltas() as u32),
                width: info.width as u64,
                integers,
            });
        let Timed { made: found, seconds } = self.decompressor.run(stream, &mut outputs.collect::<Vec<_>>())?;
        for (head, found) in heads.iter().zip(found) {
            if found.checksum != head.checksum {
                return Err(WRONG_CHECKSUM);
            }
            if found.damaged > 0 {
                return Err(Error::Damaged("its chunks mean nothing"));
            }
        }
        Ok(Timed { made: (), seconds })
    }
}
