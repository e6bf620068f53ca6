//! How sinks of Overspill's own file formats travel.

use std::sync::Arc;

use datafusion::common::config::CsvOptions;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::datasource::physical_plan::{FileSink, FileSinkConfig};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::protobuf::FileSinkConfig as ConfigMessage;
use datafusion_proto_common::protobuf_common::CsvOptions as CsvMessage;
use overspill::travel::{TextKind, TextSink, text_sink};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct SinkMessage {
    #[prost(message, required, tag = "1")]
    config: ConfigMessage,
    /// How CSV is written; without it, it is JSON.
    #[prost(message, optional, tag = "2")]
    csv: Option<CsvMessage>,
    #[prost(bool, tag = "3")]
    has_header: bool,
    /// The name of the compression of JSON, and its level.
    #[prost(string, tag = "4")]
    compression: String,
    #[prost(uint32, optional, tag = "5")]
    compression_level: Option<u32>,
}

/// The bytes of a sink of text; `None` for other sinks. The order that it requires of its rows is not among them: its input has it.
pub fn encode(sink: &DataSinkExec) -> Result<Option<Vec<u8>>> {
    let Some(text) = sink.sink().downcast_ref::<TextSink>() else { return Ok(None) };
    let mut message = SinkMessage { config: text.config().try_into()?, ..SinkMessage::default() };
    match text.kind() {
        TextKind::Csv { options, has_header } => {
            message.csv = Some(CsvMessage::try_from(options.as_ref())?);
            message.has_header = *has_header;
        }
        TextKind::Json { compression, compression_level } => {
            message.compression = compression.to_string();
            message.compression_level = *compression_level;
        }
    }
    Ok(Some(message.encode_to_vec()))
}

/// Reads a sink that [`encode`] has written, and puts it above its input.
pub fn decode(bytes: &[u8], input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let broken = |error| internal_datafusion_err!("the bytes of a sink are of none: {error}");
    let SinkMessage { config, csv, has_header, compression, compression_level } =
        SinkMessage::decode(bytes).map_err(broken)?;
    let kind = match csv {
        Some(options) => TextKind::Csv { options: Box::new(CsvOptions::try_from(&options)?), has_header },
        None => TextKind::Json { compression: compression.parse()?, compression_level },
    };
    let sink = text_sink(FileSinkConfig::try_from(&config)?, kind)?;
    Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::parsers::CompressionTypeVariant;
    use datafusion::datasource::listing::ListingTableUrl;
    use datafusion::datasource::physical_plan::{FileGroup, FileOutputMode};
    use datafusion::execution::object_store::ObjectStoreUrl;
    use datafusion::logical_expr::dml::InsertOp;
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;

    #[test]
    fn sinks_arrive_as_they_left() {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, true)]));
        let config = FileSinkConfig {
            original_url: String::new(),
            object_store_url: ObjectStoreUrl::local_filesystem(),
            file_group: FileGroup::new(vec![]),
            table_paths: vec![ListingTableUrl::parse("/out/").unwrap()],
            output_schema: Arc::clone(&schema),
            table_partition_cols: vec![("a".to_owned(), DataType::Int32)],
            insert_op: InsertOp::Append,
            keep_partition_by_columns: true,
            file_extension: "text".to_owned(),
            file_output_mode: FileOutputMode::Directory,
        };
        let options = CsvOptions {
            delimiter: b'|',
            null_value: Some("-".to_owned()),
            compression: CompressionTypeVariant::GZIP,
            compression_level: Some(3),
            date_format: Some("%d.%m.%Y".to_owned()),
            ..CsvOptions::default()
        };
        let csv = TextKind::Csv { options: Box::new(options), has_header: true };
        let json = TextKind::Json { compression: CompressionTypeVariant::ZSTD, compression_level: Some(9) };
        for kind in [csv, json] {
            let input: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(Arc::clone(&schema)));
            let sink = Arc::new(text_sink(config.clone(), kind.clone()).unwrap());
            let bytes = encode(&DataSinkExec::new(Arc::clone(&input), sink, None)).unwrap().unwrap();
            let arrived = decode(&bytes, input).unwrap();
            let arrived = arrived.downcast_ref::<DataSinkExec>().unwrap().sink().downcast_ref::<TextSink>().unwrap();
            assert_eq!(arrived.kind(), &kind);
            let arrived = arrived.config();
            assert_eq!(arrived.table_paths, config.table_paths);
            assert_eq!(arrived.output_schema, config.output_schema);
            assert_eq!(arrived.table_partition_cols, config.table_partition_cols);
            assert!(arrived.keep_partition_by_columns);
            assert_eq!(arrived.file_extension, config.file_extension);
            assert_eq!(arrived.file_output_mode, config.file_output_mode);
        }
    }
}
