//! An engine in a process of its own, which runs statements as they come.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use tempfile::TempDir;

use crate::process::{forget_high_water_mark, high_water_mark, tail, time_line};

/// Lines that may wait to be looked at: a process that says more waits.
const LINES: usize = 64;

/// What no query returns by chance.
const LAST_ROW: &str = "271828182845904523";

/// How long a process that has closed its output may take to end.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// How often it is asked whether it has.
const POLL: Duration = Duration::from_millis(5);

/// A process that reads statements from standard input, one a line, and answers each with its rows as CSV on standard
/// output and with `time N SECONDS` on standard error: the shell of Overspill, or one that does the same for another
/// engine. Ends with this value, at the latest.
pub(crate) struct Session {
    name: String,
    child: Child,
    /// None once it was told that no more statements come.
    statements: Option<ChildStdin>,
    lines: Receiver<Line>,
    sent: usize,
    /// What it said of its errors.
    errors: String,
    patience: Duration,
    deadline: Instant,
    /// Whatever it writes outside of memory; goes with it.
    _temp: TempDir,
}

enum Line {
    Output(String),
    Error(String),
}

/// What a statement gave.
pub(crate) struct Answer {
    pub(crate) seconds: f64,
    /// Its one row, if it is a query.
    pub(crate) row: String,
}

impl Session {
    /// Starts a process that may live for as long as `patience` says, with `temp` for its temporary files.
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

    /// The line that an engine of Python's begins with.
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

    /// Runs a statement that returns no rows; gives its seconds.
    pub(crate) fn execute(&mut self, sql: &str) -> Result<f64> {
        self.run(sql, |_| true).map(|(seconds, _)| seconds)
    }

    /// Runs a query that returns one row.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Answer> {
        // The names of the columns, and the row.
        let (seconds, mut lines) = self.run(sql, |lines| lines.len() >= 2)?;
        Ok(Answer { seconds, row: lines.pop().unwrap_or_default() })
    }

    /// Runs a query that returns any number of rows; gives its seconds and its rows, as lines of CSV.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<(f64, Vec<String>)> {
        let (seconds, mut rows) = self.run(sql, |_| true)?;
        // When the time comes rows may still be on their way, which all come before those of the next query.
        let (_, rest) = self.run(&format!("SELECT {LAST_ROW} AS last_row"), |lines| {
            lines.last().is_some_and(|line| line == LAST_ROW)
        })?;
        rows.extend(rest);
        // Without the names of either query.
        rows.truncate(rows.len().saturating_sub(2));
        if !rows.is_empty() {
            rows.remove(0);
        }
        Ok((seconds, rows))
    }

    /// Runs a statement until its time has come and its lines are all there.
    fn run(&mut self, sql: &str, are_all: impl Fn(&[String]) -> bool) -> Result<(f64, Vec<String>)> {
        self.sent += 1;
        let sent = self.statements.as_mut().map(|statements| writeln!(statements, "{sql};"));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.ended(sql));
        }
        let (mut seconds, mut output) = (None, vec![]);
        loop {
            // The two streams may overtake each other.
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

    /// Lets its peak memory start anew from what it holds now. False if that cannot be done.
    pub(crate) fn forget_peak_memory(&self) -> bool {
        forget_high_water_mark(self.child.id())
    }

    /// The most memory that it held since, in bytes, where the system tells.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        high_water_mark(self.child.id())
    }

    /// Tells it that this was all, and waits for its end.
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

    /// The next line that it says, while it has time.
    fn next(&mut self, asked: &str) -> Result<Line> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // A process that talks without end has no more time than others.
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

    /// Why there is no answer from a process that says nothing any more.
    fn ended(&mut self, asked: &str) -> DataFusionError {
        let status = self.last_words(Instant::now() + LAST_PATIENCE);
        let status = status.map_or_else(|| "it closed its output".to_owned(), |status| status.to_string());
        let said = tail(&self.errors);
        let said = if said.is_empty() { "It said nothing." } else { said };
        exec_datafusion_err!("{} ended ({status}) before it had answered: {asked}\n{said}", self.name)
    }

    /// Listens to a process that is to end until it has. None if it has not by `until`.
    fn last_words(&mut self, until: Instant) -> Option<ExitStatus> {
        let left = || until.saturating_duration_since(Instant::now());
        while !left().is_zero() {
            match self.lines.recv_timeout(left()) {
                Ok(Line::Error(line)) => self.note(&line),
                Ok(Line::Output(_)) => {}
                // A process ends right after its streams.
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
        // It may have ended by itself, which is no error.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Sends on what a stream says, line by line, on a thread that ends with the stream or when nobody listens.
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
