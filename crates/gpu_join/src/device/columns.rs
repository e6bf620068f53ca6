//! Keys and values in the format that kernels read.

use std::borrow::Cow;
use std::ops::Range;

use arrow::buffer::{NullBuffer, ScalarBuffer};
use overspill_kernels::{JoinSide, KeyWidth, Values};
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::transfer::{HostPool, PooledBuffer, TransferMethod};
use overspill_machine::{Error, Result};

use super::gpu::Gpu;
use super::link::{ColumnOf, Decompressed, LinkColumn, LinkCompressor, PIECE_ROWS};
use overspill_join::keys::{KeyData, Keys};
use overspill_join::parallel::{in_parallel, split};

/// The width of keys: one word.
pub(crate) const KEY: KeyWidth = KeyWidth::Eight;

/// Stored as the key of probe rows that cannot match. Build rows may have this key too: pairs found by it are dropped.
const NO_KEY: u64 = 0x5BF0_3635_D1C2_A3B7;

/// Returns one word per key: the key itself, or its hash.
pub(crate) fn words(keys: &Keys) -> Cow<'_, [u64]> {
    match &keys.data {
        KeyData::Word64(words) => Cow::Borrowed(words),
        KeyData::Word128(_) | KeyData::Rows(_) => Cow::Owned(keys.hashes()),
    }
}

/// The build rows that can match, in memory that kernels read.
#[derive(Debug)]
pub(crate) struct BuildColumns {
    pub(crate) keys: PooledBuffer,
    pub(crate) values: BuildValues,
    pub(crate) rows: u64,
    /// The smallest and the largest key; `None` without rows.
    pub(crate) range: Option<(u64, u64)>,
}

/// The value of each build row.
#[derive(Debug)]
pub(crate) enum BuildValues {
    /// The row number, which equals the position of its key.
    Numbers,
    /// The row number in 4 bytes. Used if some rows cannot match.
    Listed(PooledBuffer),
    /// The row's packed columns.
    Words {
        words: PooledBuffer,
        /// Whether any word has all bits set. Tables of unique keys use that value for an empty slot.
        has_all_ones: bool,
    },
}

impl BuildColumns {
    /// Copies the keys of all rows, part by part, and their packed columns if there are any, with `threads` threads.
    pub(crate) fn new(
        gpu: &Gpu,
        keys: &[Keys],
        payloads: Option<&[ScalarBuffer<u64>]>,
        threads: usize,
    ) -> Result<Self> {
        let words: Vec<_> = keys.iter().map(words).collect();
        let pieces = pieces(keys, &words, payloads);
        let rows = pieces.iter().map(Piece::matchable_rows).sum();
        let mut columns =
            Self { keys: gpu.host.take(rows * 8)?, values: BuildValues::Numbers, rows: rows as u64, range: None };
        columns.range =
            write(threads, &pieces, &mut columns.keys.as_mut_slice()?[..rows], |piece, row| piece.words[row]);
        columns.values = if payloads.is_some() {
            let mut buffer = gpu.host.take(rows * 8)?;
            let range = write(threads, &pieces, &mut buffer.as_mut_slice()?[..rows], |piece, row| piece.payloads[row]);
            let has_all_ones = range.is_some_and(|(_, largest)| largest == u64::MAX);
            BuildValues::Words { words: buffer, has_all_ones }
        } else if pieces.iter().any(|piece| piece.matchable.is_some()) {
            let mut numbers = gpu.host.take(rows * 4)?;
            write(threads, &pieces, &mut numbers.as_mut_slice()?[..rows], |piece, row| (piece.first + row) as u32);
            BuildValues::Listed(numbers)
        } else {
            BuildValues::Numbers
        };
        Ok(columns)
    }

    /// Maximum bytes of memory for `rows` rows.
    pub(crate) fn bytes(rows: usize) -> usize {
        2 * HostPool::size_for(rows * 8)
    }

    /// Whether the key range holds at most four possible keys per row.
    pub(crate) fn is_dense(&self) -> bool {
        const MOST_SPREAD: u64 = 4;
        self.range.is_some_and(|(smallest, largest)| (largest - smallest) / MOST_SPREAD < self.rows)
    }

