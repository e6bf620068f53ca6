//! Errors of sessions and statements, in words for the user.

mod describe;
mod place;
mod suggest;
mod words;

use std::fmt;
use std::io;

use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::tokenizer::Location;
use tokio::task::JoinError;

pub use describe::{describe, plain};
pub use place::{Place, within};
pub use suggest::nearest_setting;
pub use words::missing_table;

/// Why a statement failed, or a session could not be opened: a sentence for the user. If a limit caused it, the sentence names
/// the limit, its size, and how to raise it.
#[derive(Debug, Clone)]
pub struct Error {
    sentence: String,
    suggestion: Option<String>,
    place: Option<Location>,
}

/// The result of what a session does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), suggestion: None, place: None }
    }

    /// The name that was probably meant instead of one that is unknown. The sentence has it, too.
    pub fn suggestion(&self) -> Option<&str> {
        self.suggestion.as_deref()
    }

    /// The line and the column of the statement that the error is about, if they are known. Both count from 1, columns in
    /// characters.
    pub fn place(&self) -> Option<Location> {
        self.place
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

/// The error of work that is no statement.
impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        Self::new(plain(&error))
    }
}

/// Why a task has stopped: it was cancelled, or `failed` describes its error.
pub fn cancelled_or(stopped: JoinError, failed: impl FnOnce(DataFusionError) -> Error) -> Error {
    match stopped.is_cancelled() {
        true => Error::new("The statement was cancelled"),
        false => failed(DataFusionError::ExecutionJoin(Box::new(stopped))),
    }
}

/// The reason of an I/O error without Rust's `(os error N)`.
pub fn io_reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_lowercase(),
        None => text,
    }
}
