//! The kinds of files that Overspill's own formats read.

use std::sync::Arc;

use datafusion::common::config::CsvOptions;
use datafusion::datasource::physical_plan::{ArrowSource, FileSource};
use datafusion::datasource::table_schema::TableSchema;

use crate::files::arrow::CheckedSource;
use crate::files::csv::{Csv, CsvSource};
use crate::files::json::{Json, JsonSource};

/// What the scan of a kind of files knows beside its files, its columns and their compression.
#[derive(Debug, Clone, PartialEq)]
pub enum FileKind {
    /// CSV files.
    Csv {
        /// How they are read.
        options: Box<CsvOptions>,
        /// Whether the table says that they begin with a header, so that one of another width is an error.
        header_is_declared: bool,
    },
    /// JSON files.
    Json,
    /// Arrow IPC files.
    ArrowFile,
    /// Arrow IPC streams.
    ArrowStream,
}

impl FileKind {
    /// The kind of files that a source reads. `None` for sources of others than Overspill.
    pub fn of(source: &dyn FileSource) -> Option<Self> {
        if let Some(csv) = source.downcast_ref::<CsvSource>() {
            let Csv { options, header_is_declared, .. } = &csv.format;
            return Some(Self::Csv { options: Box::new(options.clone()), header_is_declared: *header_is_declared });
        }
        if source.is::<JsonSource>() {
            return Some(Self::Json);
        }
        if !source.is::<CheckedSource>() {
            return None;
        }
        match source.file_type() {
            "arrow" => Some(Self::ArrowFile),
            "arrow_stream" => Some(Self::ArrowStream),
            _ => None,
        }
    }

    /// A source of all columns of files of this kind.
    pub fn source(self, schema: TableSchema) -> Arc<dyn FileSource> {
        match self {
            Self::Csv { options, header_is_declared } => {
                let mut format = Csv::new(*options);
                format.header_is_declared = header_is_declared;
                Arc::new(CsvSource::new(schema, format))
            }
            Self::Json => Arc::new(JsonSource::new(schema, Json)),
            Self::ArrowFile => Arc::new(CheckedSource::new(Arc::new(ArrowSource::new_file_source(schema)))),
            Self::ArrowStream => Arc::new(CheckedSource::new(Arc::new(ArrowSource::new_stream_file_source(schema)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::datasource::physical_plan::ParquetSource;

    use super::*;

    #[test]
    fn sources_are_of_the_kind_that_they_were_made_of() {
        let schema = TableSchema::from(Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, true)])));
        let options = Box::new(CsvOptions { delimiter: b'|', has_header: Some(true), ..CsvOptions::default() });
        let csv = |header_is_declared| FileKind::Csv { options: options.clone(), header_is_declared };
        for kind in [csv(true), csv(false), FileKind::Json, FileKind::ArrowFile, FileKind::ArrowStream] {
            assert_eq!(FileKind::of(kind.clone().source(schema.clone()).as_ref()), Some(kind));
        }
        assert_eq!(FileKind::of(&ParquetSource::new(schema)), None);
    }
}