    /// All rows, for kernels of this GPU.
    pub(crate) fn side(&self, gpu: &Gpu) -> Result<JoinSide<'_>> {
        self.side_of(gpu, 0..self.rows)
    }

    /// A range of the rows, for kernels of `gpu`, which may be another GPU than the one the columns were copied for.
    pub(crate) fn side_of(&self, gpu: &Gpu, rows: Range<u64>) -> Result<JoinSide<'_>> {
        let (start, count) = (rows.start, rows.end - rows.start);
        let values = match &self.values {
            BuildValues::Numbers => Values::RowIds(start),
            BuildValues::Listed(numbers) => Values::Four(numbers.view_from(gpu.device())?.slice(start * 4, count * 4)?),
            BuildValues::Words { words, .. } => {
                Values::Eight(words.view_from(gpu.device())?.slice(start * 8, count * 8)?)
            }
        };
        Ok(JoinSide { keys: self.keys.view_from(gpu.device())?.slice(start * 8, count * 8)?, values })
    }

    /// All rows, for the CPU.
    pub(crate) fn on_host(&self) -> HostColumns<'_> {
        let rows = usize::try_from(self.rows).unwrap_or(usize::MAX);
        let values = match &self.values {
            BuildValues::Numbers => HostValues::Numbers,
            BuildValues::Listed(numbers) => HostValues::Listed(&numbers.as_slice()[..rows]),
            BuildValues::Words { words, .. } => HostValues::Words(&words.as_slice()[..rows]),
        };
        HostColumns { keys: &self.keys.as_slice()[..rows], values }
    }

    /// Copies the keys to GPU memory.
    pub(crate) fn copy_keys(&self, stream: &Stream) -> Result<DeviceBuffer> {
        let rows = usize::try_from(self.rows).map_err(|_| Error::Invalid(format!("{} rows", self.rows)))?;
        DeviceBuffer::from_slice(stream, &self.keys.as_slice::<u64>()[..rows])
    }

    /// Bytes that kernels read to scan `rows` rows.
    pub(crate) fn link_bytes_of(&self, rows: u64) -> u64 {
        let value = match self.values {
            BuildValues::Numbers => 0,
            BuildValues::Listed(_) => 4,
            BuildValues::Words { .. } => 8,
        };
        rows * (8 + value)
    }
}

/// The build side as the CPU reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostColumns<'a> {
    keys: &'a [u64],
    values: HostValues<'a>,
}

