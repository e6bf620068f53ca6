//! CSV files, read by records and by column names.
//!
//! This module avoids several errors of DataFusion 55:
//!
//! - DataFusion splits a file at line breaks, also at those inside quotes, so rows are lost, duplicated or torn (`split`
//!   finds where records begin).
//! - It takes the columns of all files of a table in the order of the first file (`header` finds them by name).
//! - A column without a value in the first rows is NULL to the end of the file.
//! - It writes NULL and empty text alike, and reads them alike (`writer`).
//! - Its errors name neither the file nor the line.

mod columns;
mod header;
mod infer;
mod lexer;
mod reader;
mod source;
mod split;
mod types;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::Session;
use datafusion::common::config::{ConfigFileType, CsvOptions};
use datafusion::common::{GetExt, Result, Statistics, internal_datafusion_err};
use datafusion::datasource::file_format::csv::CsvFormat as HostFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::write::BatchSerializer;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder, FileSinkConfig, FileSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::ExecutionPlan;

use super::name_compressed;
use super::text::{TextKind, TextSink};
pub(crate) use source::{Csv, CsvSource};
pub use writer::CsvText;

/// The option that names the delimiter.
const DELIMITER: &str = "format.delimiter";

/// Makes [`CsvFormat`]s for a session.
#[derive(Debug, Default)]
pub struct CsvFormatFactory;

impl FileFormatFactory for CsvFormatFactory {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut table_options = state.default_table_options();
        table_options.set_config_format(ConfigFileType::CSV);
        table_options.alter_with_string_hash_map(options)?;
        let options_of_csv = table_options.csv;
        let delimiter_is_given =
            options.contains_key(DELIMITER) || options_of_csv.delimiter != CsvOptions::default().delimiter;
        Ok(Arc::new(CsvFormat { options: options_of_csv, delimiter_is_given }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(CsvFormat::default())
    }
}

impl GetExt for CsvFormatFactory {
    fn get_ext(&self) -> String {
        "csv".to_string()
    }
}

/// CSV files of one dialect.
#[derive(Debug, Default)]
pub struct CsvFormat {
    options: CsvOptions,
    /// Whether the user specified the delimiter, so that it is not the default comma.
    delimiter_is_given: bool,
}

impl CsvFormat {
    fn has_header(&self, state: &dyn Session) -> bool {
        self.options.has_header.unwrap_or_else(|| state.config_options().catalog.has_header)
    }

    fn options_in(&self, state: &dyn Session) -> CsvOptions {
        CsvOptions { has_header: Some(self.has_header(state)), ..self.options.clone() }
    }
}

#[async_trait]
impl FileFormat for CsvFormat {
    fn get_ext(&self) -> String {
        CsvFormatFactory.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        Ok(format!("{}{}", self.get_ext(), compression.get_ext()))
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        Some(self.options.compression.into())
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let has_header = self.has_header(state);
        let schema =
            infer::infer_schema(store.as_ref(), objects, &self.options, has_header, self.delimiter_is_given).await?;
        Ok(Arc::new(schema))
    }

    async fn infer_stats(
        &self,
        _state: &dyn Session,
        _store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        _object: &ObjectMeta,
    ) -> Result<Statistics> {
        Ok(Statistics::new_unknown(&table_schema))
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let source = config
            .file_source
            .downcast_ref::<CsvSource>()
            .ok_or_else(|| internal_datafusion_err!("the source of a CSV scan is another format's"))?;
        let mut source = source.clone();
        source.format.options = self.options_in(state);
        let config = FileScanConfigBuilder::from(config)
            .with_file_compression_type(self.options.compression.into())
            .with_source(Arc::new(source))
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        mut config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        name_compressed(&mut config, self)?;
        CsvText::check(&self.options)?;
        if !CsvText::covers(&self.options) {
            let host = HostFormat::default().with_options(self.options.clone());
            return host.create_writer_physical_plan(input, state, config, order).await;
        }
        Ok(sink(config, self.options.clone(), self.has_header(state))?.plan(input, order))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(CsvSource::new(table_schema, Csv::new(self.options.clone())))
    }
}

/// The sink of a format.
///
/// # Errors
/// Fails for any insert operation except appending.
pub fn sink(config: FileSinkConfig, options: CsvOptions, has_header: bool) -> Result<TextSink> {
    let serializer = CsvSerializer { text: CsvText::of(&options), has_header };
    TextSink::try_new(config, TextKind::Csv { options: Box::new(options), has_header }, Arc::new(serializer))
}

/// Serializes batches as CSV text.
struct CsvSerializer {
    text: CsvText,
    has_header: bool,
}

impl BatchSerializer for CsvSerializer {
    fn serialize(&self, batch: RecordBatch, initial: bool) -> Result<Bytes> {
        let mut text = Vec::new();
        if initial && self.has_header {
            self.text.header(batch.schema_ref(), &mut text);
        }
        self.text.rows(&batch, &mut text)?;
        Ok(text.into())
    }
}
