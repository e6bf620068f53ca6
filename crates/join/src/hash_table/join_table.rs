//! The hash table for keys of any layout, and the search for matches in it.

use super::bloom_filter::{BloomFilter, LazyFilter, MAX_KEYS, MatchRate};
use super::deal::{Dealt, HASH_BITS, Slots, deal_by_hash};
use super::key_set::KeySet;
use super::linear_probing::LinearProbingTable;
use super::matches::Lookups;
use super::multi::{MultiTable, Ranges};
use super::payload_rows::PayloadRows;
use super::perfect::{KeyRange, PerfectRows, PerfectTable};
use super::perfect_payloads::PerfectPayloads;
use super::regions::Regions;
use super::unchained::UnchainedTable;
use super::unique::{PayloadTable, UniqueTable, WordTable, lookups};
use super::visited::VisitedRows;
use crate::error::Result;
use crate::keys::{KeyCodec, KeyData, Keys, Word};
use crate::memory::HeldMemory;
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
    /// Unique keys, with their row numbers.
    Unique(UniqueTable),
    /// Unique keys, with their payloads.
    Payloads(PayloadTable),
    /// Keys that may have several rows, with their row numbers.
    Multi(MultiTable),
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

/// The build rows of matches, as the table stores them: the vector for the caller to fill.
pub(crate) trait FoundRows {
    /// The numbers of the rows.
    fn numbers(&mut self) -> &mut Vec<u32>;
    /// The payloads of the rows.
    fn packed(&mut self) -> &mut Vec<u64>;
}

/// The progress of searching the matches of a probe batch.
#[derive(Debug, Default)]
pub(crate) struct MatchCursor {
    ranges: Ranges,
    /// The next row to pair.
    row: usize,
    /// The match rate over all batches.
    rate: MatchRate,
}

impl From<Table> for JoinTable {
    fn from(table: Table) -> Self {
        Self { table, filter: LazyFilter::default() }
    }
}

impl From<WordTable> for Table {
    fn from(table: WordTable) -> Self {
        Self::Unique(UniqueTable::Word64(table))
    }
}

impl From<PerfectTable> for Table {
    fn from(table: PerfectTable) -> Self {
        match table {
            PerfectTable::Unique(table) => WordTable::Perfect(table).into(),
            PerfectTable::Grouped(table) => Self::Multi(MultiTable::Perfect(table)),
        }
    }
}

impl From<UnchainedTable<u64>> for Table {
    fn from(table: UnchainedTable<u64>) -> Self {
        if table.is_unique() { WordTable::Unchained(table).into() } else { Self::Multi(MultiTable::Word64(table)) }
    }
}

impl From<UnchainedTable<[u64; 2]>> for Table {
    fn from(table: UnchainedTable<[u64; 2]>) -> Self {
        if table.is_unique() {
            Self::Unique(UniqueTable::Word128(table))
        } else {
            Self::Multi(MultiTable::Word128(table))
        }
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
    pub(crate) fn build(keys: Keys, choice: TableChoice, threads: usize) -> Result<Self> {
        assert!(keys.len() <= Self::MAX_ROWS, "a hash table holds at most {} rows", Self::MAX_ROWS);
        let threads = threads_for(keys.len(), threads);
        let Keys { data, matchable } = keys;
        let is_matchable = |row: usize| matchable.as_ref().is_none_or(|matchable| matchable.is_valid(row));
        let table = match data {
            KeyData::Word64(words) => {
                let is_perfect = choice == TableChoice::Perfect;
                match is_perfect.then(|| KeyRange::of(&words, is_matchable, threads)).flatten() {
                    Some(range) => PerfectTable::build(&words, range, is_matchable, threads)?.into(),
                    None => hashed(&words, is_matchable, choice, threads)?,
                }
            }
            KeyData::Word128(words) => {
                let dealt = deal_by_hash(words.len(), |row| words[row], is_matchable, threads)?;
                UnchainedTable::<[u64; 2]>::build(&dealt, |entry| entry, words.len())?.into()
            }
            KeyData::Rows(keys) => {
                let dealt = deal_by_hash(keys.len(), |row| keys.hash(row), is_matchable, threads)?;
                // Rows with equal hashes may have different keys.
                Table::Multi(MultiTable::Bytes(UnchainedTable::build(&dealt, |entry| entry, keys.len())?, keys))
            }
        };
        Ok(table.into())
    }

    /// Builds a table that stores payloads instead of row numbers, on `threads` threads. Returns `None` if a key has two rows,
    /// or if no table of this choice stores payloads.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub(crate) fn of_payloads(
        rows: &impl PayloadRows,
        count: usize,
        choice: TableChoice,
        threads: usize,
    ) -> Result<Option<Self>> {
        let threads = threads_for(count, threads);
        if choice == TableChoice::Perfect
            && let Some(range) = KeyRange::of_chunks(rows, count, threads)
        {
            if range.count == 0 {
                return Ok(None);
            }
            let table = PerfectPayloads::build(rows, range, threads)?;
            return Ok(table.map(|table| Table::Payloads(PayloadTable::Perfect(table)).into()));
        }
        if choice > TableChoice::LinearProbing {
            return Ok(None);
        }
        let slots = Slots::cut(1 << HASH_BITS, count);
        let dealt =
            Dealt::of_chunks(rows, slots, threads, |key| key.hash() as u32 as usize, |key, payload| [key, payload])?;
        let table = LinearProbingTable::build(&dealt, |payload| payload)?;
        Ok(table.map(|table| Table::Payloads(PayloadTable::LinearProbing(table)).into()))
    }

