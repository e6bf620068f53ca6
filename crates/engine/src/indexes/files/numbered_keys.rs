//! The keys of files, each with the number of its row, and the columns that an index includes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::take_arrays;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;
use overspill_index::OrderedWords;

use super::scan::path_of;

/// Consecutive rows of a file.
#[derive(Debug, Clone)]
pub(super) struct NumberedPiece {
    /// The part of the file that has them.
    pub file: PartitionedFile,
    /// The number of the first row in the table, and how many there are.
    pub first_row: u64,
    pub rows: u64,
}

/// The words of a column of files that are not null, each with the number of its row in the table, in any order. Each stream reads
/// pieces of files, one after the other. If more than the one column is scanned, all of them follow.
#[derive(Debug)]
pub(super) struct NumberedKeysExec {
    /// The scan of the column, and of those that are included.
    config: FileScanConfig,
    /// The pieces of each stream.
    pieces: Vec<Vec<NumberedPiece>>,
    /// Rows with a null, as far as they have been read.
    nulls: Arc<AtomicU64>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// The first columns: words and row numbers.
const NUMBERED: [&str; 2] = ["word", "row"];

/// The column of words.
pub(super) const WORD: &str = NUMBERED[0];

impl NumberedKeysExec {
    /// Of the first column of a scan, in `streams` streams.
    ///
    /// # Errors
    /// If the scan has no schema.
    pub fn new(config: FileScanConfig, all: Vec<NumberedPiece>, streams: usize, nulls: Arc<AtomicU64>) -> Result<Self> {
        let scanned = config.projected_schema()?;
        let included = if includes(scanned.fields().len()) { scanned.fields() } else { &Fields::empty() };
        let numbered = NUMBERED.map(|name| Arc::new(Field::new(name, DataType::UInt64, false)));
        let fields: Fields = numbered.iter().chain(included).cloned().collect();
        let schema = Arc::new(Schema::new(fields));
        let mut pieces = vec![Vec::new(); streams];
        for (number, piece) in all.into_iter().enumerate() {
            pieces[number % streams].push(piece);
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(streams),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let (properties, metrics) = (Arc::new(properties), ExecutionPlanMetricsSet::new());
        Ok(Self { config, pieces, nulls, properties, metrics })
    }

    /// The numbers of the columns of the output that are included.
    pub fn included(schema: &Schema) -> Vec<usize> {
        (NUMBERED.len()..schema.fields().len()).collect()
    }

    /// Reads a piece.
    fn read(&self, piece: NumberedPiece, output: Count, task: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let groups = vec![FileGroup::new(vec![piece.file.clone()])];
        let config = FileScanConfigBuilder::from(self.config.clone()).with_file_groups(groups).build();
        let batches = DataSourceExec::from_data_source(config).execute(0, Arc::clone(task))?;
        let schema = self.schema();
        let (nulls, numbered_as) = (Arc::clone(&self.nulls), Arc::clone(&schema));
        let mut read = 0;
        let rows = batches.map(move |batch| {
            let batch = batch?;
            let numbered = numbered(&batch, piece.first_row + read, &numbered_as)?;
            nulls.fetch_add((batch.num_rows() - numbered.num_rows()) as u64, Ordering::Relaxed);
            read += batch.num_rows() as u64;
            output.add(numbered.num_rows());
            if read > piece.rows {
                return exec_err!("{} has more rows than its footer says", path_of(&piece.file).display());
            }
            Ok(numbered)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// Whether the scanned columns are included in an index: one alone is the indexed column.
fn includes(scanned: usize) -> bool {
    scanned > 1
}

/// The words of the first column of a batch, with row numbers, and the columns if they are included.
fn numbered(batch: &RecordBatch, first_row: u64, schema: &SchemaRef) -> Result<RecordBatch> {
    let column = batch.columns().first().ok_or_else(|| internal_datafusion_err!("the scan has no column"))?;
    let keys = OrderedWords::of(column).ok_or_else(|| internal_datafusion_err!("the column cannot be indexed"))?;
    let count = column.len() - column.null_count();
    let (mut words, mut rows) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut places = Vec::new();
    let includes = includes(batch.num_columns());
    keys.for_each(|row, word| {
        words.push(word);
        rows.push(first_row + row as u64);
        if includes {
            places.push(row as u32);
        }
    });
    let mut columns: Vec<ArrayRef> = [words, rows].map(|values| Arc::new(UInt64Array::from(values)) as _).to_vec();
    if includes && places.len() == batch.num_rows() {
        columns.extend_from_slice(batch.columns());
    } else if includes {
        columns.extend(take_arrays(batch.columns(), &UInt32Array::from(places), None)?);
    }
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

impl DisplayAs for NumberedKeysExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NumberedKeysExec")
    }
}

impl ExecutionPlan for NumberedKeysExec {
    fn name(&self) -> &'static str {
        "NumberedKeysExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("NumberedKeysExec has no inputs") }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(&self, partition: usize, task: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let pieces = self.pieces[partition].clone();
        let output = MetricBuilder::new(&self.metrics).output_rows(partition);
        let opened =
            pieces.into_iter().map(|piece| self.read(piece, output.clone(), &task)).collect::<Result<Vec<_>>>()?;
        let rows = futures::stream::iter(opened).flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
