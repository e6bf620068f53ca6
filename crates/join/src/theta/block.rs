//! Rows of one side in memory, in an order in which the matches of a row of the other side are found quickly.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::take;

use super::keys::{KeyWords, SortedKeys, StreamKey};
use super::output::MatchedRows;
use super::ranks::Ranks;
use super::spec::{BlockSearch, ThetaSpec};
use crate::error::{JoinError, Result};
use crate::memory::{Grant, HeldMemory, RowSizes, UnitMemory, column_bytes};
use crate::rows::{concat_arrays, concat_batches, scatter_batches};
use crate::spec::Side;

/// Maximum rows of a block, unless one batch has more: sorting more would keep a thread busy for seconds.
const MAX_ROWS: usize = 8 << 20;

/// Maximum bytes of a block, unless one batch has more: 32-bit offsets must address the values of a column, and building a
/// block copies it.
const MAX_BYTES: usize = 512 << 20;

/// Bytes that sorting takes per row and key besides the key words: row numbers, positions and ranks.
const SORTING_BYTES: usize = 24;

/// Copies of a key's words that exist at once during sorting.
const KEY_COPIES: usize = 4;

/// Collects batches for a [`Block`].
///
/// The memory for building the block is reserved when a batch is added, so that building does not fail for lack of memory.
#[derive(Debug)]
pub struct BlockBuilder {
    spec: Arc<ThetaSpec>,
    side: Side,
    batches: Vec<RecordBatch>,
    /// The block keys of each batch; `None` if the block is not searched.
    keys: Option<Vec<Vec<ArrayRef>>>,
    held: HeldMemory,
    held_bytes: usize,
    grant: Grant,
    rows: usize,
}

/// The result of adding a batch.
#[derive(Debug)]
pub enum Pushed {
    /// The batch is in the block.
    Taken,
    /// The block is full; returns the batch.
    Full(RecordBatch),
    /// There is no memory for the batch; returns it with the reason.
    Refused(RecordBatch, JoinError),
}

impl BlockBuilder {
    /// Creates an empty block for rows of a side.
    pub fn new(spec: Arc<ThetaSpec>, side: Side, memory: &Arc<UnitMemory>) -> Self {
        let keys = spec.search(side).map(|_| Vec::new());
        let (batches, held) = (Vec::new(), HeldMemory::default());
        Self { spec, side, batches, keys, held, held_bytes: 0, grant: memory.grant(), rows: 0 }
    }

    /// Adds a batch, unless the block is full or there is no memory.
    pub fn push(&mut self, batch: RecordBatch) -> Pushed {
        if self.rows > 0 && (self.rows + batch.num_rows() > MAX_ROWS || self.held_bytes > MAX_BYTES) {
            return Pushed::Full(batch);
        }
        let keys = self.evaluate(&batch);
        let (bytes, total) = needed(&mut self.held, &batch, keys.as_deref());
        match self.grant.try_grow(total) {
            Ok(()) => {
                self.take(batch, keys, bytes);
                Pushed::Taken
            }
            Err(error) => {
                // The buffers of the batch may be freed, and their addresses reused.
                self.held = HeldMemory::default();
                Pushed::Refused(batch, error)
            }
        }
    }

    /// Adds a batch even if that exceeds the budget: without it the join could not continue.
    pub fn push_first(&mut self, batch: RecordBatch) {
        let keys = self.evaluate(&batch);
        let (bytes, total) = needed(&mut self.held, &batch, keys.as_deref());
        self.grant.grow(total);
        self.take(batch, keys, bytes);
    }

    fn take(&mut self, batch: RecordBatch, keys: Option<Vec<ArrayRef>>, bytes: usize) {
        self.rows += batch.num_rows();
        self.held_bytes += bytes;
        self.batches.push(batch);
        match (&mut self.keys, keys) {
            (Some(all), Some(keys)) => all.push(keys),
            (all, _) => *all = None,
        }
    }

    /// The block keys of a batch. If they cannot be evaluated for one batch, the block is not searched: an expression that
    /// fails for a row may be one that the condition never evaluates for such rows.
    fn evaluate(&self, batch: &RecordBatch) -> Option<Vec<ArrayRef>> {
        self.keys.as_ref()?;
        self.spec.search(self.side)?.block_keys.evaluate(batch).ok()
    }

    /// Number of rows so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes that the block takes until it has been built.
    pub fn bytes(&self) -> usize {
        self.grant.bytes()
    }

    /// Returns the batches if they cannot stay in memory. Dropping the grant returns their memory.
    pub fn into_batches(self) -> (Vec<RecordBatch>, Grant) {
        (self.batches, self.grant)
    }

    /// Builds the block from the sorted rows. Takes up to a second for many rows.
    ///
    /// # Errors
    /// Fails if an Arrow kernel does.
    pub fn finish(self) -> Result<Block> {
        let Self { spec, side, batches, keys, rows, mut grant, .. } = self;
        let schema = spec.schema(side);
        let (batch, index) = match spec.search(side).zip(keys) {
            Some((search, keys)) if rows > 0 => {
                let keys = (0..keys[0].len())
                    .map(|key| concat_arrays(&keys.iter().map(|keys| Arc::clone(&keys[key])).collect::<Vec<_>>(), 1));
                let (order, index) = Index::new(search, keys.collect::<Result<_>>()?, rows)?;
                (scatter_batches(schema, batches, &[UInt32Array::from(order)])?.remove(0), Some(index))
            }
            _ => (concat_batches(schema, batches, 1)?, None),
        };
        let matched = MatchedRows::new(if spec.tracks(side) { rows } else { 0 });
        let bytes = HeldMemory::default().add(&batch)
            + index.as_ref().map_or(0, Index::bytes)
            + MatchedRows::bytes(matched.rows());
        let granted = grant.bytes();
        if bytes > granted {
            grant.grow(bytes - granted);
        } else {
            grant.shrink(granted - bytes);
        }
        Ok(Block { sizes: spec.row_sizes(side, &batch), batch, index, matched, _grant: grant })
    }
}

