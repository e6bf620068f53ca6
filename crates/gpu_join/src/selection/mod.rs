//! Selection on a GPU, chunk by chunk (paper 2, section 7.2.4).

mod pages;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use overspill_kernels::{
    Selection as Kernel, SelectionAggregate, SelectionColumn, SelectionPlan, SelectionRange, SelectionTotals,
};
use overspill_machine::transfer::{HostPool, TransferMethod};
use overspill_machine::{Error, Result};

use crate::device::{DeviceProblem, DeviceShare, Gpu, Workbench};
use crate::flight::Flight;
use overspill_join::memory::column_bytes;
use overspill_join::selection::column::Column;
use overspill_join::selection::{Aggregate, Evaluation, Selection, SelectionState, Value};

/// Approximate number of rows that are given to a GPU together: enough pages for transfers and kernels to overlap.
const CHUNK_ROWS: usize = 1 << 20;

/// Approximate bytes of a chunk's pages; wide rows reach this with fewer rows.
const CHUNK_BYTES: u64 = 64 << 20;

/// Bytes of a chunk's batches. They may include unneeded columns, and columns that take twice the bytes of a page.
const CHUNK_BATCHES: usize = 128 << 20;

/// The result of a GPU.
#[derive(Debug)]
pub struct DeviceSelected {
    /// The aggregates.
    pub state: SelectionState,
    /// Bytes transferred, computed from the column sizes. With branching and reads across the link, kernels may transfer fewer.
    pub link_bytes: u64,
}

/// Selects and aggregates rows on a GPU.
#[derive(Debug)]
pub struct DeviceSelection {
    kernels: Arc<SelectionKernels>,
    /// Columns of the collected batches, with their row counts.
    collected: Vec<(usize, Vec<Column>)>,
    rows: usize,
    bytes: usize,
}

/// What selects collected rows.
#[derive(Debug)]
struct SelectionKernels {
    gpu: Arc<Gpu>,
    share: Arc<DeviceShare>,
    selection: Arc<Selection>,
    /// For each column of the kernel's plan, its index in the batches.
    numbers: Vec<usize>,
    kernel: Kernel,
    method: TransferMethod,
}

/// The columns of a batch in the form that kernels take.
#[derive(Debug)]
pub struct BatchColumns {
    rows: usize,
    /// Bytes that the rows need in all columns of the batch, including unneeded ones.
    bytes: usize,
    columns: Vec<Column>,
}

impl DeviceSelection {
    /// Creates a selection for batches of this schema. `share` is the query's. Rows are transferred with `transfer`, or with the
    /// fastest method for the link. [`Evaluation::Auto`] uses branching if kernels read across the link, because it skips lines, and
    /// predication if everything is copied anyway.
    ///
    /// # Errors
    /// Fails if kernels do not support the selection, or if the GPU is lost.
    pub fn new(
        gpu: Arc<Gpu>,
        share: Arc<DeviceShare>,
        selection: Arc<Selection>,
        schema: &Schema,
        transfer: Option<TransferMethod>,
        evaluation: Evaluation,
    ) -> Result<Self, DeviceProblem> {
        if let Some(error) = gpu.lost_because() {
            return Err(DeviceProblem::Refused(error.clone()));
        }
        let method = transfer.unwrap_or_else(|| gpu.fastest_method());
        let branching = match evaluation {
            Evaluation::Auto => matches!(method, TransferMethod::ZeroCopy | TransferMethod::Coherence),
            chosen => chosen == Evaluation::Branching,
        };
        let numbers = selection.columns();
        let plan = plan(&selection, &numbers, schema);
        // This is not a failure of the GPU.
        plan.check().map_err(DeviceProblem::Refused)?;
        let kernel = method
            .check_device(gpu.device().properties())
            .and_then(|()| Kernel::new(&gpu.kernels, plan, branching))
            .map_err(|error| DeviceProblem::of(&gpu, &share, error))?;
        let kernels = Arc::new(SelectionKernels { gpu, share, selection, numbers, kernel, method });
        Ok(Self { kernels, collected: Vec::new(), rows: 0, bytes: 0 })
    }

    /// The columns of a batch, if kernels can process them.
    pub fn columns(&self, batch: &RecordBatch) -> Option<BatchColumns> {
        let columns = pages::columns(self.kernels.kernel.plan(), &self.kernels.numbers, batch)?;
        // A batch may be a slice of a much larger one.
        let bytes = batch.columns().iter().map(column_bytes).sum();
        Some(BatchColumns { rows: batch.num_rows(), bytes, columns })
    }

    /// Collects a batch for [`DeviceSelection::run`].
    pub fn collect(&mut self, BatchColumns { rows, bytes, columns }: BatchColumns) {
        self.rows += rows;
        self.bytes += bytes;
        self.collected.push((rows, columns));
    }

