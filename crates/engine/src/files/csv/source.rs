//! The scan of CSV files.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::CsvOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileOpenFuture;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_plan::DisplayFormatType;
use futures::StreamExt;

use super::columns::Layout;
use super::header::{Head, fields_of};
use super::lexer::Dialect;
use super::reader::{Batches, Part};
use super::split::RecordStarts;
use crate::files::local::{Source, in_file};
use crate::files::text::{TextFormat, TextSource, part_of};

/// Reads CSV files of one table.
pub type CsvSource = TextSource<Csv>;

/// How the CSV files of a table are read.
#[derive(Clone)]
pub struct Csv {
    pub options: CsvOptions,
    /// Whether the table, and not only the session, says that its files begin with a header.
    pub header_is_declared: bool,
    starts: Arc<RecordStarts>,
}

impl Csv {
    /// Reads files with these options of the table.
    pub fn new(options: CsvOptions) -> Self {
        Self { header_is_declared: options.has_header == Some(true), options, starts: Arc::default() }
    }

    fn has_header(&self) -> bool {
        self.options.has_header.unwrap_or(true)
    }
}

impl TextFormat for Csv {
    const NAME: &str = "csv";

    fn open(
        source: CsvSource,
        compression: FileCompressionType,
        store: Arc<dyn ObjectStore>,
        file: PartitionedFile,
    ) -> FileOpenFuture {
        Box::pin(async move {
            let range = part_of(&file);
            let object = file.object_meta;
            let dialect = Dialect::of(&source.format.options);
            let Some(head) =
                Head::read(store.as_ref(), &object, compression, dialect, source.format.has_header()).await?
            else {
                return Ok(futures::stream::empty().boxed());
            };
            let layout = Arc::new(source.layout(&object, &head)?);
            let first = if compression.is_compressed() { 0 } else { head.mark as u64 };
            let mut part = Part { start: first, end: u64::MAX, has_header: source.format.has_header(), object };
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
        })
    }

    /// Files are split between records that [`RecordStarts`] finds. It needs local files without escapes and comments.
    fn can_cut(&self) -> bool {
        self.options.newlines_in_values != Some(true) && Dialect::of(&self.options).is_plain()
    }

    fn fmt_extra(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, ", has_header={}", self.has_header()),
            DisplayFormatType::TreeRender => Ok(()),
        }
    }
}

impl CsvSource {
    /// The positions of the columns to read in the records of a file.
    fn layout(&self, object: &ObjectMeta, head: &Head) -> Result<Layout> {
        let file_schema = self.table_schema.file_schema();
        let truncated = self.format.options.truncated_rows.unwrap_or(false);
        let names: Vec<_> = file_schema.fields().iter().map(|field| field.name().as_str()).collect();
        let (fields, width) = if self.format.has_header() {
            let header = head.names();
            (fields_of(object, &header, &names, truncated, self.format.header_is_declared)?, header.len())
        } else {
            ((0..names.len()).map(Some).collect(), names.len())
        };
        Ok(Layout {
            schema: Arc::new(file_schema.project(&self.projection.file_indices)?),
            fields: self.projection.file_indices.iter().map(|column| fields[*column]).collect(),
            width,
            truncated,
            null_regex: self.format.options.null_regex.clone(),
        })
    }

    /// The position of the first record at or after an offset.
    async fn first_record(&self, object: &ObjectMeta, dialect: Dialect, first: u64, offset: u64) -> Result<u64> {
        let starts = Arc::clone(&self.format.starts);
        let location = object.location.clone();
        // This reads much of the file, so it runs on another thread and does not block other tasks.
        let found = SpawnedTask::spawn_blocking(move || starts.at_or_behind(&location, dialect, first, offset));
        let found = found.join().await.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        found.map_err(|error| in_file(object, error))
    }
}
