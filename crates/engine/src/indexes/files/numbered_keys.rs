//! The keys of files, each with the number of its row.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
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
/// pieces of files, one after the other.
#[derive(Debug)]
pub(super) struct NumberedKeysExec {
    /// The scan of the one column.
    config: FileScanConfig,
    /// The pieces of each stream.
    pieces: Vec<Vec<NumberedPiece>>,
    /// Rows with a null, as far as they have been read.
    nulls: Arc<AtomicU64>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// The columns: words and row numbers.
pub(super) const WORD: &str = "word";
pub(super) const ROW: &str = "row";

impl NumberedKeysExec {
    /// Of the only column of a scan, in `streams` streams.
    pub fn new(config: FileScanConfig, all: Vec<NumberedPiece>, streams: usize, nulls: Arc<AtomicU64>) -> Self {
        let fields = [WORD, ROW].map(|name| Field::new(name, DataType::UInt64, false));
        let schema = Arc::new(Schema::new(fields.to_vec()));
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
        Self { config, pieces, nulls, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
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

/// The words of a batch with one column.
fn numbered(batch: &RecordBatch, first_row: u64, schema: &SchemaRef) -> Result<RecordBatch> {
    let column = batch.columns().first().ok_or_else(|| internal_datafusion_err!("the scan has no column"))?;
    let keys = OrderedWords::of(column).ok_or_else(|| internal_datafusion_err!("the column cannot be indexed"))?;
    let count = column.len() - column.null_count();
    let (mut words, mut rows) = (Vec::with_capacity(count), Vec::with_capacity(count));
    keys.for_each(|row, word| {
        words.push(word);
        rows.push(first_row + row as u64);
    });
    let columns = [words, rows].map(|values| Arc::new(UInt64Array::from(values)) as _);
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.to_vec())?)
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
