//! The hash table for keys of any layout, and the search for matches in it.

use std::ops::Range;

use arrow::row::Rows;

use super::bloom_filter::{BloomFilter, LazyFilter, MAX_KEYS, MatchRate};
use super::deal::{Dealt, HASH_BITS, Slots, deal_by_hash};
use super::linear_probing::LinearProbingTable;
use super::matches::Lookups;
use super::payload_rows::PayloadRows;
use super::perfect::{KeyRange, PerfectTable};
use super::perfect_payloads::PerfectPayloads;
use super::regions::{Regions, TableOrder};
use super::unchained::UnchainedTable;
use super::visited::VisitedRows;
use crate::error::Result;
use crate::keys::hash_bytes;
use crate::keys::{KeyCodec, KeyData, Keys, Word};
use crate::radix::region_of_this_machine;

/// Rows that justify another thread.
const ROWS_PER_THREAD: usize = 32 << 10;

/// A hash table over the keys of the build side.
#[derive(Debug)]
pub struct JoinTable {
    table: Table,
    /// Built when most lookups find nothing.
    filter: LazyFilter,
}

#[derive(Debug)]
enum Table {
    /// Keys of at most 64 bits in a dense range.
    Perfect(PerfectTable),
    /// Unique keys of at most 64 bits in a dense range, with payloads.
    PerfectPayloads(PerfectPayloads),
    /// Unique keys of at most 64 bits, with their row numbers.
    Unique(LinearProbingTable),
    /// Unique keys of at most 64 bits, with payloads.
    Payloads(LinearProbingTable),
    /// Keys of at most 64 bits.
    Word64(UnchainedTable<u64>),
    /// Keys of at most 128 bits.
    Word128(UnchainedTable<[u64; 2]>),
    /// Other keys. The table stores their hashes, and rows with equal hashes are compared by their bytes.
    Rows(UnchainedTable<u64>, Rows),
}

/// The first table to try. If the keys do not allow it, the next one is tried.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableChoice {
    /// Perfect hashing, for keys of up to 64 bits in a dense range.
    #[default]
    Perfect,
    /// Linear probing, for unique keys of up to 64 bits.
    LinearProbing,
    /// Entries ordered by bucket, for any keys.
    Unchained,
}

impl TableChoice {
    /// All tables, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Perfect, Self::LinearProbing, Self::Unchained];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Perfect => "perfect",
            Self::LinearProbing => "linear_probing",
            Self::Unchained => "unchained",
        }
    }
}

/// The progress of searching the matches of a probe batch.
#[derive(Debug, Default)]
pub struct MatchCursor {
    /// For each probe row, the range of its matches in the table; matches before the range have been found.
    begins: Vec<u32>,
    ends: Vec<u32>,
    row: usize,
    /// The match rate over all batches.
    rate: MatchRate,
}

impl From<Table> for JoinTable {
    fn from(table: Table) -> Self {
        Self { table, filter: LazyFilter::default() }
    }
}

impl JoinTable {
    /// Maximum number of rows in a table.
    pub const MAX_ROWS: usize = (u32::MAX - 1) as usize;

    /// Table bytes per row, for unique keys of up to 64 bits that are far apart.
    pub(crate) const UNIQUE_ROW_BYTES: usize = LinearProbingTable::TABLE_BYTES_PER_ROW;

    /// Builds the table on `threads` threads. Rows that cannot match are left out.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    ///
    /// # Panics
    /// Panics on more than [`MAX_ROWS`](Self::MAX_ROWS) rows.
    pub fn build(keys: Keys, choice: TableChoice, threads: usize) -> Result<Self> {
        assert!(keys.len() <= Self::MAX_ROWS, "a hash table holds at most {} rows", Self::MAX_ROWS);
        let threads = threads_for(keys.len(), threads);
        let Keys { data, matchable } = keys;
        let is_matchable = |row: usize| matchable.as_ref().is_none_or(|matchable| matchable.is_valid(row));
        let table = match data {
            KeyData::Word64(words) => {
                let is_perfect = choice == TableChoice::Perfect;
                match is_perfect.then(|| KeyRange::of(&words, is_matchable, threads)).flatten() {
                    Some(range) => Table::Perfect(PerfectTable::build(&words, range, is_matchable, threads)?),
                    None => hashed(&words, is_matchable, choice, threads)?,
                }
            }
            KeyData::Word128(words) => {
                Table::Word128(UnchainedTable::build(&deal_by_hash(&words, is_matchable, threads), words.len())?)
            }
            KeyData::Rows(rows) => {
                let hashes = hashes_of(&rows);
                let dealt = deal_by_hash(&hashes, is_matchable, threads);
                Table::Rows(UnchainedTable::build(&dealt, hashes.len())?, rows)
            }
        };
        Ok(table.into())
    }

