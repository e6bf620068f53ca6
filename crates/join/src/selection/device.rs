//! Selection on a GPU, chunk by chunk.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use overspill_kernels::{
    Selection as Kernel, SelectionAggregate, SelectionColumn, SelectionPlan, SelectionRange, SelectionTotals,
};
use overspill_machine::transfer::TransferMethod;
use overspill_machine::{Error, Result};

use super::column::{Column, is_wide};
use super::state::{SelectionState, Value};
use super::{Aggregate, Evaluation, Selection, pages};
use crate::device::{Gpu, HostPool, Workbench, is_refusal};
use crate::memory::column_bytes;

/// Rows that are given to a GPU together, about: enough pages for transfers and kernels to overlap.
const CHUNK_ROWS: usize = 1 << 20;

/// Bytes of their pages, about: of wide rows fewer are that many.
const CHUNK_BYTES: u64 = 64 << 20;

/// Bytes of the batches that they are in, which may have columns that are not wanted, and others in twice the bytes of a page.
const CHUNK_BATCHES: usize = 128 << 20;

/// Why a GPU did not select rows; the CPU has to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceProblem {
    /// It is a matter of room, or of what the GPU has.
    Refused(String),
    /// It failed.
    Failed(String),
}

/// What a GPU has found.
#[derive(Debug)]
pub struct DeviceSelected {
    /// The aggregates.
    pub state: SelectionState,
    /// Bytes that crossed the link, by the sizes of columns; with branching, where kernels read across the link, fewer may.
    pub link_bytes: u64,
}

/// Selects and aggregates rows on a GPU.
#[derive(Debug)]
pub struct DeviceSelection {
    gpu: Arc<Gpu>,
    selection: Arc<Selection>,
    /// The number that each column of the kernel's plan has in the batches.
    numbers: Vec<usize>,
    kernel: Kernel,
    method: TransferMethod,
    /// Columns of the batches that are collected, with their rows.
    collected: Vec<(usize, Vec<Column>)>,
    rows: usize,
    /// Of their batches.
    bytes: usize,
}

/// The columns of a batch as kernels have them.
#[derive(Debug)]
pub struct BatchColumns {
    rows: usize,
    /// What the rows of all columns of the batch need, also of those that are not wanted.
    bytes: usize,
    columns: Vec<Column>,
}

impl DeviceSelection {
    /// For batches of this schema. Rows come by `transfer`, or by the method that suits the link. [`Evaluation::Auto`] branches
    /// where kernels read across the link, of which it skips lines, and is predicated where everything is copied anyway.
    ///
    /// # Errors
    /// If kernels cannot do it, or the GPU is lost.
    pub fn new(
        gpu: Arc<Gpu>,
        selection: Arc<Selection>,
        schema: &Schema,
        transfer: Option<TransferMethod>,
        evaluation: Evaluation,
    ) -> Result<Self, DeviceProblem> {
        if let Some(reason) = gpu.lost_because() {
            return Err(DeviceProblem::Refused(reason.to_owned()));
        }
        let method = transfer.unwrap_or_else(|| gpu.fastest_method());
        let branching = match evaluation {
            Evaluation::Auto => matches!(method, TransferMethod::ZeroCopy | TransferMethod::Coherence),
            chosen => chosen == Evaluation::Branching,
        };
        let numbers = selection.columns();
        let plan = plan(&selection, &numbers, schema);
        // Not a failure of the GPU.
        plan.check().map_err(|error| DeviceProblem::Refused(error.to_string()))?;
        let kernel = method
            .check_device(gpu.device().properties())
            .and_then(|()| Kernel::new(gpu.kernels(), plan, branching))
            .map_err(|error| problem(&gpu, &error))?;
        Ok(Self { gpu, selection, numbers, kernel, method, collected: Vec::new(), rows: 0, bytes: 0 })
    }

    /// The columns of a batch, if kernels can have them.
    pub fn columns(&self, batch: &RecordBatch) -> Option<BatchColumns> {
        let columns = pages::columns(self.kernel.plan(), &self.numbers, batch)?;
        // A batch may be a slice of one that is much larger.
        let bytes = batch.columns().iter().map(column_bytes).sum();
        Some(BatchColumns { rows: batch.num_rows(), bytes, columns })
    }

