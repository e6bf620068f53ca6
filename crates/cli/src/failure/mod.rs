//! Failures of statements, in words for the user.

mod describe;
mod place;
mod suggest;
mod words;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use datafusion::sql::sqlparser::tokenizer::Location;

pub use describe::{describe, plain};
pub use place::Place;
pub use suggest::nearest;
pub use words::missing_table;

/// An unsuccessful end of a statement or of the process.
#[derive(Debug)]
pub enum Failure {
    /// A sentence for the user.
    Message(String),
    /// A sentence about a statement, and the place in the statement's text that it refers to, if known.
    Statement(String, Option<Location>),
    /// The reader of the pipe has closed it.
    ClosedPipe,
    /// A signal with this number requested the end.
    Interrupted(i32),
    /// An error has been reported, and nothing more is to run.
    Stopped,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn message(text: impl Into<String>) -> Self {
        Self::Message(text.into())
    }

    /// An I/O error of a file.
    pub fn file(action: &str, path: &Path, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Self::Message(format!("cannot {action} {}: {}", path.display(), io_reason(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(text) | Self::Statement(text, _) => f.write_str(text),
            Self::ClosedPipe => f.write_str("the reader of the output has gone"),
            Self::Interrupted(_) => f.write_str("interrupted"),
            Self::Stopped => f.write_str("stopped after an error"),
        }
    }
}

/// An I/O error without Rust's `(os error N)`.
fn io_reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_lowercase(),
        None => text,
    }
}

/// Writes a line to standard error. A closed standard error does not end the program.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