    /// Builds a table that stores payloads instead of row numbers, on `threads` threads. [`JoinTable::next_payloads`] finds
    /// them. Returns `None` if a key has two rows, or if no table of this choice stores payloads.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory, or if the keys of a chunk cannot be computed.
    pub fn of_payloads(
        rows: &impl PayloadRows,
        count: usize,
        choice: TableChoice,
        threads: usize,
    ) -> Result<Option<Self>> {
        let threads = threads_for(count, threads);
        if choice == TableChoice::Perfect
            && let Some(range) = KeyRange::of_chunks(rows, threads)?
        {
            if range.count == 0 {
                return Ok(None);
            }
            let table = PerfectPayloads::build(rows, range, threads)?;
            return Ok(table.map(|table| Table::PerfectPayloads(table).into()));
        }
        if choice > TableChoice::LinearProbing {
            return Ok(None);
        }
        let slots = Slots::cut(1 << HASH_BITS, count);
        let dealt =
            Dealt::of_chunks(rows, slots, threads, |key| key.hash() as u32 as usize, |key, payload| [key, payload])?;
        let table = LinearProbingTable::build(&dealt, |[_, payload]| payload)?;
        Ok(table.map(|table| Table::Payloads(table).into()))
    }

    /// Maximum bytes that a row adds to a table while it is built, besides its key in row format.
    pub fn row_bytes(codec: &KeyCodec) -> usize {
        const WORD: usize = size_of::<u64>();
        // The packed key, or its hash, stays in memory while the table is built from it.
        let table = match codec.word_bytes() {
            Some(bytes) if bytes > WORD => UnchainedTable::<[u64; 2]>::BYTES_PER_ROW,
            _ => UnchainedTable::<u64>::BYTES_PER_ROW
                .max(LinearProbingTable::BYTES_PER_ROW)
                .max(2 * size_of::<u32>() + PerfectTable::BYTES_PER_ROW),
        };
        codec.packed_bytes().unwrap_or(WORD) + table
    }

    /// The row order in which the table would need no memory: for each position, the number of the row that belongs there, plus
    /// one. `None` if there is no such order or the rows are already in it.
    pub(crate) fn order(&self) -> Option<&[u32]> {
        match &self.table {
            Table::Perfect(table) => table.order(),
            _ => None,
        }
    }

    /// Returns the table for rows that have been reordered that way.
    pub(crate) fn in_order(self) -> Self {
        match self.table {
            Table::Perfect(table) => Table::Perfect(table.in_order()).into(),
            _ => self,
        }
    }

    /// Whether every key has at most one row.
    fn is_unique(&self) -> bool {
        match &self.table {
            Table::Perfect(table) => table.is_unique(),
            Table::PerfectPayloads(_) | Table::Unique(_) | Table::Payloads(_) => true,
            Table::Word64(table) => table.is_unique(),
            Table::Word128(table) => table.is_unique(),
            // Rows with equal hashes may have different keys.
            Table::Rows(..) => false,
        }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        match &self.table {
            Table::Perfect(table) => table.bytes(),
            Table::PerfectPayloads(table) => table.bytes(),
            Table::Unique(table) | Table::Payloads(table) => table.bytes(),
            Table::Word64(table) => table.bytes(),
            Table::Word128(table) => table.bytes(),
            Table::Rows(table, rows) => table.bytes() + rows.size(),
        }
    }