    /// Takes a batch, whose rows [`DeviceSelection::run`] selects.
    pub fn collect(&mut self, BatchColumns { rows, bytes, columns }: BatchColumns) {
        self.rows += rows;
        self.bytes += bytes;
        self.collected.push((rows, columns));
    }

    /// Whether enough is collected: rows, or bytes of their pages, or of the batches that they are in.
    pub fn is_full(&self) -> bool {
        let pages = self.kernel.plan().bytes(self.rows as u64, self.chunk_bytes());
        self.rows >= CHUNK_ROWS || pages >= CHUNK_BYTES || self.bytes >= CHUNK_BATCHES
    }

    /// Bytes of CPU memory that [`DeviceSelection::run`] takes for so many rows more than are collected.
    pub fn host_bytes(&self, more: usize) -> usize {
        let bytes = self.kernel.plan().bytes((self.rows + more) as u64, self.chunk_bytes());
        HostPool::size_for(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Selects and aggregates what is collected, in one pass over its columns, and forgets it, also when it fails. Waits for its
    /// turn on the GPU.
    ///
    /// # Errors
    /// If the GPU has no room, or fails; nothing then counts as selected.
    pub fn run(&mut self) -> Result<DeviceSelected, DeviceProblem> {
        let collected = std::mem::take(&mut self.collected);
        let rows = std::mem::take(&mut self.rows) as u64;
        self.bytes = 0;
        self.select(&collected, rows).map_err(|error| problem(&self.gpu, &error))
    }

    fn select(&mut self, collected: &[(usize, Vec<Column>)], rows: u64) -> Result<DeviceSelected> {
        let chunk = self.chunk_bytes();
        let bytes = self.kernel.plan().bytes(rows, chunk);
        let host_bytes = usize::try_from(bytes).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut memory = self.gpu.host().take_for(self.method, host_bytes)?;
        pages::write(self.kernel.plan(), chunk, collected, memory.as_mut_slice()?);
        let source = memory.source().ok_or_else(|| Error::Invalid("columns without memory".to_owned()))?;
        let totals = {
            let mut bench = self.gpu.turn();
            let pipeline = bench.pipeline(self.method, self.budget())?;
            self.kernel.run_transferred(pipeline, source, rows)?
        };
        Ok(DeviceSelected { state: state(&self.selection, &totals), link_bytes: bytes })
    }

    /// Bytes of GPU memory for copies, as a join has.
    fn budget(&self) -> u64 {
        self.gpu.workspace() / 8
    }

    fn chunk_bytes(&self) -> u64 {
        Workbench::chunk_bytes(self.budget())
    }
}

/// Takes note of an error.
fn problem(gpu: &Gpu, error: &Error) -> DeviceProblem {
    gpu.note(error);
    if is_refusal(error) { DeviceProblem::Refused(error.to_string()) } else { DeviceProblem::Failed(error.to_string()) }
}

/// The selection, by the numbers that columns have for kernels.
fn plan(selection: &Selection, numbers: &[usize], schema: &Schema) -> SelectionPlan {
    let place = |column: usize| numbers.partition_point(|other| *other < column);
    let columns = numbers.iter().map(|number| {
        let field = schema.field(*number);
        SelectionColumn { is_wide: is_wide(field.data_type()), nullable: field.is_nullable() }
    });
    let ranges = selection.ranges.iter().map(|range| {
        let (lowest, highest) = (range.lowest.max(i64::MIN.into()), range.highest.min(i64::MAX.into()));
        // A range beyond 64 bits has none of the values that kernels are given.
        let (lowest, highest) = match (i64::try_from(lowest), i64::try_from(highest)) {
            (Ok(lowest), Ok(highest)) => (lowest, highest),
            _ => (1, 0),
        };
        SelectionRange { column: place(range.column), lowest, highest }
    });
    let aggregates = selection.aggregates.iter().filter_map(|aggregate| match *aggregate {
        // Selected rows are counted anyway.
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
    SelectionState { selected: totals.selected, values: values.collect() }
}