#[derive(Debug, Clone, Copy)]
enum HostValues<'a> {
    Numbers,
    Listed(&'a [u32]),
    Words(&'a [u64]),
}

impl<'a> HostColumns<'a> {
    pub(crate) fn rows(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn keys(&self) -> &'a [u64] {
        self.keys
    }

    #[inline]
    pub(crate) fn key(&self, row: usize) -> u64 {
        self.keys[row]
    }

    #[inline]
    pub(crate) fn value(&self, row: usize) -> u64 {
        match self.values {
            HostValues::Numbers => row as u64,
            HostValues::Listed(numbers) => numbers[row].into(),
            HostValues::Words(words) => words[row],
        }
    }
}

/// The keys of a probe chunk, in memory that kernels read or that copies are made from. Includes packed columns if the values
/// are not row numbers.
#[derive(Debug)]
pub(crate) struct ProbeKeys {
    pub(crate) keys: LinkColumn,
    pub(crate) words: Option<LinkColumn>,
    pub(crate) rows: u64,
    /// Whether some rows cannot match.
    pub(crate) has_unmatchable: bool,
}

/// The columns of [`ProbeKeys`] that have been decompressed.
#[derive(Debug, Default)]
pub(crate) struct ProbeColumns {
    keys: Option<Decompressed>,
    words: Option<Decompressed>,
}

impl ProbeKeys {
    /// Copies the keys, and the packed columns if there are any, with `threads` threads.
    pub(crate) fn new(
        gpu: &Gpu,
        method: TransferMethod,
        keys: &[Keys],
        words_of: Option<&[ScalarBuffer<u64>]>,
        threads: usize,
    ) -> Result<Self> {
        let rows = keys.iter().map(Keys::len).sum::<usize>();
        let mut buffer = gpu.host.take_for(method, rows * 8)?;
        let parts = split(&mut buffer.as_mut_slice()?[..rows], keys.iter().map(Keys::len));
        in_parallel(threads, parts.into_iter().zip(keys).collect(), |(place, keys): (&mut [u64], &Keys)| {
            place.copy_from_slice(&words(keys));
            if let Some(matchable) = &keys.matchable {
                (0..matchable.len()).filter(|row| matchable.is_null(*row)).for_each(|row| place[row] = NO_KEY);
            }
        });
        let words = match words_of {
            Some(columns) => {
                let mut words = gpu.host.take(rows * 8)?;
                let parts = split(&mut words.as_mut_slice()?[..rows], columns.iter().map(|column| column.len()));
                let tasks = parts.into_iter().zip(columns).collect();
                in_parallel(threads, tasks, |(place, column): (&mut [u64], &ScalarBuffer<u64>)| {
                    place.copy_from_slice(column);
                });
                Some(LinkColumn::new(words, rows as u64))
            }
            None => None,
        };
        let has_unmatchable = keys.iter().any(|keys| keys.matchable.as_ref().is_some_and(|rows| rows.null_count() > 0));
        Ok(Self { keys: LinkColumn::new(buffer, rows as u64), words, rows: rows as u64, has_unmatchable })
    }

    /// Compresses the keys, and with `and_words` the packed columns, where `compressor` says so, with `threads` threads.
    pub(crate) fn compress(&mut self, compressor: &LinkCompressor, and_words: bool, threads: usize) -> Result<()> {
        let words = self.words.as_mut().filter(|_| and_words);
        for (of, column) in std::iter::once((ColumnOf::ProbeKeys, &mut self.keys))
            .chain(words.map(|words| (ColumnOf::ProbeValues, words)))
        {
            compressor.compress(of, column, threads)?;
        }
        Ok(())
    }

    /// Bytes of memory for `rows` rows.
    pub(crate) fn bytes(rows: usize, packed: bool) -> usize {
        HostPool::size_for(rows * 8) * if packed { 2 } else { 1 }
    }

    /// How far a unit that begins at the row `first` may go, so that decompressing its columns takes at most `budget` bytes of GPU memory, or
    /// what a piece of each takes.
    pub(crate) fn end_of_unit(&self, first: u64, budget: u64) -> u64 {
        let columns = std::iter::once(&self.keys).chain(&self.words).filter(|column| column.is_compressed()).count();
        match columns as u64 {
            0 => self.rows,
            columns => {
                let pieces = (budget / (columns * PIECE_ROWS * 8 * 2)).max(1);
                ((first / PIECE_ROWS + pieces) * PIECE_ROWS).min(self.rows)
            }
        }
    }

    /// The most bytes of GPU memory that decompressing the columns of `rows` takes.
    pub(crate) fn room(&self, rows: Range<u64>) -> u64 {
        self.keys.room(rows.clone()) + self.words.as_ref().map_or(0, |words| words.room(rows))
    }

    /// Decompresses what is compressed of `rows`, and waits.
    pub(crate) fn decompress(&self, gpu: &Gpu, stream: &Stream, rows: Range<u64>) -> Result<ProbeColumns> {
        let keys = self.keys.decompress(&gpu.cascade, stream, rows.clone())?;
        let words =
            self.words.as_ref().map(|words| words.decompress(&gpu.cascade, stream, rows)).transpose()?.flatten();
        Ok(ProbeColumns { keys, words })
    }

    /// Bytes that cross the link when kernels read `rows`, and with `and_words` their packed columns. Then the bytes that were saved.
    pub(crate) fn link_bytes(&self, rows: Range<u64>, and_words: bool) -> [u64; 2] {
        let words = self.words.as_ref().filter(|_| and_words);
        let columns = std::iter::once(&self.keys).chain(words);
        let (read, all) = columns.fold((0, 0), |(read, all), column| {
            (read + column.link_bytes(rows.clone()), all + (rows.end - rows.start) * 8)
        });
        [read, all.saturating_sub(read)]
    }

    /// A range of rows, for kernels that read them in place or where they have been decompressed.
    pub(crate) fn side<'a>(&'a self, rows: Range<u64>, there: &'a ProbeColumns) -> Result<JoinSide<'a>> {
        let values = match &self.words {
            Some(words) => Values::Eight(words.view(rows.clone(), there.words.as_ref())?),
            None => Values::RowIds(rows.start),
        };
        Ok(JoinSide { keys: self.keys.view(rows, there.keys.as_ref())?, values })
    }

    /// The values of all rows, in place: packed columns or row numbers.
    pub(crate) fn values(&self) -> Result<Values<'_>> {
        Ok(match &self.words {
            Some(words) => Values::Eight(words.view(0..self.rows, None)?),
            None => Values::RowIds(0),
        })
    }
}

