//! Rows in memory with an index over one of their columns.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{ArrowNativeType, DataType, SchemaRef};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;
use overspill_index::{IndexKind, OrderedWords, RowIndex, RowOrder};

use super::failed;
use super::run::IndexRun;

/// Row numbers share a directory entry in groups of `2^GROUP`.
const GROUP: u32 = 10;

/// A run is merged with the one before it when it has grown to more than one in `RATIO` of that one's rows.
const RATIO: usize = 8;

/// Rows in memory, numbered batch by batch, with an index over one of their columns.
///
/// An `INSERT` adds a run of its own, which is merged with the runs before it once it is no longer small beside them: a table has
/// few runs, and a row is merged few times.
#[derive(Debug)]
pub(crate) struct IndexedRows {
    column: usize,
    kind: IndexKind,
    runs: Vec<Arc<IndexRun>>,
    batches: Vec<RecordBatch>,
    /// The number of the first row of each batch, and the number of all rows.
    starts: Vec<usize>,
    /// The batch of the first row of each group.
    groups: Vec<u32>,
    /// What columns have in each batch, if they are of a fixed width and have no nulls.
    fixed: Vec<Option<FixedColumn>>,
    /// The addresses of all arrays, in the order of the table's partitions.
    scanned: Vec<usize>,
    memory: MemoryReservation,
}

