//! Selection and aggregation in one pass over columns.

use std::ops::Range;

use overspill_machine::driver::{Arguments, Function, Stream};
use overspill_machine::memory::{DeviceBuffer, View};
use overspill_machine::transfer::{Source, TransferPipeline};
use overspill_machine::{Error, Result};

use crate::Kernels;
use crate::share::Share;

const THREADS: u32 = 256;
/// Equal to `kSelectionColumns` and `kSelectionAggregates`.
const MOST_COLUMNS: usize = 16;
const MOST_AGGREGATES: usize = 8;
/// The alignment of a page's columns in bytes: a line of CPU memory, as GPUs read it.
const ALIGNMENT: u64 = 128;
/// Words in the result of an aggregate.
const RESULT_WORDS: usize = 3;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectionColumn {
    /// Whether values are 8 bytes wide instead of 4. They are signed.
    pub is_wide: bool,
    /// Whether values may be null.
    pub nullable: bool,
}

/// A filter on a column's values, with inclusive bounds. Nulls do not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectionRange {
    /// The index of the column.
    pub column: usize,
    /// The lowest value.
    pub lowest: i64,
    /// The highest value.
    pub highest: i64,
}

/// An aggregate over the selected rows whose columns are not null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionAggregate {
    /// The number of rows.
    Count(usize),
    /// The sum, modulo 2^128.
    Sum(usize),
    /// The sum of the products of two columns, modulo 2^128.
    SumOfProducts(usize, usize),
    /// The smallest value.
    Min(usize),
    /// The largest value.
    Max(usize),
}

/// Filters and aggregates over a set of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectionPlan {
    /// The columns.
    pub columns: Vec<SelectionColumn>,
    /// The filters. A row is selected if it passes all of them.
    pub ranges: Vec<SelectionRange>,
    /// The aggregates over the selected rows.
    pub aggregates: Vec<SelectionAggregate>,
}

/// The layout of the columns in a page of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectionPage {
    /// For each column the byte range of its values and, if it is nullable, of its validity bitmap, one bit per row from the
    /// lowest on.
    pub columns: Vec<(Range<u64>, Range<u64>)>,
    /// Bytes of the page.
    pub bytes: u64,
}

/// The result of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectionValue {
    /// The number of rows aggregated.
    pub rows: u64,
    /// The value. Unspecified for a count, or if there are no rows.
    pub value: i128,
}