    /// Bytes of the table and of the filter that is added if most lookups find nothing.
    pub fn bytes_with_filter(&self) -> usize {
        self.bytes() + self.filterable_keys().map_or(0, BloomFilter::bytes)
    }

    /// Maximum keys of a filter for the table. `None` if a lookup costs little more than checking a filter, or a filter would
    /// not help.
    fn filterable_keys(&self) -> Option<usize> {
        let keys = match &self.table {
            Table::Perfect(_) | Table::PerfectPayloads(_) => return None,
            Table::Unique(table) | Table::Payloads(table) => table.capacity(),
            Table::Word64(table) | Table::Rows(table, _) => table.len(),
            Table::Word128(table) => table.len(),
        };
        (keys <= MAX_KEYS && self.bytes() > region_of_this_machine()).then_some(keys)
    }

    /// The filter for lookups whose recent match rate is `rate`; `None` if a filter does not pay. If there is no memory for a
    /// filter, lookups use the table alone.
    fn filter(&self, rate: &MatchRate) -> Option<&BloomFilter> {
        if !rate.is_low() {
            return None;
        }
        let keys = self.filterable_keys()?;
        if !self.filter.pays(keys) {
            return None;
        }
        self.filter.get_or_make(|| {
            let filter = match &self.table {
                Table::Unique(table) | Table::Payloads(table) => BloomFilter::of(keys, table.hashes()),
                Table::Word64(table) | Table::Rows(table, _) => BloomFilter::of(keys, table.hashes()),
                Table::Word128(table) => BloomFilter::of(keys, table.hashes()),
                Table::Perfect(_) | Table::PerfectPayloads(_) => return None,
            };
            filter.ok()
        })
    }

    /// Whether lookups with this cursor go through a filter.
    pub fn is_filtered(&self, cursor: &MatchCursor) -> bool {
        cursor.rate.is_low() && self.filter.get().is_some()
    }

    /// Starts the search for the matches of a probe batch.
    pub fn start(&self, keys: &Keys, cursor: &mut MatchCursor) {
        let MatchCursor { begins, ends, row, rate } = cursor;
        *row = 0;
        begins.clear();
        ends.clear();
        if self.is_unique() {
            return;
        }
        let filter = self.filter(rate);
        let found = match (&self.table, &keys.data) {
            (Table::Perfect(table), KeyData::Word64(words)) => {
                table.find(words, begins, ends);
                keys.len()
            }
            (Table::Word64(table), KeyData::Word64(words)) => table.find(words, filter, begins, ends),
            (Table::Word128(table), KeyData::Word128(words)) => table.find(words, filter, begins, ends),
            (Table::Rows(table, _), KeyData::Rows(rows)) => table.find(&hashes_of(rows), filter, begins, ends),
            _ => unreachable!("both sides of a join share one key codec"),
        };
        self.filter.note(rate, keys.len(), found);
        if let Some(matchable) = &keys.matchable {
            for (row, (begin, end)) in begins.iter().zip(ends).enumerate() {
                if matchable.is_null(row) {
                    *end = *begin;
                }
            }
        }
    }

    /// Finds the next pairs of matching rows, at most `limit`. They overwrite the vectors. Returns false once all pairs have
    /// been found.
    ///
    /// Pairs are in ascending order of the probe row, then of the build row. With `first_only`, a probe row is paired only with
    /// its first match.
    pub fn next_pairs(
        &self,
        keys: &Keys,
        cursor: &mut MatchCursor,
        limit: usize,
        first_only: bool,
        build: &mut Vec<u32>,
        probe: &mut Vec<u32>,
    ) -> bool {
        if self.is_unique() {
            // Looks up the keys only now, so that nothing is stored between lookup and pair.
            let next = (cursor.row + limit).min(keys.len());
            self.find_one(keys, cursor.row..next, &mut cursor.rate, build, probe);
            cursor.row = next;
            return next < keys.len();
        }
        build.clear();
        probe.clear();
        match &self.table {
            Table::Perfect(table) => {
                pairs(|place| table.row(place), cursor, limit, first_only, |_, _| true, build, probe)
            }
            Table::Word64(table) => {
                pairs(|place| table.row(place), cursor, limit, first_only, |_, _| true, build, probe)
            }
            Table::Word128(table) => {
                pairs(|place| table.row(place), cursor, limit, first_only, |_, _| true, build, probe)
            }
            Table::Rows(table, build_rows) => {
                let same = same_bytes(build_rows, keys);
                pairs(|place| table.row(place), cursor, limit, first_only, same, build, probe)
            }
            Table::PerfectPayloads(_) | Table::Unique(_) | Table::Payloads(_) => unreachable!("looked up above"),
        }
    }

