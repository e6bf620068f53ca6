//! File formats that read what DataFusion 55 reads wrongly, or refuse it with a clear error.
//!
//! [`CsvFormatFactory`], [`JsonFormatFactory`] and [`ArrowFormatFactory`] replace DataFusion's formats of the same names once
//! [`register`] has added them to a session, both for `CREATE EXTERNAL TABLE` and for files that `COPY` writes. They can be
//! removed when DataFusion reads such files itself; the tests show its current behavior.

pub mod arrow;
pub mod csv;
mod in_doubt;
pub mod json;
mod local;
pub(crate) mod text;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::physical_plan::FileSinkConfig;
use datafusion::execution::SessionState;

pub use arrow::{ArrowFormatFactory, panic_is_caught};
pub use csv::CsvFormatFactory;
pub use in_doubt::files_in_doubt;
pub use json::JsonFormatFactory;

/// Makes the names of written files show their compression. DataFusion 55 names the files of an `INSERT` by their format
/// alone, and does not find them again.
fn name_compressed(config: &mut FileSinkConfig, format: &dyn FileFormat) -> Result<()> {
    if config.file_extension == format.get_ext()
        && let Some(compression) = format.compression_type()
    {
        config.file_extension = format.get_ext_with_compression(&compression)?;
    }
    Ok(())
}

/// Makes a session read and write CSV, JSON and Arrow files with the formats of this module.
///
/// # Errors
///
/// Returns an error if the session does not accept the formats.
pub fn register(state: &mut SessionState) -> Result<()> {
    state.register_file_format(Arc::new(CsvFormatFactory), true)?;
    state.register_file_format(Arc::new(JsonFormatFactory), true)?;
    state.register_file_format(Arc::new(ArrowFormatFactory), true)
}