/// Bytes that a batch holds, and the total including what building the block takes.
fn needed(held: &mut HeldMemory, batch: &RecordBatch, keys: Option<&[ArrayRef]>) -> (usize, usize) {
    let bytes = held.add(batch);
    let sorting = |key: &ArrayRef| SORTING_BYTES * key.len() + KEY_COPIES * column_bytes(key);
    (bytes, 2 * bytes + keys.unwrap_or_default().iter().map(sorting).sum::<usize>())
}

/// Rows of one side in memory.
#[derive(Debug)]
pub struct Block {
    batch: RecordBatch,
    /// Bytes that copies of the block's rows take.
    sizes: RowSizes,
    index: Option<Index>,
    matched: MatchedRows,
    _grant: Grant,
}

impl Block {
    /// The rows, in the order of the block.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The rows that have matched, if the output depends on them.
    pub fn matched(&self) -> &MatchedRows {
        &self.matched
    }

    /// Bytes that copies of the block's rows take when they are compared and emitted.
    pub fn sizes(&self) -> &RowSizes {
        &self.sizes
    }

    pub(super) fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }
}

/// The order of a block's rows: rows with non-null keys by the first key, then the other rows.
#[derive(Debug)]
pub(super) struct Index {
    first: SortedKeys,
    second: Option<Second>,
}

#[derive(Debug)]
struct Second {
    keys: SortedKeys,
    /// The rank of each position, which is its place in `keys`.
    ranks: Ranks,
}

impl Index {
    /// The row numbers in their new order, and their index.
    fn new(search: &BlockSearch, keys: Vec<ArrayRef>, rows: usize) -> Result<(Vec<u32>, Self)> {
        debug_assert!(search.bounds.iter().all(|bound| bound.key < keys.len()));
        let nulls = keys.iter().fold(None, |nulls: Option<NullBuffer>, key| {
            NullBuffer::union(nulls.as_ref(), key.logical_nulls().as_ref())
        });
        let is_null = |row: &u32| nulls.as_ref().is_some_and(|nulls| nulls.is_null(*row as usize));
        let words = KeyWords::new(&keys[0])?;
        let mut order = words.sort((0..rows as u32).filter(|row| !is_null(row)));
        let first = SortedKeys::new(words, &order);
        let second = match keys.get(1) {
            Some(key) => {
                let words = KeyWords::new(&take(key, &UInt32Array::from(order.clone()), None)?)?;
                let positions = words.sort(0..order.len() as u32);
                let mut ranks = vec![0; positions.len()];
                for (rank, position) in positions.iter().enumerate() {
                    ranks[*position as usize] = rank as u32;
                }
                Some(Second { keys: SortedKeys::new(words, &positions), ranks: Ranks::new(ranks) })
            }
            None => None,
        };
        order.extend((0..rows as u32).filter(is_null));
        Ok((order, Self { first, second }))
    }

    fn bytes(&self) -> usize {
        self.first.bytes() + self.second.as_ref().map_or(0, |second| second.keys.bytes() + second.ranks.bytes())
    }

    /// The ranks by the second key, if there is one.
    pub(super) fn ranks(&self) -> Option<&Ranks> {
        self.second.as_ref().map(|second| &second.ranks)
    }

    /// For each stream row, the positions within the bounds on the first key, and the ranks within the bounds on the second
    /// key. `stream` has the stream key of each bound, with `rows` rows.
    pub(super) fn candidates(&self, search: &BlockSearch, stream: &[ArrayRef], rows: usize) -> Result<Candidates> {
        let mut positions = vec![self.first.all(); rows];
        let mut ranks = self.second.as_ref().map(|second| vec![second.keys.all(); rows]);
        let mut keys: Vec<(&ArrayRef, StreamKey)> = Vec::with_capacity(stream.len());
        let mut order = Vec::new();
        for (bound, array) in search.bounds.iter().zip(stream) {
            // `BETWEEN` compares one expression twice.
            let place = match keys.iter().position(|(other, _)| Arc::ptr_eq(other, array)) {
                Some(place) => place,
                None => {
                    keys.push((array, StreamKey::new(array)?));
                    keys.len() - 1
                }
            };
            let key = &keys[place].1;
            match (bound.key, &self.second, &mut ranks) {
                (1, Some(second), Some(ranks)) => second.keys.narrow(ranks, bound.comparison, key),
                _ => {
                    self.first.narrow(&mut positions, bound.comparison, key);
                    order.clone_from(&key.order);
                }
            }
        }
        Ok(Candidates { positions, ranks, order })
    }
}

/// The possible matches in a block for each stream row.
#[derive(Debug)]
pub(super) struct Candidates {
    pub(super) positions: Vec<Range<u32>>,
    pub(super) ranks: Option<Vec<Range<u32>>>,
    /// The rows that may have matches, ordered so that the matches of consecutive rows are close together.
    pub(super) order: Vec<u32>,
}
