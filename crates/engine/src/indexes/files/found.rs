//! The rows of files that lookups in a stored index find.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::execution::memory_pool::MemoryReservation;
use overspill_index::{FoundPlaces, FoundRows, StoredError, StoredIndex, WordRanges, read_description};

use super::catalog::FileIndex;
use super::included::IncludedRows;
use super::included_writer::PAGE_ROWS;
use super::{cost, state};

/// Number of keys that are looked up before memory for what they find is asked for.
const STEP: usize = 1024;

/// Bytes for a row that is found: its number, and its part in a selection, which is made twice.
const FOUND_BYTES: usize = 8 + 2 * 2 * size_of::<(usize, bool)>();

/// What is sought in an index.
#[derive(Debug, Clone)]
pub(crate) enum Sought {
    /// Keys in ascending order.
    Keys(Arc<Vec<u64>>),
    /// A set of words.
    Words(WordRanges),
}

impl Sought {
    /// How many lookups these are.
    pub fn lookups(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.len(),
            Self::Words(words) => words.ranges().len(),
        }
    }
}

/// Rows of files, by file, in ascending order.
#[derive(Debug)]
pub(super) struct FileRowNumbers {
    pub rows: BTreeMap<PathBuf, Vec<u64>>,
    /// Number of blocks of the index that were read.
    pub blocks: usize,
    /// Pays for the rows.
    pub memory: MemoryReservation,
}

/// Rows of the included columns.
#[derive(Debug)]
pub(super) struct IncludedPlaces {
    pub included: IncludedRows,
    /// Ranges of rows, in ascending order.
    pub places: Vec<Range<u64>>,
    /// Number of blocks of the index that were read.
    pub blocks: usize,
    /// Pays for the ranges and the open columns.
    pub memory: MemoryReservation,
}

/// A lookup in a stored index, on a thread that may wait for the disk.
#[derive(Debug)]
pub(super) struct Finder {
    pub index: Arc<FileIndex>,
    pub sought: Sought,
    /// The files whose rows are wanted.
    pub files: Vec<PathBuf>,
    /// Whether rows are found whatever it costs.
    pub always: bool,
    pub memory: MemoryReservation,
}

/// An open index.
struct Opened {
    stored: StoredIndex,
    /// Its file.
    file: File,
    /// Bytes that have been paid for it.
    opening: usize,
}

/// Number of keys that are looked up to estimate the pages of all.
const SAMPLE: usize = 256;

/// Why rows in most pages are not read by a selection.
pub(super) const TOO_MANY_PAGES: &str = "rows in more pages than are worth reading";

const TOO_MANY: &str = "more rows than are worth finding";
const NO_MEMORY: &str = "no memory for the index or the rows it finds";
const CANCELLED: &str = "cancelled";

impl Finder {
    /// Finds the rows. An error is why the files are scanned.
    pub fn find(mut self, is_cancelled: &AtomicBool) -> Result<FileRowNumbers, String> {
        let unusable = |error: StoredError| format!("{}: {error}", self.index.path.display());
        let total = self.index.description.table_rows();
        let Opened { stored, opening, .. } = self.open()?;
        let most = if self.always { u64::MAX } else { cost::most_rows(total) };
        let mut found = FoundRows::default();
        let mut counted = 0;
        let mut account = |found: &FoundRows, memory: &mut MemoryReservation| {
            if found.rows.len() as u64 > most {
                return Err(TOO_MANY);
            }
            memory.try_grow((found.rows.len() - counted) * FOUND_BYTES).map_err(|_| NO_MEMORY)?;
            counted = found.rows.len();
            if is_cancelled.load(Ordering::Relaxed) { Err(CANCELLED) } else { Ok(()) }
        };
        match &self.sought {
            Sought::Keys(keys) => {
                if let Some((step, sample)) = self.sample(keys) {
                    let mut of_sample = FoundRows::default();
                    stored.look_up(&sample, &mut of_sample).map_err(unusable)?;
                    if !cost::seems_worth_it(total, cost::PAGE, &of_sample.rows, step, keys.len()) {
                        return Err(TOO_MANY_PAGES.to_owned());
                    }
                }
                for keys in keys.chunks(STEP) {
                    stored.look_up(keys, &mut found).map_err(unusable)?;
                    account(&found, &mut self.memory)?;
                }
            }
            Sought::Words(words) => {
                if stored.count(words).0 > most {
                    return Err(TOO_MANY.to_owned());
                }
                for range in words.ranges() {
                    stored.look_up_ranges(&WordRanges::of([range.clone()]), &mut found).map_err(unusable)?;
                    account(&found, &mut self.memory)?;
                }
            }
        }
        drop(stored);
        self.memory.shrink(opening);
        let blocks = found.blocks();
        let mut rows = found.rows;
        rows.sort_unstable();
        let rows = self.by_file(&rows)?;
        Ok(FileRowNumbers { rows, blocks, memory: self.memory })
    }

