//! The scan of CSV files.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::CsvOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener, FileScanConfig, FileSource};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, apply_expression_roots};
use futures::StreamExt;

use super::columns::Layout;
use super::header::{Head, fields_of};
use super::lexer::Dialect;
use super::reader::{Batches, Part};
use super::split::RecordStarts;
use crate::files::local::{Source, in_file};
use crate::files::text::{cut_files, part_of};

/// Reads CSV files of one table.
#[derive(Debug, Clone)]
pub struct CsvSource {
    options: CsvOptions,
    /// Whether the table, and not only the session, says that its files begin with a header.
    header_is_declared: bool,
    table_schema: TableSchema,
    projection: SplitProjection,
    batch_size: Option<usize>,
    metrics: ExecutionPlanMetricsSet,
    starts: Arc<RecordStarts>,
}

impl CsvSource {
    /// Reads files with options that say whether there is a header.
    pub fn new(table_schema: TableSchema, options: CsvOptions) -> Self {
        Self {
            header_is_declared: options.has_header == Some(true),
            options,
            projection: SplitProjection::unprojected(&table_schema),
            table_schema,
            batch_size: None,
            metrics: ExecutionPlanMetricsSet::new(),
            starts: Arc::default(),
        }
    }

    /// The same scan with other options.
    #[must_use]
    pub fn with_options(&self, options: CsvOptions) -> Self {
        Self { options, ..self.clone() }
    }

    fn has_header(&self) -> bool {
        self.options.has_header.unwrap_or(true)
    }
}

impl FileSource for CsvSource {
    fn create_file_opener(
        &self,
        object_store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        _partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let opener = CsvOpener { source: self.clone(), compression: config.file_compression_type, object_store };
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
        "csv"
    }

    fn fmt_extra(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, ", has_header={}", self.has_header()),
            DisplayFormatType::TreeRender => Ok(()),
        }
    }

    /// Files are split between records that [`RecordStarts`] finds. It needs local files without escapes and comments.
    fn repartitioned(
        &self,
        target_partitions: usize,
        repartition_file_min_size: usize,
        output_ordering: Option<LexOrdering>,
        config: &FileScanConfig,
    ) -> Result<Option<FileScanConfig>> {
        if self.options.newlines_in_values == Some(true) || !Dialect::of(&self.options).is_plain() {
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
struct CsvOpener {
    source: CsvSource,
    compression: FileCompressionType,
    object_store: Arc<dyn ObjectStore>,
}

impl FileOpener for CsvOpener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let Self { source, compression, object_store } = self;
        let (source, compression, store) = (source.clone(), *compression, Arc::clone(object_store));
        Ok(Box::pin(async move {
            let range = part_of(&file);
            let object = file.object_meta;
            let dialect = Dialect::of(&source.options);
            let Some(head) = Head::read(store.as_ref(), &object, compression, dialect, source.has_header()).await?
            else {
                return Ok(futures::stream::empty().boxed());
            };
            let layout = Arc::new(source.layout(&object, &head)?);
            let first = if compression.is_compressed() { 0 } else { head.mark as u64 };
            let mut part = Part { start: first, end: u64::MAX, has_header: source.has_header(), object };
            if let Some(range) = range {
                part.end = range.end;
                if range.start > first {
                    part.start = source.first_record(&part.object, dialect, first, range.start).await?;
                    part.has_header = false;
                }
            }
            if part.start >= part.end {
                return Ok(futures::stream::empty().boxed());
            }
            let bytes = Source::open(store.as_ref(), &part.object).await?;
            let bytes = bytes.from(part.start).map_err(|error| in_file(&part.object, error))?;
            let mut reader = bytes.decompressed(compression)?;
            if compression.is_compressed() && head.mark > 0 {
                let mut mark = vec![0; head.mark];
                reader.read_exact(&mut mark).map_err(|error| in_file(&part.object, error))?;
            }
            let Some(batch_size) = source.batch_size else {
                return internal_err!("a CSV file is opened before the size of batches is set");
            };
            let batches = Batches::new(reader, part, dialect, layout, batch_size);
            Ok(futures::stream::iter(batches).boxed())
        }))
    }
}

impl CsvSource {
    /// The positions of the columns to read in the records of a file.
    fn layout(&self, object: &ObjectMeta, head: &Head) -> Result<Layout> {
        let file_schema = self.table_schema.file_schema();
        let truncated = self.options.truncated_rows.unwrap_or(false);
        let names: Vec<_> = file_schema.fields().iter().map(|field| field.name().as_str()).collect();
        let (fields, width) = if self.has_header() {
            let header = head.names();
            (fields_of(object, &header, &names, truncated, self.header_is_declared)?, header.len())
        } else {
            ((0..names.len()).map(Some).collect(), names.len())
        };
        Ok(Layout {
            schema: Arc::new(file_schema.project(&self.projection.file_indices)?),
            fields: self.projection.file_indices.iter().map(|column| fields[*column]).collect(),
            width,
            truncated,
            null_regex: self.options.null_regex.clone(),
        })
    }

    /// The position of the first record at or after an offset.
    async fn first_record(&self, object: &ObjectMeta, dialect: Dialect, first: u64, offset: u64) -> Result<u64> {
        let starts = Arc::clone(&self.starts);
        let location = object.location.clone();
        // This reads much of the file, so it runs on another thread and does not block other tasks.
        let found = SpawnedTask::spawn_blocking(move || starts.at_or_behind(&location, dialect, first, offset));
        let found = found.join().await.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        found.map_err(|error| in_file(object, error))
    }
}
