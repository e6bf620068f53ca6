//! Formats of files that read what DataFusion 55 reads wrongly, or refuse it in a sentence.
//!
//! [`CsvFormatFactory`], [`JsonFormatFactory`] and [`ArrowFormatFactory`] take the place of DataFusion's formats of the same
//! names once [`register`] has put them into a session: in files named by `CREATE EXTERNAL TABLE` and in those that `COPY`
//! writes. They can be taken out when DataFusion reads such files itself; the tests say what it does now.

pub mod arrow;
pub mod csv;
pub mod json;
mod local;
mod text;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::physical_plan::FileSinkConfig;
use datafusion::execution::SessionState;

pub use arrow::{ArrowFormatFactory, panic_is_caught};
pub use csv::CsvFormatFactory;
pub use json::JsonFormatFactory;

/// Makes the names of files that are written say how they are compressed. DataFusion 55 names those of an `INSERT` by their
/// format alone, and does not find them again.
fn name_compressed(config: &mut FileSinkConfig, format: &dyn FileFormat) -> Result<()> {
    if config.file_extension == format.get_ext()
        && let Some(compression) = format.compression_type()
    {
        config.file_extension = format.get_ext_with_compression(&compression)?;
    }
    Ok(())
}

/// Makes a session read and write CSV, JSON and Arrow files by the formats of this module.
///
/// # Errors
///
/// Returns an error if the session does not take the formats.
pub fn register(state: &mut SessionState) -> Result<()> {
    state.register_file_format(Arc::new(CsvFormatFactory), true)?;
    state.register_file_format(Arc::new(JsonFormatFactory), true)?;
    state.register_file_format(Arc::new(ArrowFormatFactory), true)
}