    /// The table divided into up to 2^`bits` regions; `None` unless keys are unique and fit a word.
    pub(crate) fn regions(&self, bits: u32) -> Option<Regions> {
        let order = match &self.table {
            Table::Unique(_) | Table::Payloads(_) => TableOrder::Hash,
            Table::Perfect(table) => table.range()?,
            Table::PerfectPayloads(table) => table.range(),
            _ => return None,
        };
        Some(Regions::new(order, bits))
    }

    /// Finds the single match of each of these keys. Only for a table with regions and without payloads.
    pub(crate) fn find_rows(&self, lookups: Lookups<'_, u64>, build: &mut Vec<u32>, probe: &mut Vec<u32>) {
        match &self.table {
            Table::Perfect(table) => table.find_one(lookups, build, probe),
            Table::Unique(table) => table.find_one(lookups, |row| row as u32, build, probe),
            _ => unreachable!("a table without regions"),
        }
    }

    /// Finds the payloads of keys, and the numbers of their keys. Only for a table with payloads.
    pub(crate) fn find_payloads(&self, lookups: Lookups<'_, u64>, payloads: &mut Vec<u64>, probe: &mut Vec<u32>) {
        match &self.table {
            Table::PerfectPayloads(table) => table.find_one(lookups, payloads, probe),
            Table::Payloads(table) => table.find_one(lookups, |payload| payload, payloads, probe),
            _ => unreachable!("a table without payloads"),
        }
    }

    /// Like [`JoinTable::next_pairs`], but returns payloads instead of build row numbers. Only for a table with payloads.
    pub fn next_payloads(
        &self,
        keys: &Keys,
        cursor: &mut MatchCursor,
        limit: usize,
        payloads: &mut Vec<u64>,
        probe: &mut Vec<u32>,
    ) -> bool {
        let KeyData::Word64(words) = &keys.data else { unreachable!("both sides of a join share one key codec") };
        let next = (cursor.row + limit).min(keys.len());
        let asked = (cursor.rate.is_low(), self.filter(&cursor.rate));
        self.find_payloads(lookups(keys, words, cursor.row..next, asked), payloads, probe);
        self.filter.note(&mut cursor.rate, next - cursor.row, probe.len());
        cursor.row = next;
        next < keys.len()
    }

    /// Finds the single match of each of these probe rows.
    fn find_one(
        &self,
        keys: &Keys,
        rows: Range<usize>,
        rate: &mut MatchRate,
        build: &mut Vec<u32>,
        probe: &mut Vec<u32>,
    ) {
        let (looked_up, asked) = (rows.len(), (rate.is_low(), self.filter(rate)));
        match (&self.table, &keys.data) {
            (Table::Perfect(table), KeyData::Word64(words)) => {
                table.find_one(lookups(keys, words, rows, asked), build, probe)
            }
            (Table::Unique(table), KeyData::Word64(words)) => {
                table.find_one(lookups(keys, words, rows, asked), |row| row as u32, build, probe);
            }
            (Table::Word64(table), KeyData::Word64(words)) => {
                table.find_one(lookups(keys, words, rows, asked), build, probe)
            }
            (Table::Word128(table), KeyData::Word128(words)) => {
                table.find_one(lookups(keys, words, rows, asked), build, probe)
            }
            _ => unreachable!("both sides of a join share one key codec"),
        }
        self.filter.note(rate, looked_up, probe.len());
    }

