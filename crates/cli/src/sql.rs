//! A run of SQL from its arguments to its exit status.

use std::io::{IsTerminal, stdin};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use overspill_ranks::Leader;
use overspill_session::{Limits, Session};
use tokio::runtime::{Builder, Runtime};

use crate::args::{Source, SqlArguments};
use crate::failure::{Failure, Outcome, status_of};
use crate::ranks::MpiProcess;
use crate::shell::Shell;
use crate::trace::Trace;
use crate::{allocator, machine, repl, script};

/// Runs the statements of the arguments or of standard input, or opens a shell.
pub fn main(arguments: SqlArguments) -> ExitCode {
    let sources = match arguments.sources.is_empty() {
        true if stdin().is_terminal() => None,
        true => Some(vec![Source::StandardInput]),
        false => Some(arguments.sources.clone()),
    };
    let is_interactive = sources.is_none();
    run_in_shell(arguments, is_interactive, |front, shell| match sources {
        Some(sources) => script::run(front, shell, &sources),
        None => repl::run(front, shell),
    })
}

/// Does work in a shell: here, or as a rank of an MPI job. Only the first rank does it, and the others serve its queries.
pub fn run_in_shell(
    arguments: SqlArguments,
    is_interactive: bool,
    work: impl FnOnce(&Runtime, &mut Shell) -> Outcome<bool>,
) -> ExitCode {
    let rank = match MpiProcess::start(&arguments.mpi) {
        Ok(rank) => rank,
        Err(failure) => return status_of(Err(failure)),
    };
    let Some(rank) = rank else {
        let limits = limits(&arguments, Limits::of_this_machine());
        return run_traced(arguments, &limits, None, is_interactive, work);
    };
    let limits = limits(&arguments, rank.share(Limits::of_this_machine()));
    match rank.leader().cloned() {
        Some(leader) => {
            let status = run_traced(arguments, &limits, Some(leader), is_interactive, work);
            rank.end(status)
        }
        None => {
            allocator::keep_to(limits.memory);
            rank.serve(&arguments.resources.settings, &limits, machine::runtime())
        }
    }
}

/// The limits of this process.
fn limits(arguments: &SqlArguments, default: Limits) -> Limits {
    let arguments = &arguments.resources;
    Limits {
        memory: arguments.memory_limit.unwrap_or(default.memory),
        temp: arguments.temp_limit,
        temp_dir: arguments.temp_dir.clone(),
        threads: arguments.threads.unwrap_or(default.threads),
    }
}

/// Runs all work, and writes the timeline of its queries.
fn run_traced(
    arguments: SqlArguments,
    limits: &Limits,
    leader: Option<Arc<Leader>>,
    is_interactive: bool,
    work: impl FnOnce(&Runtime, &mut Shell) -> Outcome<bool>,
) -> ExitCode {
    let trace = match open_trace(&arguments) {
        Ok(trace) => trace,
        Err(failure) => return status_of(Err(failure)),
    };
    // Running tasks may hold spill files, so drop the session, which removes their directory, after them.
    let (session, outcome) = run(arguments, limits, leader, is_interactive, work);
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

/// Runs all work. Returns true if every statement succeeded.
fn run(
    arguments: SqlArguments,
    limits: &Limits,
    leader: Option<Arc<Leader>>,
    is_interactive: bool,
    work: impl FnOnce(&Runtime, &mut Shell) -> Outcome<bool>,
) -> (Option<Session>, Outcome<bool>) {
    allocator::keep_to(limits.memory);
    // Statements run on their own threads. This runtime only waits for them and for signals.
    let front = Builder::new_current_thread().enable_all().build();
    let opened = front
        .map_err(|error| Failure::message(format!("cannot wait for statements: {error}")))
        .and_then(|front| Ok((front, Shell::open(arguments, limits, leader, is_interactive)?)));
    let (front, mut shell) = match opened {
        Ok(opened) => opened,
        Err(failure) => return (None, Err(failure)),
    };
    let outcome = work(&front, &mut shell);
    shell.close(outcome)
}