    /// Maximum bytes that a row adds to a table while it is built, besides the bytes of its key.
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
        self.perfect().and_then(PerfectRows::order)
    }

    /// Returns the table for rows that have been reordered that way.
    pub(crate) fn in_order(self) -> Self {
        match self.table {
            Table::Unique(UniqueTable::Word64(WordTable::Perfect(table))) => {
                Table::from(WordTable::Perfect(table.in_order())).into()
            }
            _ => self,
        }
    }

    fn perfect(&self) -> Option<&PerfectRows> {
        match &self.table {
            Table::Unique(UniqueTable::Word64(WordTable::Perfect(table))) => Some(table),
            _ => None,
        }
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        match &self.table {
            Table::Unique(UniqueTable::Word64(WordTable::Perfect(table))) => table.bytes(),
            Table::Payloads(PayloadTable::Perfect(table)) => table.bytes(),
            Table::Multi(MultiTable::Perfect(table)) => table.bytes(),
            Table::Unique(UniqueTable::Word64(WordTable::LinearProbing(table)))
            | Table::Payloads(PayloadTable::LinearProbing(table)) => table.bytes(),
            Table::Unique(UniqueTable::Word64(WordTable::Unchained(table)))
            | Table::Multi(MultiTable::Word64(table)) => table.bytes(),
            Table::Unique(UniqueTable::Word128(table)) | Table::Multi(MultiTable::Word128(table)) => table.bytes(),
            Table::Multi(MultiTable::Bytes(table, keys)) => table.bytes() + keys.bytes(),
        }
    }

    /// Adds the key column that the table refers to, if any, to the memory that is held. Returns the bytes by which it grows.
    pub(crate) fn hold_keys(&self, held: &mut HeldMemory) -> usize {
        match &self.table {
            Table::Multi(MultiTable::Bytes(_, keys)) => keys.hold(held),
            _ => 0,
        }
    }

    /// Bytes of the table and of the filter that is added if most lookups find nothing.
    pub(crate) fn bytes_with_filter(&self) -> usize {
        self.bytes() + self.filterable_keys().map_or(0, BloomFilter::bytes)
    }

    /// The maximum number of keys, and their hashes. `None` if a lookup costs little more than checking a filter.
    fn hashes(&self) -> Option<(usize, Box<dyn Iterator<Item = u32> + '_>)> {
        Some(match &self.table {
            Table::Unique(UniqueTable::Word64(WordTable::Perfect(_)))
            | Table::Payloads(PayloadTable::Perfect(_))
            | Table::Multi(MultiTable::Perfect(_)) => return None,
            Table::Unique(UniqueTable::Word64(WordTable::LinearProbing(table)))
            | Table::Payloads(PayloadTable::LinearProbing(table)) => (table.capacity(), Box::new(table.hashes())),
            Table::Unique(UniqueTable::Word64(WordTable::Unchained(table)))
            | Table::Multi(MultiTable::Word64(table) | MultiTable::Bytes(table, _)) => {
                (table.len(), Box::new(table.hashes()))
            }
            Table::Unique(UniqueTable::Word128(table)) | Table::Multi(MultiTable::Word128(table)) => {
                (table.len(), Box::new(table.hashes()))
            }
        })
    }

    /// Maximum bytes of [`JoinTable::key_set`].
    pub(crate) fn key_set_bytes(&self) -> usize {
        // A slot of a perfect table has at least 4 bytes, and becomes a bit.
        self.hashes().map_or(self.bytes() / 32 + size_of::<u64>(), |(keys, _)| KeySet::bytes_of_hashes(keys))
    }

    /// The keys that have rows; `None` if there are too many for a set. `O(table)`.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub(crate) fn key_set(&self) -> Result<Option<KeySet>> {
        match &self.table {
            Table::Unique(UniqueTable::Word64(WordTable::Perfect(table))) => table.key_set().map(Some),
            Table::Payloads(PayloadTable::Perfect(table)) => table.key_set().map(Some),
            Table::Multi(MultiTable::Perfect(table)) => table.key_set().map(Some),
            _ => {
                let Some((keys, hashes)) = self.hashes() else { return Ok(None) };
                KeySet::of_hashes(keys, hashes)
            }
        }
    }

    /// The hashes of the keys that have rows, some perhaps repeated, for a [`KeySet`] of several tables. `O(table)`.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub(crate) fn key_hashes(&self) -> Result<Vec<u32>> {
        match self.hashes() {
            Some((_, hashes)) => Ok(hashes.collect()),
            None => Ok(self.key_set()?.and_then(|keys| keys.hashes_of_words()).unwrap_or_default()),
        }
    }

    /// Maximum keys of a filter for the table. `None` if a filter would not help.
    fn filterable_keys(&self) -> Option<usize> {
        let (keys, _) = self.hashes()?;
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
        self.filter.get_or_make(|| BloomFilter::of(keys, self.hashes()?.1).ok())
    }

    /// Whether lookups with this cursor go through a filter.
    pub(crate) fn is_filtered(&self, cursor: &MatchCursor) -> bool {
        cursor.rate.is_low() && self.filter.get().is_some()
    }

    /// Starts the search for the matches of a probe batch.
    pub(crate) fn start(&self, keys: &Keys, cursor: &mut MatchCursor) {
        cursor.row = 0;
        // Unique keys are looked up only when pairs are wanted, so that nothing is stored between lookup and pair.
        if let Table::Multi(table) = &self.table {
            let found = table.find(keys, self.filter(&cursor.rate), &mut cursor.ranges);
            self.filter.note(&mut cursor.rate, keys.len(), found);
        }
    }

    /// Finds the next pairs of matching rows, at most `limit`. They overwrite the vectors. Returns false once all pairs have
    /// been found.
    ///
    /// Pairs are in ascending order of the probe row, then of the build row. With `first_only`, a probe row is paired only with
    /// its first match.
    pub(crate) fn next_pairs(
        &self,
        keys: &Keys,
        cursor: &mut MatchCursor,
        limit: usize,
        first_only: bool,
        build: &mut impl FoundRows,
        probe: &mut Vec<u32>,
    ) -> bool {
        let MatchCursor { ranges, row, rate } = cursor;
        let rows = *row..keys.len().min(*row + limit);
        match &self.table {
            Table::Unique(table) => {
                table.find(keys, rows.clone(), (rate.is_low(), self.filter(rate)), build.numbers(), probe);
            }
            Table::Payloads(table) => {
                let lookups = lookups(keys, keys.words(), rows.clone(), (rate.is_low(), self.filter(rate)));
                table.find(lookups, build.packed(), probe);
            }
            Table::Multi(table) => {
                return table.next_pairs(keys, (ranges, row), (limit, first_only), build.numbers(), probe);
            }
        }
        self.filter.note(rate, rows.len(), probe.len());
        *row = rows.end;
        rows.end < keys.len()
    }

    /// The table divided into up to 2^`bits` regions; `None` unless keys are unique and fit a word.
    pub(crate) fn regions(&self, bits: u32) -> Option<Regions> {
        let order = match &self.table {
            Table::Unique(UniqueTable::Word64(table)) => table.order()?,
            Table::Payloads(table) => table.order(),
            Table::Unique(UniqueTable::Word128(_)) | Table::Multi(_) => return None,
        };
        Some(Regions::new(order, bits))
    }

    /// Finds the single match of each of these keys. Only for a table with regions.
    pub(crate) fn find_in_region(&self, lookups: Lookups<'_, u64>, build: &mut impl FoundRows, probe: &mut Vec<u32>) {
        match &self.table {
            Table::Unique(UniqueTable::Word64(table)) => table.find(lookups, build.numbers(), probe),
            Table::Payloads(table) => table.find(lookups, build.packed(), probe),
            Table::Unique(UniqueTable::Word128(_)) | Table::Multi(_) => unreachable!("a table without regions"),
        }
    }

    /// Marks every build row that matches a row of the probe batch. Only for a table of row numbers.
    ///
    /// The rows of a key are always marked together, so they are skipped if the first of them is already marked. The cost is
    /// linear even if both sides consist of duplicates.
    pub(crate) fn mark_matches(&self, keys: &Keys, cursor: &mut MatchCursor, visited: &VisitedRows) {
        let MatchCursor { ranges, rate, .. } = cursor;
        match &self.table {
            Table::Unique(table) => {
                // A search in a table of unique keys stores nothing in the cursor, so its vectors are free.
                let (build, probe) = (&mut ranges.begins, &mut ranges.ends);
                table.find(keys, 0..keys.len(), (rate.is_low(), self.filter(rate)), build, probe);
                self.filter.note(rate, keys.len(), probe.len());
                build.iter().for_each(|row| visited.set(*row));
            }
            Table::Payloads(_) => unreachable!("marked rows have numbers"),
            Table::Multi(table) => table.mark(keys, ranges, visited),
        }
    }
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
    let dealt = deal_by_hash(words.len(), |row| words[row], is_matchable, threads)?;
    if choice <= TableChoice::LinearProbing
        && let Some(table) = LinearProbingTable::build(&dealt, |place| u64::from(place as u32))?
    {
        return Ok(WordTable::LinearProbing(table).into());
    }
    Ok(UnchainedTable::<u64>::build(&dealt, |entry| entry, words.len())?.into())
}