    /// Marks every build row that matches a row of the probe batch.
    ///
    /// The rows of a key are always marked together, so they are skipped if the first of them is already marked. The cost is
    /// linear even if both sides consist of duplicates.
    pub fn mark_matches(&self, keys: &Keys, cursor: &mut MatchCursor, visited: &VisitedRows) {
        if self.is_unique() {
            // A search in a table of unique keys stores nothing in the cursor, so its vectors are free.
            let MatchCursor { begins: build, ends: probe, rate, .. } = cursor;
            self.find_one(keys, 0..keys.len(), rate, build, probe);
            return build.iter().for_each(|row| visited.set(*row));
        }
        match &self.table {
            Table::Perfect(table) => mark(|place| table.row(place), cursor, |_, _| true, visited),
            Table::Word64(table) => mark(|place| table.row(place), cursor, |_, _| true, visited),
            Table::Word128(table) => mark(|place| table.row(place), cursor, |_, _| true, visited),
            Table::Rows(table, build_rows) => {
                mark(|place| table.row(place), cursor, same_bytes(build_rows, keys), visited);
            }
            Table::PerfectPayloads(_) | Table::Unique(_) | Table::Payloads(_) => unreachable!("looked up above"),
        }
    }
}

/// The lookups for these rows of a batch. `are_few` and `filter` are passed on.
fn lookups<'a, K>(
    keys: &'a Keys,
    words: &'a [K],
    rows: Range<usize>,
    (are_few, filter): (bool, Option<&'a BloomFilter>),
) -> Lookups<'a, K> {
    Lookups { first: rows.start, keys: &words[rows], matchable: keys.matchable.as_ref(), are_few, filter }
}

/// Limits the threads to what this number of rows justifies.
fn threads_for(rows: usize, threads: usize) -> usize {
    threads.min(rows / ROWS_PER_THREAD).max(1)
}

/// Builds a table of keys that are too far apart for perfect hashing.
fn hashed(
    words: &[u64],
    is_matchable: impl Fn(usize) -> bool + Sync,
    choice: TableChoice,
    threads: usize,
) -> Result<Table> {
    let dealt = deal_by_hash(words, is_matchable, threads);
    if choice <= TableChoice::LinearProbing
        && let Some(table) = LinearProbingTable::build(&dealt, |entry| u64::from(u64::row_of(&entry)))?
    {
        return Ok(Table::Unique(table));
    }
    Ok(Table::Word64(UnchainedTable::build(&dealt, words.len())?))
}

fn hashes_of(rows: &Rows) -> Vec<u64> {
    rows.iter().map(|row| hash_bytes(row.data())).collect()
}

/// Returns a comparison of the keys of a probe row and a build row with equal hashes.
fn same_bytes<'a>(build_rows: &'a Rows, keys: &'a Keys) -> impl Fn(usize, u32) -> bool + 'a {
    let KeyData::Rows(probe_rows) = &keys.data else { unreachable!("both sides of a join share one key codec") };
    |probe, build| probe_rows.row(probe).data() == build_rows.row(build as usize).data()
}

#[inline(always)]
fn pairs(
    row_at: impl Fn(u32) -> u32,
    cursor: &mut MatchCursor,
    limit: usize,
    first_only: bool,
    same: impl Fn(usize, u32) -> bool,
    build: &mut Vec<u32>,
    probe: &mut Vec<u32>,
) -> bool {
    let full = build.len() + limit;
    while let Some(begin) = cursor.begins.get_mut(cursor.row) {
        let end = cursor.ends[cursor.row];
        while *begin < end {
            if build.len() >= full {
                return true;
            }
            let build_row = row_at(*begin);
            *begin += 1;
            if same(cursor.row, build_row) {
                build.push(build_row);
                probe.push(cursor.row as u32);
                if first_only {
                    *begin = end;
                }
            }
        }
        cursor.row += 1;
    }
    false
}

fn mark(row_at: impl Fn(u32) -> u32, cursor: &MatchCursor, same: impl Fn(usize, u32) -> bool, visited: &VisitedRows) {
    for (row, (&begin, &end)) in cursor.begins.iter().zip(&cursor.ends).enumerate() {
        for build_row in (begin..end).map(&row_at).filter(|build_row| same(row, *build_row)) {
            if visited.get(build_row) {
                break;
            }
            visited.set(build_row);
        }
    }
}
