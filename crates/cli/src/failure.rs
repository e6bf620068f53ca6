//! Why the command line, or a part of it, ends without success.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use overspill_session::{Error, io_reason};

/// An unsuccessful end of a statement or of the process.
#[derive(Debug)]
pub enum Failure {
    /// A sentence for the user.
    Message(String),
    /// The error of a statement or of its session.
    Statement(Error),
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
            Self::Message(text) => f.write_str(text),
            Self::Statement(error) => error.fmt(f),
            Self::ClosedPipe => f.write_str("the reader of the output has gone"),
            Self::Interrupted(_) => f.write_str("interrupted"),
            Self::Stopped => f.write_str("stopped after an error"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Statement(error)
    }
}

/// Writes a line to standard error. A closed standard error does not end the program.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Reports an error that has not been reported yet, and returns the exit status.
pub fn status_of(outcome: Outcome<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(Failure::Stopped) => ExitCode::FAILURE,
        // The status that a shell reports for a program ended by SIGPIPE.
        Err(Failure::ClosedPipe) => ExitCode::from(128 + 13),
        Err(Failure::Interrupted(signal)) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        Err(failure @ (Failure::Message(_) | Failure::Statement(_))) => {
            complain(&failure);
            ExitCode::FAILURE
        }
    }
}

/// Reports a failure on standard error.
pub fn complain(failure: &Failure) {
    tell(&format!("error: {failure}"));
}
