//! The exit status of the process.

use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::failure::{Failure, Outcome, complain};

/// How long the end of a tool waits for work on other threads that cannot be stopped at once.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Runs work on a new runtime with `threads` threads, and converts its outcome to an exit status.
pub fn with_runtime(threads: usize, work: impl FnOnce(&Runtime) -> Outcome<bool>) -> ExitCode {
    let outcome = match Builder::new_multi_thread().worker_threads(threads).enable_all().build() {
        Ok(runtime) => {
            let outcome = work(&runtime);
            runtime.shutdown_timeout(END_PATIENCE);
            outcome
        }
        Err(error) => Err(Failure::message(format!("cannot start {threads} threads: {error}"))),
    };
    status_of(outcome)
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
