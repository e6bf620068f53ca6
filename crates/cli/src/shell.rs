//! A run of the command line from its arguments to its exit status.

use std::io::{IsTerminal, stdin};
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use datafusion::common::config::Dialect;
use datafusion::sql::sqlparser::tokenizer::Location;
use tokio::runtime::{Builder, Runtime};
use tracing::field::{Empty, display};
use tracing::{Instrument, debug_span};

use crate::allocator;
use crate::args::{OnError, Source, SqlArguments};
use crate::command::{self, Command};
use crate::failure::{Failure, Outcome, Place, tell};
use crate::interrupt::{Insistence, Interrupts};
use crate::output::Output;
use crate::progress::Progress;
use crate::session::{Limits, Session};
use crate::statement::{Answer, Piece, STATEMENTS, answer};
use crate::trace::Trace;
use crate::workers::{Left, Workers};
use crate::{budget, machine, machine_memory, repl, script};

/// How long the end of a tool waits for work on other threads that cannot be stopped at once.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The maximum number of bytes that a writer buffers, which no budget counts.
const OUTPUT_BUFFER: usize = 64 << 20;

/// The state of the command line: the session, the output, and the options that control how statements run.
pub struct Shell {
    pub session: Session,
    workers: Workers,
    output: Output,
    progress: Progress,
    interrupts: Interrupts,
    on_error: OnError,
    /// Whether `--timing` was given.
    timing: bool,
    /// Whether `.timer` is on.
    pub timer: bool,
    pub interactive: bool,
    quiet: bool,
    /// The number of statements run, for `--timing`.
    statements: usize,
    failed: bool,
}