/// The rows of a table by partition.
pub(crate) type Partitions<'a> = &'a [&'a [RecordBatch]];

/// The address of each array, which tells these rows from others while the arrays are kept, as arrays never change.
fn addresses(partitions: Partitions<'_>) -> impl Iterator<Item = usize> {
    let arrays = partitions.iter().flat_map(|batches| batches.iter()).flat_map(RecordBatch::columns);
    arrays.map(|array| Arc::as_ptr(array).cast::<()>() as usize)
}

impl IndexedRows {
    /// Builds an index over a column of rows on `threads` threads. `memory` pays for it.
    ///
    /// # Errors
    /// If the memory is not granted, a column of this type cannot be indexed, there are too many rows, or `is_cancelled` has become
    /// true.
    pub fn build(
        partitions: Partitions<'_>,
        column: usize,
        kind: IndexKind,
        memory: MemoryReservation,
        threads: usize,
        is_cancelled: &AtomicBool,
    ) -> Result<Self> {
        let batches: Vec<_> = partitions.iter().flat_map(|batches| batches.iter()).cloned().collect();
        let mut rows = Self {
            column,
            kind,
            runs: Vec::new(),
            batches: Vec::new(),
            starts: vec![0],
            groups: Vec::new(),
            fixed: Vec::new(),
            scanned: addresses(partitions).collect(),
            memory,
        };
        rows.add(batches, threads, is_cancelled)?;
        Ok(rows)
    }

    /// These rows and more. `partitions` are all rows of the table, as they are then.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn with_more(&self, new: Vec<RecordBatch>, partitions: Partitions<'_>) -> Result<Self> {
        let mut more = Self {
            column: self.column,
            kind: self.kind,
            runs: self.runs.clone(),
            batches: self.batches.clone(),
            starts: self.starts.clone(),
            groups: self.groups.clone(),
            fixed: self.fixed.clone(),
            scanned: addresses(partitions).collect(),
            memory: self.no_memory(),
        };
        // Counted although queries may still share these runs with the rows as they were.
        more.memory.try_grow(more.runs.iter().map(|run| run.bytes()).sum())?;
        more.add(new, 1, &AtomicBool::new(false))?;
        Ok(more)
    }

    /// Adds a run of batches, and merges runs.
    fn add(&mut self, batches: Vec<RecordBatch>, threads: usize, is_cancelled: &AtomicBool) -> Result<()> {
        let first = self.starts[self.starts.len() - 1];
        let columns: Vec<ArrayRef> = batches.iter().map(|batch| Arc::clone(batch.column(self.column))).collect();
        let order = RowOrder::of(&columns, first, is_cancelled).map_err(failed)?;
        let building = order.building_bytes(threads);
        self.memory.try_grow(building)?;
        let run = RowIndex::build(self.kind, &order, threads, is_cancelled).map_err(failed)?;
        self.memory.try_resize(self.memory.size() - building + run.bytes())?;
        self.runs.push(Arc::new(IndexRun::new(run)));
        while let [.., before, last] = &self.runs[..]
            && last.rows().len() * RATIO > before.rows().len()
        {
            let bytes = before.bytes() + last.bytes();
            self.memory.try_grow(bytes)?;
            let merged = RowIndex::merged(self.kind, before, last).map_err(failed)?;
            self.memory.shrink((2 * bytes).saturating_sub(merged.bytes()));
            self.runs.truncate(self.runs.len() - 2);
            self.runs.push(Arc::new(IndexRun::new(merged)));
            if is_cancelled.load(Ordering::Relaxed) {
                return exec_err!("The index is not built, as its statement was cancelled");
            }
        }
        for batch in batches.into_iter().filter(|batch| batch.num_rows() > 0) {
            let end = self.starts[self.starts.len() - 1] + batch.num_rows();
            let number = u32::try_from(self.batches.len())
                .map_err(|_| exec_datafusion_err!("The table has too many batches"))?;
            self.groups.resize(end.div_ceil(1 << GROUP), number);
            self.starts.push(end);
            if self.batches.is_empty() {
                self.fixed = batch.columns().iter().map(FixedColumn::of).collect();
            } else {
                for (fixed, column) in self.fixed.iter_mut().zip(batch.columns()) {
                    *fixed = fixed.take().and_then(|fixed| fixed.with(column));
                }
            }
            self.batches.push(batch);
        }
        Ok(())
    }

    /// The indexed column of the table.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The indexes, each over some of the rows.
    pub fn runs(&self) -> &[Arc<IndexRun>] {
        &self.runs
    }

    /// A reservation of nothing yet, in the name of the index.
    pub fn no_memory(&self) -> MemoryReservation {
        self.memory.new_empty()
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// The number of rows with a null in the indexed column.
    pub fn nulls(&self) -> usize {
        self.runs.iter().map(|run| run.nulls()).sum()
    }

    /// Bytes of the indexes.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.bytes()).sum()
    }

    /// Whether these are the rows.
    pub fn are(&self, partitions: Partitions<'_>) -> bool {
        self.scanned.iter().copied().eq(addresses(partitions))
    }

    /// Fetches columns of rows by their numbers, in any order. `words` are the words of the indexed column in these rows, or none: where they
    /// tell its values, nothing is read for it. Expected `O(1)` a value.
    pub fn fetch(
        &self,
        rows: &[u32],
        words: &[u64],
        columns: &[usize],
        schema: &SchemaRef,
        scratch: &mut Scratch,
    ) -> Result<RecordBatch> {
        let spans = self.spans(rows);
        scratch.pairs.clear();
        if spans.is_none() || self.fixed.iter().any(Option::is_none) {
            scratch.pairs.extend(rows.iter().map(|row| self.place(*row as usize)));
        }
        let of_words = |column: usize| {
            let are_known = column == self.column && words.len() == rows.len();
            are_known.then(|| OrderedWords::values(words, type_of(&self.batches, column))).flatten()
        };
        let fetched = columns.iter().map(|column| match (of_words(*column), &self.fixed[*column]) {
            (Some(values), _) => Ok(values),
            (None, Some(fixed)) => fixed.take(&scratch.pairs, spans.as_deref(), type_of(&self.batches, *column)),
            (None, None) => self.interleave(*column, scratch),
        });
        let fetched = fetched.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), fetched, &options)?)
    }

    /// The batch and the row in it of a row.
    fn place(&self, row: usize) -> (usize, usize) {
        let mut batch = self.groups[row >> GROUP] as usize;
        while self.starts[batch + 1] <= row {
            batch += 1;
        }
        (batch, row - self.starts[batch])
    }

    /// The parts of batches that are these rows, if each row is followed by the next of the table.
    fn spans(&self, rows: &[u32]) -> Option<Vec<Span>> {
        let [first, .., last] = *rows else { return None };
        if last.checked_sub(first)? as usize + 1 != rows.len() || !rows.is_sorted_by(|row, next| row < next) {
            return None;
        }
        let (mut spans, mut left) = (Vec::new(), rows.len());
        let (first, start) = self.place(first as usize);
        let mut start = start;
        for (number, batch) in self.batches.iter().enumerate().skip(first) {
            if left == 0 {
                break;
            }
            let end = (start + left).min(batch.num_rows());
            spans.push((number, start..end));
            left -= end - start;
            start = 0;
        }
        Some(spans)
    }

    /// The values of a column of any type. Arrow takes a look at each array that it is given, so it is given those that are met.
    fn interleave(&self, column: usize, scratch: &mut Scratch) -> Result<ArrayRef> {
        const NONE: u32 = u32::MAX;
        let Scratch { pairs, places, met, met_pairs } = scratch;
        places.resize(self.batches.len(), NONE);
        met.clear();
        met_pairs.clear();
        for (batch, row) in pairs {
            let place = &mut places[*batch];
            if *place == NONE {
                *place = met.len() as u32;
                met.push(*batch);
            }
            met_pairs.push((*place as usize, *row));
        }
        met.iter().for_each(|batch| places[*batch] = NONE);
        let arrays: Vec<&dyn Array> = met.iter().map(|batch| self.batches[*batch].column(column).as_ref()).collect();
        Ok(interleave(&arrays, met_pairs)?)
    }
}

