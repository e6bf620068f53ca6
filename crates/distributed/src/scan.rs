//! How scans of Overspill's own file formats travel.
//!
//! A byte names the kind of files. The name of their compression follows, then the options of the kind, then what all scans of files have:
//! each of these three with its length before it.

use std::sync::Arc;

use datafusion::common::config::CsvOptions;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::from_proto::parse_protobuf_file_scan_config;
use datafusion_proto::physical_plan::to_proto::serialize_file_scan_config;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::FileScanExecConf;
use datafusion_proto_common::protobuf_common::CsvOptions as CsvMessage;
use overspill::travel::FileKind;
use prost::Message;

const CSV: u8 = b'c';
const CSV_WITH_HEADER: u8 = b'h';
const JSON: u8 = b'j';
const ARROW_FILE: u8 = b'a';
const ARROW_STREAM: u8 = b's';

/// Writes a scan. Returns false, and writes nothing, if it is of another format than those of Overspill.
pub fn encode(
    scan: &FileScanConfig,
    codec: &dyn PhysicalExtensionCodec,
    converter: &dyn PhysicalProtoConverterExtension,
    buf: &mut Vec<u8>,
) -> Result<bool> {
    let Some(kind) = FileKind::of(scan.file_source().as_ref()) else { return Ok(false) };
    let (kind, options) = match &kind {
        FileKind::Csv { options, header_is_declared } => {
            let kind = if *header_is_declared { CSV_WITH_HEADER } else { CSV };
            (kind, CsvMessage::try_from(options.as_ref())?.encode_to_vec())
        }
        FileKind::Json => (JSON, vec![]),
        FileKind::ArrowFile => (ARROW_FILE, vec![]),
        FileKind::ArrowStream => (ARROW_STREAM, vec![]),
    };
    let compression = scan.file_compression_type.get_variant().to_string().into_bytes();
    let scan = serialize_file_scan_config(scan, codec, converter)?.encode_to_vec();
    buf.push(kind);
    for part in [compression, options, scan] {
        buf.extend((part.len() as u64).to_le_bytes());
        buf.extend(part);
    }
    Ok(true)
}

/// Reads a scan that [`encode`] has written.
pub fn decode(
    bytes: &[u8],
    context: &PhysicalPlanDecodeContext<'_>,
    converter: &dyn PhysicalProtoConverterExtension,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some((kind, mut rest)) = bytes.split_first() else { return internal_err!("a scan without bytes") };
    let mut part = || -> Option<&[u8]> {
        let (length, after) = rest.split_first_chunk()?;
        let (part, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        rest = after;
        Some(part)
    };
    let (Some(compression), Some(options), Some(scan)) = (part(), part(), part()) else {
        return internal_err!("the bytes of a scan end early");
    };
    let broken = |error| internal_datafusion_err!("the bytes of a scan are of none: {error}");
    let csv = |header_is_declared| -> Result<FileKind> {
        let options = CsvOptions::try_from(&CsvMessage::decode(options).map_err(broken)?)?;
        Ok(FileKind::Csv { options: Box::new(options), header_is_declared })
    };
    let kind = match *kind {
        CSV => csv(false)?,
        CSV_WITH_HEADER => csv(true)?,
        JSON => FileKind::Json,
        ARROW_FILE => FileKind::ArrowFile,
        ARROW_STREAM => FileKind::ArrowStream,
        kind => return internal_err!("files of kind {kind}, which this version of Overspill does not know"),
    };
    let compression: FileCompressionType = String::from_utf8_lossy(compression).parse()?;
    let scan = FileScanExecConf::decode(scan).map_err(broken)?;
    let source = kind.source(FileScanConfig::parse_table_schema_from_proto(&scan)?);
    let scan = parse_protobuf_file_scan_config(&scan, context, converter, source)?;
    let scan = FileScanConfigBuilder::from(scan).with_file_compression_type(compression).build();
    Ok(DataSourceExec::from_data_source(scan))
}