pub fn main(arguments: SqlArguments) -> ExitCode {
    let memory = arguments.memory_limit.unwrap_or_else(machine_memory::default_limit);
    let threads = budget::threads(arguments.threads.unwrap_or_else(processors), memory);
    let trace = match open_trace(&arguments) {
        Ok(trace) => trace,
        Err(failure) => return status_of(Err(failure)),
    };
    // Running tasks may hold spill files, so drop the session, which removes their directory, after them.
    let (session, outcome) = run(arguments, memory, threads);
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

pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs work on a new runtime, and converts its outcome to an exit status.
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
fn status_of(outcome: Outcome<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(Failure::Stopped) => ExitCode::FAILURE,
        // The status that a shell reports for a program ended by SIGPIPE.
        Err(Failure::ClosedPipe) => ExitCode::from(128 + 13),
        Err(Failure::Interrupted(signal)) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        Err(Failure::Message(text) | Failure::Statement(text, _)) => {
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

/// Runs all sources. Returns true if every statement succeeded.
fn run(arguments: SqlArguments, memory: usize, threads: usize) -> (Option<Session>, Outcome<bool>) {
    let limits = Limits { memory, temp: arguments.temp_limit, temp_dir: arguments.temp_dir.clone(), threads };
    allocator::keep_to(limits.memory);
    let sources = match arguments.sources.is_empty() {
        true if stdin().is_terminal() => None,
        true => Some(vec![Source::StandardInput]),
        false => Some(arguments.sources.clone()),
    };
    // Statements run on their own threads. This runtime only waits for them and for signals.
    let front = match Builder::new_current_thread().enable_all().build() {
        Ok(front) => front,
        Err(error) => return (None, Err(Failure::message(format!("cannot wait for statements: {error}")))),
    };
    let mut shell = match Shell::open(arguments, limits, sources.is_none()) {
        Ok(shell) => shell,
        Err(failure) => return (None, Err(failure)),
    };
    let outcome = match sources {
        Some(sources) => script::run(&front, &mut shell, &sources),
        None => repl::run(&front, &mut shell),
    };
    shell.close(outcome)
}

impl Shell {
    fn open(arguments: SqlArguments, limits: Limits, interactive: bool) -> Outcome<Self> {
        let buffer = OUTPUT_BUFFER.min(limits.memory / 4);
        let session = Session::open(&limits, &arguments.settings, machine::runtime())?;
        let workers = Workers::start(limits.threads)?;
        let output = Output::open(arguments.format, arguments.output, !arguments.quiet, buffer)?;
        let shell = Self {
            session,
            workers,
            output,
            progress: Progress::new(arguments.quiet),
            interrupts: Interrupts::new(),
            on_error: arguments.on_error.unwrap_or(if interactive { OnError::Continue } else { OnError::Stop }),
            timing: arguments.timing,
            timer: false,
            interactive,
            quiet: arguments.quiet,
            statements: 0,
            failed: false,
        };
        if !interactive {
            shell.listen()?;
        }
        Ok(shell)
    }

    /// Handles Ctrl-C from now on. The interactive shell calls it after its line editor has installed its handlers.
    pub fn listen(&self) -> Outcome<()> {
        let insistence = if self.interactive { Insistence::Waits } else { Insistence::Ends };
        let listening = self.interrupts.listen(insistence);
        listening.map_err(|error| Failure::message(format!("cannot listen for Ctrl-C: {error}")))
    }

    /// Moves the output to its final path, unless a failure stopped the run.
    fn close(self, outcome: Outcome<bool>) -> (Option<Session>, Outcome<bool>) {
        let keep = match &outcome {
            Ok(succeeded) => *succeeded || self.on_error == OnError::Continue,
            Err(_) => false,
        };
        let finished = if keep { self.output.finish() } else { Ok(()) };
        self.workers.end();
        (Some(self.session), finished.and(outcome))
    }

    pub fn dialect(&self) -> Dialect {
        self.session.context.state().config().options().sql_parser.dialect
    }

    pub fn succeeded(&self) -> bool {
        !self.failed
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Forgets the signals that ended earlier work.
    pub fn forget_interrupts(&self) {
        self.interrupts.forget();
    }

    /// Waits for `work`, or until a signal arrives.
    pub async fn unless_interrupted<T>(&self, work: impl Future<Output = T>) -> Outcome<T> {
        tokio::select! {
            biased;
            signal = self.interrupts.raised() => Err(Failure::Interrupted(signal)),
            done = work => Ok(done),
        }
    }

    /// Runs a statement of a source and reports its error. Returns the error only if it ends the process or the script.
    pub async fn statement(&mut self, Piece { text: sql, begin }: &Piece, source: Option<&str>) -> Outcome<()> {
        self.statements += 1;
        let start = Instant::now();
        let timeline =
            debug_span!("statement", group = STATEMENTS, lane = STATEMENTS, title = title(sql), sql, error = Empty);
        let outcome = self.answer(sql, true).instrument(timeline.clone()).await;
        if let Err(failure) = &outcome {
            timeline.record("error", display(failure));
        }
        drop(timeline);
        let elapsed = start.elapsed().as_secs_f64();
        if let (Ok(Answer::Stored(rows)), true, false) = (&outcome, self.interactive, self.quiet) {
            tell(&format!("{rows} {} written", if *rows == 1 { "row" } else { "rows" }));
        }
        let outcome = outcome.map(|_| ()).map_err(|failure| self.located(failure, sql, *begin, source));
        let outcome = self.judge(outcome);
        if self.timer {
            tell(&format!("ran in {elapsed:.2} s"));
        }
        if self.timing {
            tell(&format!("time {} {elapsed:.3}", self.statements));
        }
        outcome
    }

    /// Runs a statement, unless a signal arrives. Stops all of its work that could disturb later statements.
    async fn answer(&mut self, sql: &str, whole_statement: bool) -> Outcome<Answer> {
        let answering = answer(&self.session, &self.workers, &mut self.output, self.progress, sql);
        let outcome = tokio::select! {
            biased;
            signal = self.interrupts.raised() => Err(Failure::Interrupted(signal)),
            answered = answering => answered,
        };
        let left = self.workers.settle().await?;
        if left == Left::Work && whole_statement && self.interactive && matches!(outcome, Err(Failure::Interrupted(_)))
        {
            tell("a part of the statement cannot be stopped at once; it goes on beside what follows until it ends");
        }
        outcome
    }

    /// Adds the place of an error: the statement among several, and the place in its text.
    fn located(&self, failure: Failure, sql: &str, begin: Location, source: Option<&str>) -> Failure {
        let (text, at) = match failure {
            Failure::Message(text) => (text, None),
            Failure::Statement(text, at) => (text, at),
            other => return other,
        };
        let at = at.unwrap_or(Location::new(1, 1));
        let place = Place { source, text: sql, begin, at };
        match self.interactive {
            false if self.statements > 1 => Failure::Message(format!("statement {}: {text}{place}", self.statements)),
            _ => Failure::Message(format!("{text}{place}")),
        }
    }

    /// Runs a command of the shell, such as `\d`, at position `begin` of its source.
    pub async fn command(&mut self, line: &str, begin: Location, source: Option<&str>) -> Outcome<Next> {
        let done = match command::parse(line) {
            Ok(Command::Quit) => return Ok(Next::Quit),
            Ok(Command::Read(path)) => match script::open(&path) {
                Ok(file) => return Box::pin(script::read(self, file, &path)).await,
                Err(failure) => Err(failure),
            },
            Ok(command) => command::run(self, command).await,
            Err(failure) => Err(failure),
        };
        let done = done.map_err(|failure| match failure {
            Failure::Message(text) | Failure::Statement(text, _) if source.is_some() => {
                let place = Place { source, text: line, begin, at: Location::new(1, 1) };
                Failure::Message(format!("{text}{place}"))
            }
            other => other,
        });
        self.judge(done).map(|()| Next::Statement)
    }

    /// Reports an error, and decides whether it ends the script or the process.
    pub fn judge(&mut self, outcome: Outcome<()>) -> Outcome<()> {
        let failure = match outcome {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        self.failed = true;
        match failure {
            Failure::Message(text) | Failure::Statement(text, _) => {
                complain(&text);
                match self.on_error {
                    OnError::Continue => Ok(()),
                    OnError::Stop => Err(Failure::Stopped),
                }
            }
            Failure::Interrupted(_) if self.interactive => {
                tell("interrupted");
                Err(Failure::Stopped)
            }
            other => Err(other),
        }
    }

    pub fn write_text(&mut self, text: &str) -> Outcome<()> {
        self.output.text(text)
    }

    /// Writes the rows of a query that a shell command issues.
    pub async fn query(&mut self, sql: &str) -> Outcome<()> {
        self.answer(sql, false).await.map(|_| ())
    }
}

/// The action after a line of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Statement,
    Quit,
}

/// The beginning of a statement on one line.
fn title(sql: &str) -> String {
    const CHARACTERS: usize = 120;
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn complain(text: &str) {
    tell(&format!("error: {text}"));
}
