//! Shared parts of the text file formats: the sink, the scan, and splitting scans for several threads.

use std::fmt::{self, Debug, Formatter};
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::common::config::CsvOptions;
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, not_impl_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::write::BatchSerializer;
use datafusion::datasource::file_format::write::demux::DemuxedStreamReceiver;
use datafusion::datasource::file_format::write::orchestration::spawn_writer_tasks_and_join;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileGroupPartitioner, FileOpenFuture, FileOpener, FileScanConfig, FileSink, FileSinkConfig, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::object_store::ObjectStore;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{LexOrdering, LexRequirement, PhysicalExpr};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, apply_expression_roots};

/// The text that a sink writes.
#[derive(Debug, Clone, PartialEq)]
pub enum TextKind {
    /// Comma-separated values.
    Csv {
        /// How they are written.
        options: Box<CsvOptions>,
        /// Whether a file begins with the names of the columns.
        has_header: bool,
    },
    /// A JSON object a line.
    Json {
        /// How files are compressed.
        compression: CompressionTypeVariant,
        /// The level of the compression.
        compression_level: Option<u32>,
    },
}

impl TextKind {
    fn extension(&self) -> &'static str {
        match self {
            Self::Csv { .. } => "csv",
            Self::Json { .. } => "json",
        }
    }

    fn compression(&self) -> (FileCompressionType, Option<u32>) {
        match self {
            Self::Csv { options, .. } => (options.compression.into(), options.compression_level),
            Self::Json { compression, compression_level } => ((*compression).into(), *compression_level),
        }
    }
}

/// Writes files of text.
pub struct TextSink {
    config: FileSinkConfig,
    kind: TextKind,
    serializer: Arc<dyn BatchSerializer>,
}

impl TextSink {
    /// A sink of text that `serializer` makes.
    ///
    /// # Errors
    /// Fails for any insert operation except appending.
    pub(super) fn try_new(
        config: FileSinkConfig,
        kind: TextKind,
        serializer: Arc<dyn BatchSerializer>,
    ) -> Result<Self> {
        if config.insert_op != InsertOp::Append {
            let name = kind.extension().to_ascii_uppercase();
            return not_impl_err!("{name} files can only be added to: INSERT OVERWRITE and REPLACE are not supported");
        }
        Ok(Self { config, kind, serializer })
    }

    /// Plans to write `input`.
    pub(super) fn plan(self, input: Arc<dyn ExecutionPlan>, order: Option<LexRequirement>) -> Arc<dyn ExecutionPlan> {
        Arc::new(DataSinkExec::new(input, Arc::new(self), order))
    }

    /// What it writes.
    pub fn kind(&self) -> &TextKind {
        &self.kind
    }
}

impl Debug for TextSink {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextSink").field("config", &self.config).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl DisplayAs for TextSink {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "TextSink(format={}, file={})", self.kind.extension(), self.config.original_url)
    }
}

#[async_trait]
impl DataSink for TextSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(&self, data: SendableRecordBatchStream, context: &Arc<TaskContext>) -> Result<u64> {
        FileSink::write_all(self, data, context).await
    }
}

#[async_trait]
impl FileSink for TextSink {
    fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    async fn spawn_writer_tasks_and_join(
        &self,
        context: &Arc<TaskContext>,
        demux_task: SpawnedTask<Result<()>>,
        files: DemuxedStreamReceiver,
        object_store: Arc<dyn ObjectStore>,
    ) -> Result<u64> {
        let serializer = Arc::clone(&self.serializer);
        let (compression, level) = self.kind.compression();
        spawn_writer_tasks_and_join(context, serializer, compression, level, object_store, demux_task, files).await
    }
}

/// What the scans of text formats do differently.
pub trait TextFormat: Clone + Send + Sync + Unpin + 'static {
    /// The name in plans.
    const NAME: &str;

    /// Reads the columns of a file that the projection needs.
    fn open(
        source: TextSource<Self>,
        compression: FileCompressionType,
        store: Arc<dyn ObjectStore>,
        file: PartitionedFile,
    ) -> FileOpenFuture;

    /// Whether several threads may read one file.
    fn can_cut(&self) -> bool {
        true
    }

    /// Appends what EXPLAIN shows besides the files.
    fn fmt_extra(&self, _format: DisplayFormatType, _f: &mut Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// Reads the text files of one table.
#[derive(Clone)]
pub struct TextSource<F> {
    pub format: F,
    pub table_schema: TableSchema,
    pub projection: SplitProjection,
    pub batch_size: Option<usize>,
    metrics: ExecutionPlanMetricsSet,
}

impl<F> TextSource<F> {
    /// Reads files with a given schema.
    pub fn new(table_schema: TableSchema, format: F) -> Self {
        let projection = SplitProjection::unprojected(&table_schema);
        Self { format, table_schema, projection, batch_size: None, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl<F: TextFormat> FileSource for TextSource<F> {
    fn create_file_opener(
        &self,
        object_store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let opener = TextOpener { source: self.clone(), compression: config.file_compression_type, object_store };
        ProjectionOpener::try_new(self.projection.clone(), Arc::new(opener), self.table_schema.file_schema())
    }

    fn table_schema(&self) -> &TableSchema {
        &self.table_schema
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self { batch_size: Some(batch_size), ..self.clone() })
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection.source)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn file_type(&self) -> &str {
        F::NAME
    }

    fn fmt_extra(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.format.fmt_extra(format, f)
    }

    fn repartitioned(
        &self,
        target_partitions: usize,
        repartition_file_min_size: usize,
        output_ordering: Option<LexOrdering>,
        config: &FileScanConfig,
    ) -> Result<Option<FileScanConfig>> {
        if !self.format.can_cut() {
            return Ok(None);
        }
        Ok(cut_files(config, target_partitions, repartition_file_min_size, output_ordering.is_some()))
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        let projection = self.projection.source.try_merge(projection)?;
        let projection = SplitProjection::new(self.table_schema.file_schema(), &projection);
        Ok(Some(Arc::new(Self { projection, ..self.clone() })))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.projection.source.iter(), f)
    }
}

/// Opens the files of a scan.
struct TextOpener<F> {
    source: TextSource<F>,
    compression: FileCompressionType,
    object_store: Arc<dyn ObjectStore>,
}

impl<F: TextFormat> FileOpener for TextOpener<F> {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        Ok(F::open(self.source.clone(), self.compression, Arc::clone(&self.object_store), file))
    }
}

/// Splits the files of a scan for several threads; `None` if they stay as they are. Compressed files and remote files cannot
/// be read from the middle.
fn cut_files(
    config: &FileScanConfig,
    target_partitions: usize,
    repartition_file_min_size: usize,
    keeps_order: bool,
) -> Option<FileScanConfig> {
    let is_local = config.object_store_url.as_str().starts_with("file:");
    if config.file_compression_type.is_compressed() || !is_local {
        return None;
    }
    let groups = FileGroupPartitioner::new()
        .with_target_partitions(target_partitions)
        .with_repartition_file_min_size(repartition_file_min_size)
        .with_preserve_order_within_groups(keeps_order)
        .repartition_file_groups(&config.file_groups)?;
    let mut config = config.clone();
    config.file_groups = groups;
    Some(config)
}

/// The byte range of a file to read, unless the whole file is read.
pub fn part_of(file: &PartitionedFile) -> Option<Range<u64>> {
    let bound = |offset: i64| u64::try_from(offset).unwrap_or_default();
    file.range.as_ref().map(|range| bound(range.start)..bound(range.end))
}
