//! The file formats of `COPY`, with files that are written aside.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{GetExt, Result, Statistics, config_err, plan_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileSinkConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::ExecutionPlan;

use super::destination::Destination;
use super::exec::WriteAsideExec;

/// The option of `COPY` that lets it replace the files of a folder. DataFusion adds `format.` to options without a dot.
const OVERWRITE: &str = "format.overwrite";

/// Makes a format that writes its files aside and accepts the option `overwrite`.
#[derive(Debug)]
pub(crate) struct WrittenAside {
    pub format: Arc<dyn FileFormatFactory>,
}

impl GetExt for WrittenAside {
    fn get_ext(&self) -> String {
        self.format.get_ext()
    }
}

impl FileFormatFactory for WrittenAside {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut options = options.clone();
        let overwrites = match options.remove(OVERWRITE).as_deref().map(str::trim) {
            None => false,
            Some(value) if value.eq_ignore_ascii_case("true") => true,
            Some(value) if value.eq_ignore_ascii_case("false") => false,
            Some(value) => return config_err!("The option overwrite of COPY is true or false, and not '{value}'"),
        };
        Ok(Arc::new(AsideFormat {
            format: self.format.create(state, &options)?,
            statement: Statement::Copy { overwrites },
        }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(AsideFormat { format: self.format.default(), statement: Statement::Copy { overwrites: false } })
    }
}

/// A format that writes files aside, and otherwise behaves like the format it wraps.
#[derive(Debug)]
pub(super) struct AsideFormat {
    format: Arc<dyn FileFormat>,
    statement: Statement,
}

/// The format that writes the files.
#[derive(Debug, Clone, Copy)]
enum Statement {
    Copy {
        /// Whether existing files in the folder are replaced.
        overwrites: bool,
    },
    Insert,
}

impl AsideFormat {
    /// The format of the table that an `INSERT` writes to.
    pub fn of_table(format: Arc<dyn FileFormat>) -> Self {
        Self { format, statement: Statement::Insert }
    }

    /// The common extension of a table's files, if there is one.
    fn extension_of(&self, files: &FileGroup) -> Option<String> {
        let compression = self.format.compression_type().map(|compression| compression.get_ext()).unwrap_or_default();
        let names = files.iter().filter_map(|file| file.object_meta.location.filename());
        let mut extensions = names.filter(|name| !name.starts_with(['.', '_'])).map(|name| {
            let stem = name.len().checked_sub(compression.len()).and_then(|end| name.split_at_checked(end));
            let stem = stem.filter(|(_, end)| end.eq_ignore_ascii_case(&compression)).map_or(name, |(stem, _)| stem);
            stem.rfind('.').map(|dot| &name[dot + 1..])
        });
        let first = extensions.next()??;
        extensions.all(|extension| extension == Some(first)).then(|| first.to_owned())
    }
}

#[async_trait]
impl FileFormat for AsideFormat {
    fn get_ext(&self) -> String {
        self.format.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.format.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.format.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.format.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.format.infer_stats(state, store, schema, object).await
    }

    async fn create_physical_plan(&self, state: &dyn Session, scan: FileScanConfig) -> Result<Arc<dyn ExecutionPlan>> {
        self.format.create_physical_plan(state, scan).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        mut sink: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(path) = Destination::local_path(&sink.table_paths[0]) else {
            return self.format.create_writer_physical_plan(input, state, sink, order).await;
        };
        let Statement::Copy { overwrites } = self.statement else {
            if let Some(extension) = self.extension_of(&sink.file_group) {
                sink.file_extension = extension;
            }
            let plan = self.format.create_writer_physical_plan(input, state, sink, order).await?;
            return Ok(Arc::new(WriteAsideExec::new(plan, Destination::Table(path))));
        };
        if sink.table_paths[0].get_glob().is_some() {
            return plan_err!(
                "COPY cannot write '{}': *, ? and [ match names when files are read, and are no part of a name that is written",
                sink.original_url
            );
        }
        let is_file =
            sink.table_partition_cols.is_empty() && sink.file_output_mode.single_file_output(&sink.table_paths[0]);
        let destination = if is_file {
            Destination::File(path)
        } else {
            let extension = sink.file_extension.clone();
            Destination::Folder { path, extension, overwrites }
        };
        let plan = self.format.create_writer_physical_plan(input, state, sink, order).await?;
        Ok(Arc::new(WriteAsideExec::new(plan, destination)))
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        self.format.file_source(schema)
    }
}
