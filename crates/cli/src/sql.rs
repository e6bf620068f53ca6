//! A run of SQL from its arguments to its exit status.

use std::io::{IsTerminal, stdin};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use overspill_ranks::Leader;
use overspill_session::{Limits, Session};
use tokio::runtime::Builder;

use crate::args::{Source, SqlArguments};
use crate::failure::{Failure, Outcome, status_of};
use crate::ranks::MpiProcess;
use crate::shell::Shell;
use crate::trace::Trace;
use crate::{allocator, machine, repl, script};

pub fn main(arguments: SqlArguments) -> ExitCode {
    let rank = match MpiProcess::start(&arguments.mpi) {
        Ok(rank) => rank,
        Err(failure) => return status_of(Err(failure)),
    };
    let Some(rank) = rank else {
        let limits = limits(&arguments, Limits::of_this_machine());
        return run_traced(arguments, &limits, None);
    };
    let limits = limits(&arguments, rank.share(Limits::of_this_machine()));
    match rank.leader().cloned() {
        Some(leader) => {
            let status = run_traced(arguments, &limits, Some(leader));
            rank.end(status)
        }
        None => {
            allocator::keep_to(limits.memory);
            rank.serve(&arguments.settings, &limits, machine::runtime())
        }
    }
}

/// The limits of this process.
fn limits(arguments: &SqlArguments, default: Limits) -> Limits {
    Limits {
        memory: arguments.memory_limit.unwrap_or(default.memory),
        temp: arguments.temp_limit,
        temp_dir: arguments.temp_dir.clone(),
        threads: arguments.threads.unwrap_or(default.threads),
    }
}

/// Runs all sources, and writes the timeline of their queries.
fn run_traced(arguments: SqlArguments, limits: &Limits, leader: Option<Arc<Leader>>) -> ExitCode {
    let trace = match open_trace(&arguments) {
        Ok(trace) => trace,
        Err(failure) => return status_of(Err(failure)),
    };
    // Running tasks may hold spill files, so drop the session, which removes their directory, after them.
    let (session, outcome) = run(arguments, limits, leader);
    let status = status_of(outcome);
    drop(session);
    // Only now, as stopped tasks have ended their spans.
    match trace.map_or(Ok(()), Trace::finish) {
        Ok(()) => status,
        Err(failure) => status_of(Err(failure)),
    }
}

fn open_trace(arguments: &SqlArguments) -> Outcome<Option<Trace>> {
    if let (Some(trace), Some(output)) = (&arguments.trace, &arguments.output) {
        // The files need not exist yet, but their folders do.
        let place = |path: &Path| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some((folder.canonicalize().ok()?, path.file_name()?.to_owned()))
        };
        if trace == output || (place(trace).is_some() && place(trace) == place(output)) {
            return Err(Failure::message("--output and --trace are the same file"));
        }
    }
    arguments.trace.as_deref().map(Trace::open).transpose()
}

/// Runs all sources. Returns true if every statement succeeded.
fn run(arguments: SqlArguments, limits: &Limits, leader: Option<Arc<Leader>>) -> (Option<Session>, Outcome<bool>) {
    allocator::keep_to(limits.memory);
    let sources = match arguments.sources.is_empty() {
        true if stdin().is_terminal() => None,
        true => Some(vec![Source::StandardInput]),
        false => Some(arguments.sources.clone()),
    };
    // Statements run on their own threads. This runtime only waits for them and for signals.
    let front = Builder::new_current_thread().enable_all().build();
    let opened = front
        .map_err(|error| Failure::message(format!("cannot wait for statements: {error}")))
        .and_then(|front| Ok((front, Shell::open(arguments, limits, leader, sources.is_none())?)));
    let (front, mut shell) = match opened {
        Ok(opened) => opened,
        Err(failure) => return (None, Err(failure)),
    };
    let outcome = match sources {
        Some(sources) => script::run(&front, &mut shell, &sources),
        None => repl::run(&front, &mut shell),
    };
    shell.close(outcome)
}
