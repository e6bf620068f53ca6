//! The scan of JSON files.

use std::io::{BufReader, Cursor, Read};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use datafusion::common::{Result, internal_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileOpenFuture;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use futures::StreamExt;

use super::array::{Values, has_records_in_lines};
use super::lines::Lines;
use crate::files::local::{PIECE, Source, in_file, text_head};
use crate::files::text::{TextFormat, TextSource, part_of};

/// Reads JSON files of one table.
pub type JsonSource = TextSource<Json>;

/// The format of JSON files. It has no options that concern reading.
#[derive(Clone)]
pub struct Json;

impl TextFormat for Json {
    const NAME: &str = "json";

    fn open(
        source: JsonSource,
        compression: FileCompressionType,
        store: Arc<dyn ObjectStore>,
        file: PartitionedFile,
    ) -> FileOpenFuture {
        Box::pin(async move {
            let Some(batch_size) = source.batch_size else {
                return internal_err!("a JSON file is opened before the size of batches is set");
            };
            let schema = Arc::new(source.table_schema.file_schema().project(&source.projection.file_indices)?);
            let range = part_of(&file);
            let object = file.object_meta;
            let Some(values) = values(store.as_ref(), &object, compression, range).await? else {
                return Ok(futures::stream::empty().boxed());
            };
            let reader = BufReader::with_capacity(PIECE, values);
            // Arrow's reader truncates fractions when it reads integers. So it reads their text, which is then cast.
            let read = Arc::new(Schema::new(schema.fields().iter().map(integers_as_text).collect::<Fields>()));
            let batches = ReaderBuilder::new(Arc::clone(&read))
                .with_batch_size(batch_size)
                .with_coerce_primitive(read != schema)
                .build(reader)
                .map_err(|error| in_file(&object, error))?;
            let batches = batches.map(move |batch| {
                let batch = batch.and_then(|batch| of_schema(batch, &schema));
                batch.map_err(|error| in_file(&object, error))
            });
            Ok(futures::stream::iter(batches).boxed())
        })
    }
}

/// The field with text types in place of integer types, including those nested in lists and structures.
fn integers_as_text(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        data_type if data_type.is_integer() => DataType::Utf8,
        DataType::List(item) => DataType::List(integers_as_text(item)),
        DataType::LargeList(item) => DataType::LargeList(integers_as_text(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(integers_as_text).collect()),
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// Casts the rows to the types of a schema.
fn of_schema(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    if batch.schema_ref() == schema {
        return Ok(batch);
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast_with_options(column, field.data_type(), &options));
    RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_, _>>()?)
}

/// The values of a file, or of a range of it. A file that cannot be split is read as a whole for the range from 0; other
/// ranges return none.
pub async fn values(
    store: &dyn ObjectStore,
    object: &ObjectMeta,
    compression: FileCompressionType,
    range: Option<Range<u64>>,
) -> Result<Option<Box<dyn Read + Send>>> {
    let mut reader = Source::open(store, object).await?.decompressed(compression)?;
    let (head, _) = text_head(&mut reader, object)?;
    match range {
        Some(Range { start, end }) if has_records_in_lines(&head) => {
            let lines = Source::open(store, object).await?.from(Lines::<Source>::seek_to(start));
            let mut lines = Lines::new(lines.map_err(|error| in_file(object, error))?, start, end);
            if start > 0 {
                return Ok(Some(Box::new(lines)));
            }
            let (head, _) = text_head(&mut lines, object)?;
            Ok(Some(Box::new(Cursor::new(head).chain(lines))))
        }
        Some(Range { start, .. }) if start > 0 => Ok(None),
        _ => Ok(Some(Box::new(Values::new(Cursor::new(head).chain(reader))))),
    }
}