/// The results of a selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectionTotals {
    /// The number of selected rows.
    pub selected: u64,
    /// The aggregate values, in the order of the plan.
    pub values: Vec<SelectionValue>,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct ColumnArguments {
    values: u64,
    validity: u64,
    width: u64,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct RangeArguments {
    lowest: i64,
    highest: i64,
    column: u64,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct AggregateArguments {
    function: u32,
    left: u32,
    right: u32,
    padding: u32,
}

/// The layout of `selection.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct SelectionArguments {
    rows: u64,
    ranges: u32,
    aggregates: u32,
    columns: [ColumnArguments; MOST_COLUMNS],
    range: [RangeArguments; MOST_COLUMNS],
    aggregate: [AggregateArguments; MOST_AGGREGATES],
    results: u64,
}

impl SelectionPlan {
    /// Checks that kernels support the plan. They keep state of each column, range and aggregate in registers.
    ///
    /// # Errors
    /// If it has more than 16 columns, 16 ranges or 8 aggregates, or refers to a column that does not exist.
    pub fn check(&self) -> Result<()> {
        for (name, number, most) in [
            ("columns", self.columns.len(), MOST_COLUMNS),
            ("ranges", self.ranges.len(), MOST_COLUMNS),
            ("aggregates", self.aggregates.len(), MOST_AGGREGATES),
        ] {
            if number > most {
                return Err(Error::Invalid(format!("a selection of {number} {name}: kernels take {most} at most")));
            }
        }
        let aggregated = self.aggregates.iter().flat_map(|aggregate| {
            let (_, left, right) = aggregate.arguments();
            [left, right]
        });
        let named = self.ranges.iter().map(|range| range.column).chain(aggregated).max();
        match named {
            Some(column) if column >= self.columns.len() => {
                Err(Error::Invalid(format!("column {column} of a selection over {} columns", self.columns.len())))
            }
            _ => Ok(()),
        }
    }

    /// The layout of the columns in a page of `rows` rows.
    pub fn page(&self, rows: u64) -> SelectionPage {
        let mut bytes = 0;
        let mut place = |length: u64| {
            let start = bytes;
            bytes += length.next_multiple_of(ALIGNMENT);
            start..start + length
        };
        let columns = self
            .columns
            .iter()
            .map(|column| {
                let values = place(rows * if column.is_wide { 8 } else { 4 });
                (values, place(if column.nullable { rows.div_ceil(32) * 4 } else { 0 }))
            })
            .collect();
        SelectionPage { columns, bytes }
    }

    /// The maximum number of rows in a page of `bytes` bytes.
    pub fn page_rows(&self, bytes: u64) -> u64 {
        let bits = |column: &SelectionColumn| (if column.is_wide { 64 } else { 32 }) + u64::from(column.nullable);
        let bits: u64 = self.columns.iter().map(bits).sum();
        // Padding that alignment may add for each column and its validity bitmap.
        let spare = (ALIGNMENT + 4) * 2 * self.columns.len() as u64;
        bytes.saturating_sub(spare) * 8 / bits.max(1)
    }

    /// Bytes of `rows` rows in pages that start at multiples of `chunk` bytes.
    pub fn bytes(&self, rows: u64, chunk: u64) -> u64 {
        let page_rows = self.page_rows(chunk).max(1);
        let full = rows.saturating_sub(1) / page_rows;
        full * chunk + self.page(rows - full * page_rows).bytes
    }
}

impl SelectionAggregate {
    /// The kernels' number of the function, and its columns. With one column, both are the same.
    fn arguments(self) -> (u32, usize, usize) {
        match self {
            Self::Count(column) => (0, column, column),
            Self::Sum(column) => (1, column, column),
            Self::SumOfProducts(left, right) => (2, left, right),
            Self::Max(column) => (3, column, column),
            Self::Min(column) => (4, column, column),
        }
    }

    /// The initial words of the result.
    fn start(self) -> [u64; RESULT_WORDS] {
        match self {
            Self::Min(_) | Self::Max(_) => [i64::MIN as u64, 0, 0],
            Self::Count(_) | Self::Sum(_) | Self::SumOfProducts(..) => [0; RESULT_WORDS],
        }
    }

    fn value(self, [low, high, rows]: [u64; RESULT_WORDS]) -> SelectionValue {
        let value = match self {
            Self::Count(_) => 0,
            Self::Sum(_) | Self::SumOfProducts(..) => (u128::from(high) << 64 | u128::from(low)) as i128,
            Self::Max(_) => i128::from(low as i64),
            // Kernels compute the maximum of the complements.
            Self::Min(_) => i128::from(!(low as i64)),
        };
        SelectionValue { rows, value }
    }
}

/// A kernel that selects and aggregates.
#[derive(Debug)]
pub struct Selection {
    plan: SelectionPlan,
    function: Function,
    share: Share,
}

impl Selection {
    /// Loads the kernel for a plan. With `branching`, a row is skipped at the first range that it does not pass, and its
    /// remaining values need not cross the link. Otherwise all values are read and computed, and those of rows not selected
    /// are masked (predication; paper 2, section 7.2.4).
    ///
    /// # Errors
    /// As [`SelectionPlan::check`], or if the device is lost.
    pub fn new(kernels: &Kernels, plan: SelectionPlan, branching: bool) -> Result<Self> {
        plan.check()?;
        let how = if branching { "branching" } else { "predicated" };
        let aggregates = plan.aggregates.len().next_power_of_two();
        Ok(Self { function: kernels.function(&format!("select_{how}_{aggregates}"))?, share: kernels.share(), plan })
    }

    /// The plan.
    pub fn plan(&self) -> &SelectionPlan {
        &self.plan
    }

    /// Selects and aggregates `rows` rows, which a transfer method brings to the GPU. They are stored in pages. Each page
    /// starts at a multiple of the pipeline's chunk and has the layout of [`SelectionPlan::page`]. Each page is full
    /// ([`SelectionPlan::page_rows`]), except the last, which has the remaining rows. Reads every column at most once. Takes
    /// about 200 bytes of GPU memory during the run.
    ///
    /// # Errors
    /// If the method cannot read the source, the source is shorter than its pages, memory for the result is not available, or
    /// the device fails.
    pub fn run_transferred(
        &self,
        pipeline: &mut TransferPipeline,
        source: Source<'_>,
        rows: u64,
    ) -> Result<SelectionTotals> {
        let result_stream = Stream::new(self.function.device())?;
        let starts = self.plan.aggregates.iter().flat_map(|aggregate| aggregate.start());
        let results = DeviceBuffer::from_slice(&result_stream, &starts.chain([0]).collect::<Vec<u64>>())?;
        let blocks = self.share.blocks(self.function.resident_blocks(THREADS, 0)?);
        let chunk = pipeline.shape().chunk_bytes;
        let page_rows = self.plan.page_rows(chunk);
        if rows > 0 && page_rows == 0 {
            return Err(Error::Invalid(format!("a page of {chunk} bytes has no room for a row")));
        }
        let bytes = self.plan.bytes(rows, chunk);
        pipeline.run_part(source, 0..bytes, |stream, offset, view| {
            let before = offset / chunk * page_rows;
            let arguments = self.arguments(view, page_rows.min(rows - before), &results)?;
            let needed = u32::try_from(arguments.rows.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX);
            let shape = self.share.shape(blocks.min(needed), THREADS, 0);
            // SAFETY: the parameter matches the kernel; `arguments` has checked that its columns lie within the view, and the
            // results have room for every aggregate; both are valid until the pipeline ends, which waits for its streams,
            // also after an error.
            unsafe { self.function.launch(stream, shape, Arguments::default().with(&arguments)) }
        })?;
        let words: Vec<u64> = results.read(&result_stream, self.plan.aggregates.len() * RESULT_WORDS + 1)?;
        let (values, _) = words.as_chunks::<RESULT_WORDS>();
        let values =
            self.plan.aggregates.iter().zip(values).map(|(aggregate, words)| aggregate.value(*words)).collect();
        Ok(SelectionTotals { selected: words.last().copied().unwrap_or(0), values })
    }

    /// The kernel arguments for a page, checked against its size.
    fn arguments(&self, page: View<'_>, rows: u64, results: &DeviceBuffer) -> Result<SelectionArguments> {
        let places = self.plan.page(rows);
        let mut arguments = SelectionArguments {
            rows,
            ranges: self.plan.ranges.len() as u32,
            aggregates: self.plan.aggregates.len() as u32,
            results: results.view().address(),
            ..SelectionArguments::default()
        };
        for (place, ((values, validity), column)) in
            arguments.columns.iter_mut().zip(places.columns.into_iter().zip(&self.plan.columns))
        {
            let address = |range: Range<u64>| Ok(page.slice(range.start, range.end - range.start)?.address());
            place.values = address(values)?;
            place.validity = if column.nullable { address(validity)? } else { 0 };
            place.width = if column.is_wide { 8 } else { 4 };
        }
        for (place, range) in arguments.range.iter_mut().zip(&self.plan.ranges) {
            *place = RangeArguments { lowest: range.lowest, highest: range.highest, column: range.column as u64 };
        }
        for (place, aggregate) in arguments.aggregate.iter_mut().zip(&self.plan.aggregates) {
            let (function, left, right) = aggregate.arguments();
            *place = AggregateArguments { function, left: left as u32, right: right as u32, padding: 0 };
        }
        Ok(arguments)
    }
}
