//! Statements from -c, from files and from standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use overspill_session::{Location, Place, Splitter};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::args::Source;
use crate::command::{self, Command, HELP};
use crate::failure::{Failure, Outcome};
use crate::shell::Shell;

/// The query of `\d`.
const TABLES: &str = "SELECT table_schema AS schema, table_name AS name, table_type AS type \
                      FROM information_schema.tables \
                      WHERE table_schema <> 'information_schema' ORDER BY schema, name";

/// Runs the sources in order. Returns true if every statement succeeded.
pub fn run(runtime: &Runtime, shell: &mut Shell, sources: &[Source]) -> Outcome<bool> {
    runtime.block_on(async {
        for source in sources {
            let next = match source {
                Source::Text(text) => lines(shell, io::Cursor::new(text.clone()), "-c").await,
                Source::File(path) => read(shell, path).await,
                Source::StandardInput => lines(shell, BufReader::new(io::stdin()), "standard input").await,
            };
            match next {
                Ok(Next::Statement) => {}
                Ok(Next::Quit) => break,
                Err(Failure::Stopped) => return Ok(false),
                Err(failure) => return Err(failure),
            }
        }
        Ok(!shell.failed)
    })
}

fn open(path: &Path) -> Outcome<BufReader<File>> {
    let file = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        false => Ok(BufReader::new(file)),
    });
    file.map_err(|error| Failure::file("read", path, &error))
}

/// Runs the statements in a file.
pub async fn read(shell: &mut Shell, path: &Path) -> Outcome<Next> {
    match open(path) {
        Ok(file) => lines(shell, file, &path.to_string_lossy()).await,
        Err(failure) => shell.judge(Err(failure)).map(|()| Next::Statement),
    }
}

/// Runs each statement as soon as its last line arrives, so that a program may write one and wait for its rows.
async fn lines(shell: &mut Shell, reader: impl BufRead + Send + 'static, name: &str) -> Outcome<Next> {
    let mut splitter = Splitter::new();
    let mut lines = read_lines(reader);
    let mut number = 0;
    loop {
        let line = match shell.interrupts.unless_raised(lines.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => break,
            // It ends the script, but not the shell in which someone has typed .read.
            Err(interrupted) => return shell.judge(Err(interrupted)).map(|()| Next::Statement),
        };
        number += 1;
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                // The meaning of the rest of the text is unknown.
                shell.judge(Err(Failure::file(&format!("read line {number} of"), Path::new(name), &error)))?;
                return Ok(Next::Statement);
            }
        };
        let line = if number == 1 { line.trim_start_matches('\u{feff}') } else { &line };
        if obey_line(shell, &mut splitter, line, Some(name)).await? == Next::Quit {
            return Ok(Next::Quit);
        }
    }
    if let Some(statement) = splitter.finish() {
        shell.statement(&statement, Some(name)).await?;
    }
    Ok(Next::Statement)
}

/// Runs a line that is a command, or the statements that the line completes.
pub async fn obey_line(shell: &mut Shell, splitter: &mut Splitter, line: &str, source: Option<&str>) -> Outcome<Next> {
    if command::is_command(line) && splitter.is_blank() {
        let begin = splitter.end();
        splitter.skip(line);
        return command(shell, line, begin, source).await;
    }
    for statement in splitter.push(line, shell.session.dialect()) {
        shell.statement(&statement, source).await?;
    }
    Ok(Next::Statement)
}

/// Runs a command, such as `\d`, at position `begin` of its source.
async fn command(shell: &mut Shell, line: &str, begin: Location, source: Option<&str>) -> Outcome<Next> {
    let done = match command::parse(line) {
        Ok(Command::Quit) => return Ok(Next::Quit),
        Ok(Command::Read(path)) => match open(&path) {
            Ok(file) => return Box::pin(lines(shell, file, &path.to_string_lossy())).await,
            Err(failure) => Err(failure),
        },
        Ok(Command::Tables) => shell.query(TABLES).await,
        Ok(Command::Columns(name)) => shell.describe(&name).await,
        Ok(Command::Help) => shell.output.text(HELP),
        Ok(Command::Timer(on)) => {
            shell.timer = on;
            Ok(())
        }
        Err(failure) => Err(failure),
    };
    let done = done.map_err(|failure| match failure {
        failure @ (Failure::Message(_) | Failure::Statement(_)) if source.is_some() => {
            let place = Place { source, text: line, begin, at: Location::new(1, 1) };
            Failure::Message(format!("{failure}{place}"))
        }
        other => other,
    });
    shell.judge(done).map(|()| Next::Statement)
}

/// The action after a line of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Statement,
    Quit,
}

/// Reads lines on a separate thread: a read of a pipe cannot be cancelled, and the thread ends with the process.
fn read_lines(mut reader: impl BufRead + Send + 'static) -> mpsc::Receiver<io::Result<String>> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        loop {
            let mut line = String::new();
            let read = reader.read_line(&mut line);
            if matches!(read, Ok(0)) {
                break;
            }
            let failed = read.is_err();
            if sender.blocking_send(read.map(|_| line)).is_err() || failed {
                break;
            }
        }
    });
    receiver
}
