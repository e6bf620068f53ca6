//! An engine in a separate process that runs statements as they arrive.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use tempfile::TempDir;

use crate::process::{forget_high_water_mark, high_water_mark, tail, time_line};

/// Lines that are buffered; the process waits when it has written more.
const LINES: usize = 64;

/// A value that no query returns by chance.
const LAST_ROW: &str = "271828182845904523";

/// How long a process that has closed its output may take to exit.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// How often to check whether it has exited.
const POLL: Duration = Duration::from_millis(5);

/// A process that reads statements from standard input, one per line, and answers each with its rows as CSV on standard
/// output and with `time N SECONDS` on standard error: the shell of Overspill, or a script that does the same for another
/// engine. Dropping this value ends the process.
pub(crate) struct Session {
    name: String,
    child: Child,
    /// `None` once the input was closed.
    statements: Option<ChildStdin>,
    lines: Receiver<Line>,
    sent: usize,
    /// What the process wrote on standard error about errors.
    errors: String,
    patience: Duration,
    deadline: Instant,
    /// The directory of its temporary files, removed with this value.
    _temp: TempDir,
}

enum Line {
    Output(String),
    Error(String),
}

pub(crate) struct Answer {
    pub(crate) seconds: f64,
    /// The single row, if the statement is a query.
    pub(crate) row: String,
}

impl Session {
    /// Starts a process that may live for `patience`, with `temp` for its temporary files.
    pub(crate) fn start(name: &str, command: &mut Command, temp: TempDir, patience: Duration) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.env("TMPDIR", temp.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| exec_datafusion_err!("'{program}' could not be run: {error}"))?;
        let (sender, lines) = sync_channel(LINES);
        if let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) {
            forward(output, sender.clone(), Line::Output);
            forward(errors, sender, Line::Error);
        }
        let statements = child.stdin.take();
        Ok(Self {
            name: name.to_owned(),
            child,
            statements,
            lines,
            sent: 0,
            errors: String::new(),
            patience,
            deadline: Instant::now() + patience,
            _temp: temp,
        })
    }

    /// Reads the version line that a Python engine prints first.
    pub(crate) fn version(&mut self) -> Result<String> {
        let asked = "which version it is";
        loop {
            match self.next(asked)? {
                Line::Output(line) => match line.strip_prefix("version ") {
                    Some(version) => return Ok(version.to_owned()),
                    None => return exec_err!("{} was asked {asked} and said: {line}", self.name),
                },
                Line::Error(line) => self.note(&line),
            }
        }
    }

    /// Runs a statement that returns no rows, and returns its seconds.
    pub(crate) fn execute(&mut self, sql: &str) -> Result<f64> {
        self.run(sql, |_| true).map(|(seconds, _)| seconds)
    }

    /// Runs a query that returns one row.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Answer> {
        // The column names and the row.
        let (seconds, mut lines) = self.run(sql, |lines| lines.len() >= 2)?;
        Ok(Answer { seconds, row: lines.pop().unwrap_or_default() })
    }

    /// Runs a query that returns any number of rows. Returns its seconds and its rows as lines of CSV.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<(f64, Vec<String>)> {
        let (seconds, mut rows) = self.run(sql, |_| true)?;
        // Rows may arrive after the time, but before the rows of the next query.
        let (_, rest) = self.run(&format!("SELECT {LAST_ROW} AS last_row"), |lines| {
            lines.last().is_some_and(|line| line == LAST_ROW)
        })?;
        rows.extend(rest);
        // Remove the column names of both queries.
        rows.truncate(rows.len().saturating_sub(2));
        if !rows.is_empty() {
            rows.remove(0);
        }
        Ok((seconds, rows))
    }

    /// Runs a statement until its time and all its lines have arrived.
    fn run(&mut self, sql: &str, are_all: impl Fn(&[String]) -> bool) -> Result<(f64, Vec<String>)> {
        self.sent += 1;
        let sent = self.statements.as_mut().map(|statements| writeln!(statements, "{sql};"));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.ended(sql));
        }
        let (mut seconds, mut output) = (None, vec![]);
        loop {
            // The two streams are not ordered relative to each other.
            if let (Some(seconds), true) = (seconds, are_all(&output)) {
                return Ok((seconds, output));
            }
            match self.next(sql)? {
                Line::Output(line) => output.push(line),
                Line::Error(line) => match time_line(&line) {
                    Some((number, time)) if number == self.sent => seconds = Some(time),
                    _ => self.note(&line),
                },
            }
        }
    }

    /// Resets the peak memory of the process to its current memory. Returns false if the system cannot do that.
    pub(crate) fn forget_peak_memory(&self) -> bool {
        forget_high_water_mark(self.child.id())
    }

    /// The peak memory in bytes since then, if the system reports it.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        high_water_mark(self.child.id())
    }

    /// Closes the input of the process, and waits for its exit.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.statements.take());
        match self.last_words(self.deadline) {
            Some(status) if status.success() => Ok(()),
            Some(status) => exec_err!("{} failed ({status}): {}", self.name, tail(&self.errors)),
            None => self.out_of_time("it had ended"),
        }
    }

    fn note(&mut self, line: &str) {
        self.errors = format!("{}\n{line}", tail(&self.errors));
    }

    /// The next line of the process, until its deadline.
    fn next(&mut self, asked: &str) -> Result<Line> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // A process that writes without end gets no more time than others.
        let line = if left.is_zero() { Err(RecvTimeoutError::Timeout) } else { self.lines.recv_timeout(left) };
        match line {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => self.out_of_time(&format!("it had answered: {asked}")),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended(asked)),
        }
    }

    fn out_of_time<T>(&self, before: &str) -> Result<T> {
        exec_err!("{} was stopped after {} s, before {before}", self.name, self.patience.as_secs_f64())
    }

    /// Why a process that has ended gives no answer.
    fn ended(&mut self, asked: &str) -> DataFusionError {
        let status = self.last_words(Instant::now() + LAST_PATIENCE);
        let status = status.map_or_else(|| "it closed its output".to_owned(), |status| status.to_string());
        let said = tail(&self.errors);
        let said = if said.is_empty() { "It said nothing." } else { said };
        exec_datafusion_err!("{} ended ({status}) before it had answered: {asked}\n{said}", self.name)
    }

    /// Reads the output of a process that is ending until it has exited. `None` if it has not by `until`.
    fn last_words(&mut self, until: Instant) -> Option<ExitStatus> {
        let left = || until.saturating_duration_since(Instant::now());
        while !left().is_zero() {
            match self.lines.recv_timeout(left()) {
                Ok(Line::Error(line)) => self.note(&line),
                Ok(Line::Output(_)) => {}
                // A process exits right after it closes its streams.
                Err(_) => match self.child.try_wait() {
                    Ok(None) => std::thread::sleep(POLL),
                    Ok(Some(status)) => return Some(status),
                    Err(_) => return None,
                },
            }
        }
        None
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The process may have exited by itself, which is no error.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Forwards the lines of a stream, on a thread that ends with the stream or when the receiver is dropped.
fn forward(stream: impl Read + Send + 'static, to: SyncSender<Line>, kind: fn(String) -> Line) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = vec![];
        while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if to.send(kind(text)).is_err() {
                return;
            }
            line.clear();
        }
    });
}