    /// Whether enough is collected: by rows, by bytes of pages, or by bytes of batches.
    pub fn is_full(&self) -> bool {
        let pages = self.kernels.bytes(self.rows);
        self.rows >= CHUNK_ROWS || pages >= CHUNK_BYTES || self.bytes >= CHUNK_BATCHES
    }

    /// Bytes of CPU memory that [`DeviceSelection::run`] needs for `more` rows in addition to those collected.
    pub fn host_bytes(&self, more: usize) -> usize {
        let bytes = self.kernels.bytes(self.rows + more);
        HostPool::size_for(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Selects and aggregates the collected rows, in one pass over their columns, and discards them, even on failure. A thread of its
    /// own waits for the turn on the GPU.
    ///
    /// # Errors
    /// Fails if the GPU has no room, fails, or was given to other queries; then no rows count as selected.
    pub async fn run(&mut self) -> Result<DeviceSelected, DeviceProblem> {
        let collected = std::mem::take(&mut self.collected);
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let kernels = Arc::clone(&self.kernels);
        let flight = Flight::start(move |_| {
            kernels.select(&collected, rows).map_err(|error| DeviceProblem::of(&kernels.gpu, &kernels.share, error))
        });
        flight.landing().await;
        flight.land()
    }
}

impl SelectionKernels {
    /// Bytes of the pages that hold `rows` rows.
    fn bytes(&self, rows: usize) -> u64 {
        self.kernel.plan().bytes(rows as u64, self.chunk_bytes())
    }

    fn select(&self, collected: &[(usize, Vec<Column>)], rows: usize) -> Result<DeviceSelected> {
        let (chunk, bytes) = (self.chunk_bytes(), self.bytes(rows));
        let host_bytes = usize::try_from(bytes).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut memory = self.gpu.host.take_for(self.method, host_bytes)?;
        pages::write(self.kernel.plan(), chunk, collected, memory.as_mut_slice()?);
        let source = memory.source()?;
        let totals = {
            let mut bench = self.gpu.turn(&self.share)?;
            let pipeline = bench.pipeline(self.method, self.budget())?;
            self.kernel.run_transferred(pipeline, source, rows as u64)?
        };
        Ok(DeviceSelected { state: state(&self.selection, &totals), link_bytes: bytes })
    }

    /// Bytes of GPU memory for copies, the same as for a join.
    fn budget(&self) -> u64 {
        self.gpu.workspace() / 8
    }

    fn chunk_bytes(&self) -> u64 {
        Workbench::chunk_bytes(self.budget())
    }
}

/// The kernel's plan, in which columns have the numbers that kernels use.
fn plan(selection: &Selection, numbers: &[usize], schema: &Schema) -> SelectionPlan {
    let place = |column: usize| numbers.partition_point(|other| *other < column);
    let columns = numbers.iter().map(|number| {
        let field = schema.field(*number);
        SelectionColumn { is_wide: is_wide(field.data_type()), nullable: field.is_nullable() }
    });
    let ranges = selection.ranges.iter().map(|range| {
        let (lowest, highest) = (range.lowest.max(i64::MIN.into()), range.highest.min(i64::MAX.into()));
        // A range outside 64 bits contains none of the values that kernels process.
        let (lowest, highest) = match (i64::try_from(lowest), i64::try_from(highest)) {
            (Ok(lowest), Ok(highest)) => (lowest, highest),
            _ => (1, 0),
        };
        SelectionRange { column: place(range.column), lowest, highest }
    });
    let aggregates = selection.aggregates.iter().filter_map(|aggregate| match *aggregate {
        // Kernels always count the selected rows.
        Aggregate::CountRows => None,
        Aggregate::Count(column) => Some(SelectionAggregate::Count(place(column))),
        Aggregate::Sum(column) => Some(SelectionAggregate::Sum(place(column))),
        Aggregate::SumOfProducts(left, right) => Some(SelectionAggregate::SumOfProducts(place(left), place(right))),
        Aggregate::Min(column) => Some(SelectionAggregate::Min(place(column))),
        Aggregate::Max(column) => Some(SelectionAggregate::Max(place(column))),
    });
    SelectionPlan { columns: columns.collect(), ranges: ranges.collect(), aggregates: aggregates.collect() }
}

fn state(selection: &Selection, totals: &SelectionTotals) -> SelectionState {
    let mut found = totals.values.iter().map(|value| Value::new(value.rows, value.value));
    let values = selection.aggregates.iter().map(|aggregate| match aggregate {
        Aggregate::CountRows => Value::NONE,
        _ => found.next().unwrap_or(Value::NONE),
    });
    SelectionState::of_values(totals.selected, values.collect())
}

/// Whether a GPU stores columns of this type in 8 bytes; if not, in 4.
fn is_wide(data_type: &DataType) -> bool {
    match data_type {
        DataType::UInt32 => true,
        other => other.primitive_width().is_none_or(|bytes| bytes > 4),
    }
}