/// Consecutive rows of a build side. One thread writes the rows of a piece that can match.
#[derive(Debug)]
struct Piece<'a> {
    words: &'a [u64],
    /// The packed columns; empty if there are none.
    payloads: &'a [u64],
    /// `None` if all rows can match.
    matchable: Option<NullBuffer>,
    /// The number of the first row.
    first: usize,
}

impl Piece<'_> {
    fn matchable_rows(&self) -> usize {
        self.matchable.as_ref().map_or(self.words.len(), |matchable| matchable.len() - matchable.null_count())
    }
}

/// Cuts the parts of a build side into pieces that keep threads equally busy.
fn pieces<'a>(keys: &[Keys], words: &'a [Cow<'_, [u64]>], payloads: Option<&'a [ScalarBuffer<u64>]>) -> Vec<Piece<'a>> {
    const MOST: usize = 1 << 18;
    let (mut pieces, mut first) = (Vec::with_capacity(keys.len()), 0);
    for (part, (keys, words)) in keys.iter().zip(words).enumerate() {
        let payloads: &[u64] = payloads.map_or(&[], |payloads| &payloads[part]);
        for start in (0..words.len()).step_by(MOST) {
            let rows = start..words.len().min(start + MOST);
            let matchable = keys.matchable.as_ref().map(|matchable| matchable.slice(start, rows.len()));
            pieces.push(Piece {
                words: &words[rows.clone()],
                payloads: payloads.get(rows.clone()).unwrap_or_default(),
                matchable: matchable.filter(|matchable| matchable.null_count() > 0),
                first,
            });
            first += rows.len();
        }
    }
    pieces
}

/// Writes the value of each row that can match to the next place. Returns the smallest and the largest value; `None` without rows.
fn write<T: Copy + Ord + Send>(
    threads: usize,
    pieces: &[Piece<'_>],
    places: &mut [T],
    value: impl Fn(&Piece<'_>, usize) -> T + Sync,
) -> Option<(T, T)> {
    let tasks = split(places, pieces.iter().map(Piece::matchable_rows)).into_iter().zip(pieces).collect();
    let ranges = in_parallel(threads, tasks, |(places, piece): (&mut [T], &Piece<'_>)| match &piece.matchable {
        None => write_each(places, 0..piece.words.len(), |row| value(piece, row)),
        Some(matchable) => write_each(places, matchable.valid_indices(), |row| value(piece, row)),
    });
    ranges.into_iter().flatten().reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
}

/// Writes the value of each row to the next place. Returns the smallest and the largest value.
fn write_each<T: Copy + Ord>(
    places: &mut [T],
    rows: impl Iterator<Item = usize>,
    value: impl Fn(usize) -> T,
) -> Option<(T, T)> {
    let mut range = None;
    for (place, row) in places.iter_mut().zip(rows) {
        let value = value(row);
        *place = value;
        range = Some(range.map_or((value, value), |(low, high): (T, T)| (low.min(value), high.max(value))));
    }
    range
}
