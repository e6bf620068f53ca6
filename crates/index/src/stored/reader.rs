//! Reads an index file.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::{Range, RangeInclusive};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use overspill_advisor::IndexKind;

use super::description::StoredDescription;
use super::error::{Result, StoredError};
use super::layout::{BLOCK, ENTRY, KEY, MAGIC, Trailer, checksum};
use super::writer::StoredIndexWriter;
use crate::index::Index;
use crate::keys::SortedKeys;
use crate::ranges::WordRanges;

/// Reads what an index file says of itself, and no more.
///
/// # Errors
/// If the file cannot be read, is no index file, or is damaged.
pub fn read_description(file: &File) -> Result<StoredDescription> {
    let trailer = read_trailer(file)?;
    let bytes = read(file, trailer.description(), trailer.description)?;
    if checksum(&bytes) != trailer.description_sum {
        return Err(StoredError::damaged("its description"));
    }
    Ok(serde_json::from_slice(&bytes)?)
}

pub(super) fn read_trailer(file: &File) -> Result<Trailer> {
    let size = file.metadata()?.len();
    let mut magic = [0; MAGIC.len()];
    let mut bytes = [0; Trailer::BYTES];
    let Some(place) = size.checked_sub((Trailer::BYTES + MAGIC.len()) as u64) else {
        return Err(StoredError::NotAnIndex);
    };
    read_at(file, &mut magic, 0)?;
    read_at(file, &mut bytes, place + MAGIC.len() as u64)?;
    if magic != MAGIC {
        return Err(StoredError::NotAnIndex);
    }
    Trailer::of(&bytes, size)
}

pub(super) fn read(file: &File, place: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| StoredError::damaged("its trailer"))?];
    read_at(file, &mut bytes, place)?;
    Ok(bytes)
}

/// Never by a mapping: reading a mapped file that somebody cuts off ends the process.
pub(super) fn read_at(file: &File, bytes: &mut [u8], place: u64) -> Result<()> {
    file.read_exact_at(bytes, place).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => StoredError::NotAnIndex,
        _ => StoredError::Io(error),
    })
}

/// The first place from `from` on of a key that is not `before`, found in steps that double.
fn place_of(keys: &[u64], from: usize, before: impl Fn(u64) -> bool) -> usize {
    let (mut from, mut step) = (from, 1);
    while keys.get(from + step - 1).is_some_and(|key| before(*key)) {
        from += step;
        step *= 2;
    }
    let end = (from + step - 1).min(keys.len());
    from + keys[from..end].partition_point(|key| before(*key))
}

pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// An index in a file. Lookups read its blocks, so that the memory of the system keeps those that are used.
#[derive(Debug)]
pub struct StoredIndex {
    file: File,
    trailer: Trailer,
    /// Over the first keys of blocks.
    firsts: Index,
    sums: Vec<u64>,
}

/// The rows that lookups have found, in the order of keys.
#[derive(Debug, Default)]
pub struct FoundRows {
    /// The numbers of the rows.
    pub rows: Vec<u64>,
    cursor: BlockCursor,
}

/// The places among the sorted keys that lookups have found.
#[derive(Debug, Default)]
pub struct FoundPlaces {
    /// Ranges of places in ascending order that do not touch.
    pub places: Vec<Range<u64>>,
    cursor: BlockCursor,
}

/// The block that was read last.
#[derive(Debug, Default)]
struct BlockCursor {
    /// The number of blocks that were read.
    blocks: usize,
    bytes: Vec<u8>,
    /// The number of the block, its keys, and the place after those that were found last.
    block: Option<u64>,
    keys: Vec<u64>,
    place: usize,
}

impl FoundRows {
    /// The number of blocks that were read.
    pub fn blocks(&self) -> usize {
        self.cursor.blocks
    }
}

impl FoundPlaces {
    /// The number of blocks that were read.
    pub fn blocks(&self) -> usize {
        self.cursor.blocks
    }

