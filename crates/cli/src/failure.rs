//! Why a statement did not do what was asked, in words for the user.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use datafusion::common::human_readable_size;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::runtime_env::RuntimeEnv;
use overspill::spill::explain_disk_full;

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

/// A query's error in words for the user; one that a budget caused names the budget and the setting that raises it.
pub fn describe(error: DataFusionError, runtime: &RuntimeEnv) -> String {
    let error = explain_disk_full(error, &runtime.disk_manager);
    match error.find_root() {
        DataFusionError::ResourcesExhausted(text) if text.contains("--") => without_backtrace(text),
        // Overspill's own errors say all of it; DataFusion's only know their pool.
        DataFusionError::ResourcesExhausted(text) => {
            let text = without_backtrace(text);
            let limit = match runtime.memory_pool.memory_limit() {
                MemoryLimit::Finite(bytes) => human_readable_size(bytes),
                MemoryLimit::Infinite | MemoryLimit::Unknown => "its size".to_string(),
            };
            format!(
                "Not enough memory: {}\nThe memory limit is {limit}; raise it with --memory-limit on the command line \
                 or with SET datafusion.runtime.memory_limit in SQL.",
                text.trim_end()
            )
        }
        _ => plain(&error),
    }
}

/// The error's own words, without the names of the layers it passed through.
pub fn plain(error: &DataFusionError) -> String {
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
        | DataFusionError::ResourcesExhausted(text)
        | DataFusionError::NotImplemented(text) => without_backtrace(text),
        DataFusionError::ArrowError(error, _) => error.to_string(),
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
