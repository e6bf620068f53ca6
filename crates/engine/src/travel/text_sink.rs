//! The sinks of Overspill's own text formats.

use datafusion::common::Result;
use datafusion::datasource::physical_plan::FileSinkConfig;

use crate::files::text::{TextKind, TextSink};
use crate::files::{csv, json};

/// A sink of this kind of text.
///
/// # Errors
/// Fails for any insert operation except appending.
pub fn text_sink(config: FileSinkConfig, kind: TextKind) -> Result<TextSink> {
    match kind {
        TextKind::Csv { options, has_header } => csv::sink(config, *options, has_header),
        TextKind::Json { compression, compression_level } => json::sink(config, compression, compression_level),
    }
}
