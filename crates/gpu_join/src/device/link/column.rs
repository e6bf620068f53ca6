//! A column that kernels read over the link.

use std::ops::Range;
use std::sync::Arc;

use overspill_codec::{Cascade, DeviceCascade, DeviceColumn, Stack};
use overspill_join::parallel::in_parallel;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, SharedView, View};
use overspill_machine::transfer::PooledBuffer;
use overspill_machine::{Error, Result};

/// Rows of a piece, which is compressed and decompressed by itself: 16 chunks of the codec, and half a mebibyte. So a GPU with the
/// least memory has room for a piece of two columns, compressed and not.
pub(crate) const PIECE_ROWS: u64 = 1 << 16;

/// Bytes of a row.
const WORD: u64 = 8;

/// A column of words in CPU memory that kernels read. Each piece of [`PIECE_ROWS`] rows is compressed, or as it is if compression does not
/// make it smaller, and begins where it would begin if none were compressed.
#[derive(Debug)]
pub(crate) struct LinkColumn {
    buffer: PooledBuffer,
    rows: u64,
    /// Bytes of each compressed piece; empty if no piece is compressed.
    pieces: Vec<Option<usize>>,
}

impl LinkColumn {
    /// The first `rows` words of a buffer.
    pub(crate) fn new(buffer: PooledBuffer, rows: u64) -> Self {
        Self { buffer, rows, pieces: Vec::new() }
    }

    /// Whether kernels cannot read it in place.
    pub(crate) fn is_compressed(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The memory of a column that is not compressed.
    pub(crate) fn buffer(&self) -> &PooledBuffer {
        &self.buffer
    }

    /// The memory of a column that is not compressed.
    pub(crate) fn into_buffer(self) -> PooledBuffer {
        self.buffer
    }

    /// The words of a column that is not compressed.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn words_mut(&mut self) -> Result<&mut [u64]> {
        let rows = rows_of(self.rows)?;
        Ok(&mut self.buffer.as_mut_slice()?[..rows])
    }

