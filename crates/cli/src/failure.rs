//! Why a statement did not do what was asked, in words for the user.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use datafusion::error::DataFusionError;

use crate::session::Limits;

/// The end of a statement, or of everything, that is not success.
#[derive(Debug)]
pub enum Failure {
    /// A sentence for the user.
    Message(String),
    /// Nobody reads what is written any more: the reader of the pipe has gone.
    ClosedPipe,
    /// A signal, by its number, asked for the end.
    Interrupted(i32),
    /// An error that has been told and after which nothing more is to run.
    Stopped,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn message(text: impl Into<String>) -> Self {
        Self::Message(text.into())
    }

    /// What went wrong with a file, and with which.
    pub fn file(action: &str, path: &Path, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Self::Message(format!("cannot {action} {}: {}", path.display(), reason(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(text) => f.write_str(text),
            Self::ClosedPipe => f.write_str("the reader of the output has gone"),
            Self::Interrupted(_) => f.write_str("interrupted"),
            Self::Stopped => f.write_str("stopped after an error"),
        }
    }
}

/// An I/O error without Rust's `(os error N)`.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_lowercase(),
        None => text,
    }
}

/// A query's error in words for the user, with the budget it hit and the setting that raises it.
pub fn describe(error: &DataFusionError, limits: &Limits) -> String {
    let root = error.find_root();
    match root {
        DataFusionError::ResourcesExhausted(cause) => describe_exhaustion(cause, limits),
        _ => {
            let text = plain(error);
            if text.contains("No space left on device") {
                format!(
                    "the disk is full: {text}\n  Spilled state lies in {}. Choose a place with more room with \
                     --temp-dir, or keep more in memory with --memory-limit (now {}).",
                    limits.temp_directory(),
                    bytesize::ByteSize(limits.memory as u64).display().si(),
                )
            } else {
                text
            }
        }
    }
}

fn describe_exhaustion(cause: &str, limits: &Limits) -> String {
    let memory = bytesize::ByteSize(limits.memory as u64).display().si();
    if cause.contains("max_temp_directory_size") || cause.contains("temporary file") {
        let limit = match limits.temp {
            Some(bytes) => bytesize::ByteSize(bytes as u64).display().si().to_string(),
            None => "100 GB".to_string(),
        };
        return format!(
            "out of disk budget: the files in the temporary directory may take {limit} (--temp-limit), and the query \
             needs more\n  Raise it with --temp-limit, or keep more in memory with --memory-limit (now {memory}).\n  \
             Cause: {}",
            indented(cause)
        );
    }
    format!(
        "out of memory: the query needs more than the limit of {memory} (--memory-limit)\n  Raise it with \
         --memory-limit.\n  Cause: {}",
        indented(cause)
    )
}

fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n  ")
}

/// The error's own words, without the names of the layers it passed through.
fn plain(error: &DataFusionError) -> String {
    match error {
        DataFusionError::Context(context, inner) => match context.as_str() {
            // Wrapped by rules and operators; it names code, not what the user wrote.
            "" => plain(inner),
            _ => format!("{} ({context})", plain(inner)),
        },
        DataFusionError::Diagnostic(_, inner) => plain(inner),
        DataFusionError::Shared(inner) => plain(inner),
        DataFusionError::SQL(parse_error, _) => {
            let text = parse_error.to_string();
            text.strip_prefix("sql parser error: ").unwrap_or(&text).to_string()
        }
        DataFusionError::Plan(text)
        | DataFusionError::Configuration(text)
        | DataFusionError::Execution(text)
        | DataFusionError::NotImplemented(text) => without_backtrace(text),
        DataFusionError::SchemaError(error, _) => error.to_string(),
        DataFusionError::IoError(error) => reason(error),
        DataFusionError::External(error) => match error.downcast_ref::<DataFusionError>() {
            Some(inner) => plain(inner),
            None => without_backtrace(&error.to_string()),
        },
        DataFusionError::Collection(errors) => errors.iter().map(plain).collect::<Vec<_>>().join("\n  "),
        other => other.strip_backtrace(),
    }
}

fn without_backtrace(text: &str) -> String {
    match text.split_once(DataFusionError::BACK_TRACE_SEP) {
        Some((text, _)) => text.to_string(),
        None => text.to_string(),
    }
}

/// Tells the user something on standard error. That nobody reads it is no reason to end.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