    /// Finds the rows in the included columns. An error is why the files are scanned.
    pub fn find_included(mut self, is_cancelled: &AtomicBool) -> Result<IncludedPlaces, String> {
        let path = &self.index.path;
        let unusable = |error: StoredError| format!("{}: {error}", path.display());
        let Opened { stored, file, opening } = self.open()?;
        let mut found = FoundPlaces::default();
        let mut counted = 0;
        let mut account = |found: &FoundPlaces, memory: &mut MemoryReservation| {
            memory.try_grow((found.places.len() - counted) * FOUND_BYTES).map_err(|_| NO_MEMORY)?;
            counted = found.places.len();
            if is_cancelled.load(Ordering::Relaxed) { Err(CANCELLED) } else { Ok(()) }
        };
        match &self.sought {
            Sought::Keys(keys) => {
                if let Some((step, sample)) = self.sample(keys) {
                    let mut of_sample = FoundPlaces::default();
                    stored.look_up_places(&sample, &mut of_sample).map_err(unusable)?;
                    let rows: Vec<u64> = of_sample.places.iter().flat_map(Range::clone).collect();
                    if !cost::seems_worth_it(stored.rows(), PAGE_ROWS as u64, &rows, step, keys.len()) {
                        return Err(TOO_MANY_PAGES.to_owned());
                    }
                }
                for keys in keys.chunks(STEP) {
                    stored.look_up_places(keys, &mut found).map_err(unusable)?;
                    account(&found, &mut self.memory)?;
                }
            }
            Sought::Words(words) => {
                stored.look_up_place_ranges(words, &mut found).map_err(unusable)?;
                account(&found, &mut self.memory)?;
            }
        }
        drop(stored);
        self.memory.shrink(opening);
        if let Some(change) = self.index.change() {
            return Err(change);
        }
        let included = IncludedRows::open(file, path).map_err(|error| error.to_string())?;
        self.memory.try_grow(included.memory_bytes()).map_err(|_| NO_MEMORY)?;
        let blocks = found.blocks();
        Ok(IncludedPlaces { included, places: found.places, blocks, memory: self.memory })
    }

    /// Opens the index. An error is why it cannot be used.
    fn open(&self) -> Result<Opened, String> {
        let unusable = |error: StoredError| format!("{}: {error}", self.index.path.display());
        let opening = StoredIndex::opening_bytes(self.index.description.table_rows());
        self.memory.try_grow(opening).map_err(|_| NO_MEMORY)?;
        let file = File::open(&self.index.path).map_err(|error| unusable(error.into()))?;
        if read_description(&file).map_err(unusable)? != self.index.description {
            return Err("the index was just made anew".to_owned());
        }
        let again = file.try_clone().map_err(|error| unusable(error.into()))?;
        let stored = StoredIndex::open(again, self.index.description.kind).map_err(unusable)?;
        Ok(Opened { stored, file, opening })
    }

    /// Takes every `step`th key as a sample, and returns `step` and the sample. Returns `None` if the keys are few, or if `always` is
    /// set.
    fn sample(&self, keys: &[u64]) -> Option<(usize, Vec<u64>)> {
        let step = keys.len() / SAMPLE;
        (!self.always && step >= 4).then(|| (step, keys.iter().copied().step_by(step).collect()))
    }

    /// The rows of each of the files, which are checked once more.
    fn by_file(&self, mut rows: &[u64]) -> Result<BTreeMap<PathBuf, Vec<u64>>, String> {
        let mut wanted: Vec<_> = self.files.iter().filter_map(|path| Some((self.index.file(path)?, path))).collect();
        wanted.sort_unstable_by_key(|((number, _), _)| *number);
        let mut wanted = wanted.into_iter().peekable();
        let (mut by_file, mut first) = (BTreeMap::new(), 0);
        for (number, file) in self.index.description.files.iter().enumerate() {
            let (own, rest) = rows.split_at(rows.partition_point(|row| *row < first + file.rows));
            rows = rest;
            if let Some((_, path)) = wanted.next_if(|((wanted, _), _)| *wanted == number)
                && !own.is_empty()
            {
                if let Some(change) = state::change(file, path) {
                    return Err(change);
                }
                by_file.insert(path.clone(), own.iter().map(|row| row - first).collect());
            }
            first += file.rows;
        }
        Ok(by_file)
    }
}