    /// Compresses the column in place, with `threads` threads, if that makes it smaller. Returns how many times smaller it is.
    /// `O(n)`; half a mebibyte of memory a thread.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn compress(&mut self, stack: Stack, threads: usize) -> Result<f64> {
        let pieces = self.words_mut()?.chunks_mut(PIECE_ROWS as usize).collect();
        self.pieces = in_parallel(threads, pieces, |words: &mut [u64]| compress_in_place(words, stack));
        if self.pieces.iter().all(Option::is_none) {
            self.pieces.clear();
        }
        Ok((self.rows * WORD) as f64 / self.link_bytes(0..self.rows).max(1) as f64)
    }

    /// The rows of all pieces that have some of `rows`.
    fn whole_pieces(&self, rows: &Range<u64>) -> Range<u64> {
        rows.start / PIECE_ROWS * PIECE_ROWS..rows.end.next_multiple_of(PIECE_ROWS).min(self.rows)
    }

    /// The pieces of `rows`, which begin with one: the rows of each, and its bytes if it is compressed.
    fn pieces_of(&self, rows: Range<u64>) -> impl Iterator<Item = (Range<u64>, Option<usize>)> {
        let starts = (rows.start..rows.end).step_by(PIECE_ROWS as usize);
        starts.map(move |start| {
            let piece = self.pieces.get((start / PIECE_ROWS) as usize).copied().flatten();
            (start..(start + PIECE_ROWS).min(rows.end), piece)
        })
    }

    /// Bytes that cross the link when kernels read `rows`.
    pub(crate) fn link_bytes(&self, rows: Range<u64>) -> u64 {
        if !self.is_compressed() || rows.is_empty() {
            return (rows.end - rows.start) * WORD;
        }
        let pieces = self.pieces_of(self.whole_pieces(&rows));
        pieces.map(|(rows, bytes)| bytes.map_or((rows.end - rows.start) * WORD, |bytes| bytes as u64)).sum()
    }

    /// Decompresses what a GPU needs to read `rows` of a compressed column, and waits; `None` if it can read them in place. Takes at most
    /// [`LinkColumn::room`] bytes of GPU memory. `O(n)` for `n` rows.
    ///
    /// # Errors
    /// If there is no memory, or the device fails.
    pub(crate) fn decompress(
        &self,
        cascade: &DeviceCascade,
        stream: &Stream,
        rows: Range<u64>,
    ) -> Result<Option<Decompressed>> {
        if !self.is_compressed() || rows.is_empty() {
            return Ok(None);
        }
        let rows = self.whole_pieces(&rows);
        let words = self.words_on_gpu(cascade, stream, rows.clone())?;
        Ok(Some(Decompressed { words, first: rows.start }))
    }

    /// Copies `rows` to GPU memory, and decompresses what is compressed. Waits.
    ///
    /// # Errors
    /// As [`LinkColumn::decompress`].
    pub(crate) fn to_gpu(&self, cascade: &DeviceCascade, stream: &Stream, rows: Range<u64>) -> Result<SharedView> {
        let all = self.whole_pieces(&rows);
        let words = Arc::new(self.words_on_gpu(cascade, stream, all.clone())?);
        SharedView::new(words, (rows.start - all.start) * WORD, (rows.end - rows.start) * WORD)
    }

    /// Copies `rows`, which are whole pieces, to GPU memory, and decompresses what is compressed. Kernels read compressed words more than once,
    /// so these are copied first.
    fn words_on_gpu(&self, cascade: &DeviceCascade, stream: &Stream, rows: Range<u64>) -> Result<DeviceBuffer> {
        let host = self.buffer.as_slice::<u64>();
        let mut words = DeviceBuffer::new(stream.device(), (rows.end - rows.start) * WORD)?;
        let (mut plain, mut compressed, mut heads, mut bytes) = (vec![], vec![], vec![], 0);
        for (piece, size) in self.pieces_of(rows.clone()) {
            let (first, place) = (rows_of(piece.start)?, (piece.start - rows.start) * WORD);
            match size {
                None => plain.push((place, &host[first..rows_of(piece.end)?])),
                Some(size) => {
                    compressed.push((bytes, &host[first..][..size / WORD as usize]));
                    heads.push((&self.buffer.as_slice::<u8>()[first * WORD as usize..][..size], bytes));
                    bytes += size as u64;
                }
            }
        }
        words.write_all(stream, &plain)?;
        let mut copies = DeviceBuffer::new(stream.device(), bytes)?;
        copies.write_all(stream, &compressed)?;
        let (mut heads, mut room, mut columns) = (heads.into_iter(), words.view_mut(), vec![]);
        for (piece, size) in self.pieces_of(rows) {
            let (place, others) = room.split_at((piece.end - piece.start) * WORD)?;
            room = others;
            if size.is_some()
                && let Some((head, first)) = heads.next()
            {
                let column = copies.view().slice(first, head.len() as u64)?;
                columns.push(DeviceColumn::new(head, column, place).map_err(device_error)?);
            }
        }
        cascade.decompress(stream, columns).map_err(device_error)?;
        Ok(words)
    }

    /// The most bytes of GPU memory that [`LinkColumn::decompress`] takes for `rows`: the rows, and compressed ones for a moment.
    pub(crate) fn room(&self, rows: Range<u64>) -> u64 {
        if !self.is_compressed() || rows.is_empty() {
            return 0;
        }
        let rows = self.whole_pieces(&rows);
        (rows.end - rows.start) * WORD + self.link_bytes(rows)
    }

    /// A range of rows, for kernels that read them in place or where they have been decompressed.
    ///
    /// # Errors
    /// If some of them are not there.
    pub(crate) fn view<'a>(&'a self, rows: Range<u64>, there: Option<&'a Decompressed>) -> Result<View<'a>> {
        let bytes = (rows.end - rows.start) * WORD;
        match there {
            Some(Decompressed { words, first }) => words.view().slice(rows.start.saturating_sub(*first) * WORD, bytes),
            None if self.is_compressed() && bytes > 0 => {
                Err(Error::Invalid("compressed rows were not decompressed".to_owned()))
            }
            None => self.buffer.view()?.slice(rows.start * WORD, bytes),
        }
    }
}

/// Rows of a column in GPU memory.
#[derive(Debug)]
pub(crate) struct Decompressed {
    words: DeviceBuffer,
    /// The number of the first row.
    first: u64,
}

/// Compresses some words, and returns the bytes that they take now. `None` if they would not be fewer, and then nothing has changed.
fn compress_in_place(words: &mut [u64], stack: Stack) -> Option<usize> {
    let mut column = Vec::with_capacity(size_of_val(words));
    Cascade::new().compress(words, stack, &mut column).ok()?;
    // A compressed column is a whole number of words.
    let compressed = column.as_chunks::<{ WORD as usize }>().0;
    (compressed.len() < words.len()).then(|| {
        words.iter_mut().zip(compressed).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        column.len()
    })
}

/// The error of a GPU that decompresses. Damage means that the GPU, or the way to it, cannot be trusted.
pub(crate) fn device_error(error: overspill_codec::Error) -> Error {
    match error {
        overspill_codec::Error::Device(error) => error,
        other => Error::Invalid(format!("decompressing on the GPU: {other}")),
    }
}

fn rows_of(rows: u64) -> Result<usize> {
    usize::try_from(rows).map_err(|_| Error::Invalid(format!("{rows} rows")))
}