    /// Adds places, which are not before those that there are.
    fn add(&mut self, places: Range<u64>) {
        match self.places.last_mut() {
            _ if places.is_empty() => {}
            Some(last) if last.end >= places.start => last.end = last.end.max(places.end),
            _ => self.places.push(places),
        }
    }
}

impl StoredIndex {
    /// Opens an index of this kind, which its [description](read_description) has. `O(n)` in the number of blocks.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn open(file: File, kind: IndexKind) -> Result<Self> {
        let trailer = read_trailer(&file)?;
        let bytes = read(&file, trailer.directory(), trailer.blocks() * ENTRY as u64)?;
        if checksum(&bytes) != trailer.directory_sum {
            return Err(StoredError::damaged("its directory"));
        }
        let (entries, _) = bytes.as_chunks::<ENTRY>();
        let firsts = SortedKeys::write(entries.len(), |keys| {
            for (key, entry) in keys.iter_mut().zip(entries) {
                *key = words(entry).next().unwrap_or(0);
            }
        })?;
        let sums = entries.iter().filter_map(|entry| words(entry).nth(1)).collect();
        Ok(Self { file, trailer, firsts: Index::build(kind, Arc::new(firsts))?, sums })
    }

    /// Bytes of memory to open an index over this number of rows, but for what its kind takes.
    pub fn opening_bytes(rows: u64) -> usize {
        StoredIndexWriter::<File>::directory_bytes(rows).saturating_mul(2)
    }

    /// The number of rows, without those that have nulls.
    pub fn rows(&self) -> u64 {
        self.trailer.rows
    }

    /// Bytes of the blocks.
    pub fn block_bytes(&self) -> u64 {
        self.trailer.block_bytes()
    }

    /// Adds the rows with these keys, which are in ascending order. Reads a block or two for each key that is not in the block of
    /// the one before.
    ///
    /// # Errors
    /// If a block cannot be read or is damaged.
    pub fn look_up(&self, keys: &[u64], found: &mut FoundRows) -> Result<()> {
        let FoundRows { rows, cursor } = found;
        self.blocks_with(keys, cursor, |cursor, _, places| self.add_rows(cursor, places, rows))
    }

    /// Adds the places of these keys, which are in ascending order, and come after those of lookups before. Reads the same blocks as
    /// [`Self::look_up`].
    ///
    /// # Errors
    /// If a block cannot be read or is damaged.
    pub fn look_up_places(&self, keys: &[u64], found: &mut FoundPlaces) -> Result<()> {
        let mut cursor = std::mem::take(&mut found.cursor);
        let added = self.blocks_with(keys, &mut cursor, |_, block, Range { start, end }| {
            let first = block * BLOCK as u64;
            found.add(first + start as u64..first + end as u64);
        });
        found.cursor = cursor;
        added
    }

    /// Reads the blocks that may have these keys, and hands each to `add` with the places in it of a key.
    fn blocks_with(
        &self,
        keys: &[u64],
        cursor: &mut BlockCursor,
        mut add: impl FnMut(&BlockCursor, u64, Range<usize>),
    ) -> Result<()> {
        let mut places = Vec::new();
        for key in keys {
            // No other block has a key between the first and the last key of this one.
            let is_within = cursor.keys.first() < Some(key) && Some(key) < cursor.keys.last();
            if let Some(block) = cursor.block.filter(|_| is_within) {
                let within = self.within(block, &(*key..=*key), cursor)?;
                add(cursor, block, within);
                continue;
            }
            self.firsts.look_up(&[*key], &mut places);
            let Range { start, end } = places.first().cloned().unwrap_or(0..0);
            // The block before the first that begins with the key may end with it.
            for block in start.saturating_sub(1)..end.max(start) {
                let within = self.within(block as u64, &(*key..=*key), cursor)?;
                add(cursor, block as u64, within);
            }
        }
        Ok(())
    }

    /// How many rows have words of a set: at least, and at most. Reads nothing.
    pub fn count(&self, words: &WordRanges) -> (u64, u64) {
        let (mut least, mut most) = (0, 0);
        for blocks in self.blocks_of(words) {
            let count = (blocks.end - blocks.start) as u64;
            // All blocks but the first and the last are full of such rows.
            least += count.saturating_sub(2) * BLOCK as u64;
            most += count * BLOCK as u64;
        }
        (least, most.min(self.rows()))
    }

    /// Adds the rows with words of a set. Reads the blocks that may have them.
    ///
    /// # Errors
    /// If a block cannot be read or is damaged.
    pub fn look_up_ranges(&self, words: &WordRanges, found: &mut FoundRows) -> Result<()> {
        let FoundRows { rows, cursor } = found;
        for (range, blocks) in words.ranges().iter().zip(self.blocks_of(words)) {
            for block in blocks {
                let within = self.within(block as u64, range, cursor)?;
                self.add_rows(cursor, within, rows);
            }
        }
        Ok(())
    }

    /// Adds the places of words of a set. Reads up to two blocks for each range.
    ///
    /// # Errors
    /// If a block cannot be read or is damaged.
    pub fn look_up_place_ranges(&self, words: &WordRanges, found: &mut FoundPlaces) -> Result<()> {
        for (range, blocks) in words.ranges().iter().zip(self.blocks_of(words)) {
            let Some(last) = blocks.clone().next_back() else { continue };
            // All keys between the first and the last of the range are in it.
            let start = self.within(blocks.start as u64, range, &mut found.cursor)?.start;
            let end = self.within(last as u64, range, &mut found.cursor)?.end;
            found.add((blocks.start * BLOCK + start) as u64..(last * BLOCK + end) as u64);
        }
        Ok(())
    }

    /// The blocks that may have words of each range.
    fn blocks_of(&self, words: &WordRanges) -> Vec<Range<usize>> {
        let keys: Vec<u64> = words.ranges().iter().flat_map(|range| [*range.start(), *range.end()]).collect();
        let mut places = Vec::new();
        self.firsts.look_up(&keys, &mut places);
        places.chunks_exact(2).map(|bounds| bounds[0].start.saturating_sub(1)..bounds[1].end).collect()
    }

    /// The places in a block of the keys in a range, which is read if it is another than the last.
    fn within(&self, block: u64, range: &RangeInclusive<u64>, cursor: &mut BlockCursor) -> Result<Range<usize>> {
        let BlockCursor { blocks, bytes, block: last, keys, place } = cursor;
        if *last != Some(block) {
            *last = None;
            // An empty index has no block.
            let Some(sum) = self.sums.get(block as usize) else { return Ok(0..0) };
            let count = (self.rows() - block * BLOCK as u64).min(BLOCK as u64) as usize;
            bytes.resize(count * (KEY + self.trailer.row_bytes as usize), 0);
            read_at(&self.file, bytes, self.trailer.block(block))?;
            if checksum(bytes) != *sum {
                return Err(StoredError::damaged(format!("block {block}")));
            }
            keys.clear();
            keys.extend(words(&bytes[..count * KEY]));
            (*last, *blocks, *place) = (Some(block), *blocks + 1, 0);
        }
        // Keys mostly come in ascending order, each near the one before.
        let from = if keys[..*place].last() < Some(range.start()) { *place } else { 0 };
        let start = place_of(keys, from, |key| key < *range.start());
        let end = place_of(keys, start, |key| key <= *range.end());
        *place = end;
        Ok(start..end)
    }

    /// Adds the rows at these places of the block that was read last.
    fn add_rows(&self, cursor: &BlockCursor, Range { start, end }: Range<usize>, rows: &mut Vec<u64>) {
        let numbers = &cursor.bytes[cursor.keys.len() * KEY..];
        if self.trailer.row_bytes == 4 {
            let numbers = &numbers.as_chunks::<4>().0[start..end];
            rows.extend(numbers.iter().map(|row| u64::from(u32::from_le_bytes(*row))));
        } else {
            rows.extend(words(&numbers[8 * start..8 * end]));
        }
    }
}