/// A batch, and rows of it.
type Span = (usize, Range<usize>);

/// The type of a column.
fn type_of(batches: &[RecordBatch], column: usize) -> &DataType {
    batches[0].column(column).data_type()
}

/// The values of a column in each batch, which fetching reads without a way through arrays and their buffers.
#[derive(Debug, Clone)]
enum FixedColumn {
    Words(Vec<ScalarBuffer<u64>>),
    HalfWords(Vec<ScalarBuffer<u32>>),
}

impl FixedColumn {
    /// A column with the values of one batch; `None` if it has nulls or another width.
    fn of(array: &ArrayRef) -> Option<Self> {
        match array.data_type().primitive_width() {
            Some(8) => Self::Words(Vec::new()).with(array),
            Some(4) => Self::HalfWords(Vec::new()).with(array),
            _ => None,
        }
    }

    /// Adds the values of another batch.
    fn with(self, array: &ArrayRef) -> Option<Self> {
        if array.null_count() > 0 {
            return None;
        }
        Some(match self {
            Self::Words(mut values) => {
                values.push(values_of(array)?);
                Self::Words(values)
            }
            Self::HalfWords(mut values) => {
                values.push(values_of(array)?);
                Self::HalfWords(values)
            }
        })
    }

    /// Values by batch and row, or those of spans.
    fn take(&self, pairs: &[(usize, usize)], spans: Option<&[Span]>, data_type: &DataType) -> Result<ArrayRef> {
        fn taken<T: ArrowNativeType>(
            batches: &[ScalarBuffer<T>],
            pairs: &[(usize, usize)],
            spans: Option<&[Span]>,
        ) -> (usize, Buffer) {
            match spans {
                Some(spans) => {
                    let parts: Vec<_> = spans.iter().map(|(batch, rows)| &batches[*batch][rows.clone()]).collect();
                    let values = parts.concat();
                    (values.len(), Buffer::from_vec(values))
                }
                None => {
                    let values = pairs.iter().map(|(batch, row)| batches[*batch][*row]);
                    (pairs.len(), Buffer::from_iter(values))
                }
            }
        }
        let (len, values) = match self {
            Self::Words(batches) => taken(batches, pairs, spans),
            Self::HalfWords(batches) => taken(batches, pairs, spans),
        };
        let data = ArrayData::builder(data_type.clone()).len(len).add_buffer(values).build()?;
        Ok(make_array(data))
    }
}

/// The values of an array of this width; `None` if they do not lie as numbers of this width do.
fn values_of<T: ArrowNativeType>(array: &ArrayRef) -> Option<ScalarBuffer<T>> {
    let data = array.to_data();
    let [buffer] = data.buffers() else { return None };
    let is_aligned = buffer.as_ptr().align_offset(align_of::<T>()) == 0;
    is_aligned.then(|| ScalarBuffer::new(buffer.clone(), data.offset(), data.len()))
}

/// Memory that [`IndexedRows::fetch`] uses again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The batch and the row in it of each row.
    pairs: Vec<(usize, usize)>,
    /// For each batch its place among those met, if it has been.
    places: Vec<u32>,
    met: Vec<usize>,
    /// The same pairs, with the places of batches.
    met_pairs: Vec<(usize, usize)>,
}
