//! JSON files: one object per line, objects over several lines, or one array of objects.
//!
//! This module avoids several errors of DataFusion 55: DataFusion splits an array of more than a few MiB into pieces that it
//! then cannot read, reads a truncated array as if it were complete, does not name the file in its errors, and omits the keys
//! of NULL values when it writes.

mod array;
mod lines;
mod source;

use std::collections::HashMap;
use std::io::BufReader;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::json::WriterBuilder;
use arrow::json::reader::{ValueIter, infer_json_schema_from_iterator};
use arrow::json::writer::LineDelimited;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::Session;
use datafusion::common::config::{ConfigFileType, JsonOptions};
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::common::{GetExt, Result, Statistics, exec_datafusion_err};
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
use crate::files::local::{in_file, name};
pub(crate) use source::{Json, JsonSource};

/// The number of records that types are inferred from, for all files together, unless the options say how many.
const RECORDS: usize = 20_480;

/// The fewest records that are read from each file for that.
const RECORDS_OF_EACH: usize = 100;

/// Makes [`JsonFormat`]s for a session.
#[derive(Debug, Default)]
pub struct JsonFormatFactory;

impl FileFormatFactory for JsonFormatFactory {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut table_options = state.default_table_options();
        table_options.set_config_format(ConfigFileType::JSON);
        table_options.alter_with_string_hash_map(options)?;
        Ok(Arc::new(JsonFormat { options: table_options.json }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(JsonFormat::default())
    }
}

impl GetExt for JsonFormatFactory {
    fn get_ext(&self) -> String {
        "json".to_string()
    }
}

/// The JSON format. Whether a file holds an array is detected for each file.
#[derive(Debug, Default)]
pub struct JsonFormat {
    options: JsonOptions,
}

#[async_trait]
impl FileFormat for JsonFormat {
    fn get_ext(&self) -> String {
        JsonFormatFactory.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        Ok(format!("{}{}", self.get_ext(), compression.get_ext()))
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        Some(self.options.compression.into())
    }

    async fn infer_schema(
        &self,
        _state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let mut records = self.options.schema_infer_max_rec.unwrap_or(RECORDS);
        let mut schemas: Vec<(&ObjectMeta, Schema)> = Vec::new();
        for object in objects {
            let values = source::values(store.as_ref(), object, self.options.compression.into(), None).await?;
            let Some(values) = values else { continue };
            let mut read = 0;
            let values = ValueIter::new(BufReader::new(values), None).take(records).inspect(|_| read += 1);
            let schema = infer_json_schema_from_iterator(values).map_err(|error| in_file(object, error))?;
            records = records.saturating_sub(read).max(RECORDS_OF_EACH);
            schemas.push((object, schema));
        }
        let Some((first, mut common)) = schemas.first().cloned() else { return Ok(Arc::new(Schema::empty())) };
        for (object, schema) in schemas.into_iter().skip(1) {
            common = Schema::try_merge([common, schema]).map_err(|error| {
                exec_datafusion_err!("{} and {} do not fit together: {error}", name(first), name(object))
            })?;
        }
        Ok(Arc::new(common))
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
        _state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let config =
            FileScanConfigBuilder::from(config).with_file_compression_type(self.options.compression.into()).build();
        Ok(DataSourceExec::from_data_source(config))
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        _state: &dyn Session,
        mut config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        name_compressed(&mut config, self)?;
        Ok(sink(config, self.options.compression, self.options.compression_level)?.plan(input, order))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(JsonSource::new(table_schema, Json))
    }
}

/// The sink of a format.
///
/// # Errors
/// Fails for any insert operation except appending.
pub fn sink(
    config: FileSinkConfig,
    compression: CompressionTypeVariant,
    compression_level: Option<u32>,
) -> Result<TextSink> {
    TextSink::try_new(config, TextKind::Json { compression, compression_level }, Arc::new(JsonSerializer))
}

/// Serializes each row of a batch as one object per line.
struct JsonSerializer;

impl BatchSerializer for JsonSerializer {
    fn serialize(&self, batch: RecordBatch, _initial: bool) -> Result<Bytes> {
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
        writer.write(&batch)?;
        Ok(writer.into_inner().into())
    }
}
