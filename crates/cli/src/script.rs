//! Statements from -c, from files and from standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::args::Source;
use crate::command;
use crate::failure::{Failure, Outcome};
use crate::shell::{Next, Shell};
use crate::statement::Splitter;

/// Runs the sources one after another. True if every statement succeeded.
pub fn run(runtime: &Runtime, shell: &mut Shell, sources: &[Source]) -> Outcome<bool> {
    runtime.block_on(async {
        for source in sources {
            let next = match source {
                Source::Text(text) => lines(shell, io::Cursor::new(text.clone()), Path::new("-c")).await,
                Source::File(path) => read(shell, path).await,
                Source::StandardInput => lines(shell, BufReader::new(io::stdin()), Path::new("standard input")).await,
            };
            match next {
                Ok(Next::Statement) => {}
                Ok(Next::Quit) => break,
                Err(Failure::Stopped) => return Ok(false),
                Err(failure) => return Err(failure),
            }
        }
        Ok(shell.succeeded())
    })
}

/// Runs the statements of a file.
pub async fn read(shell: &mut Shell, path: &Path) -> Outcome<Next> {
    let file = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        false => Ok(file),
    });
    match file {
        Ok(file) => lines(shell, BufReader::new(file), path).await,
        Err(error) => {
            shell.judge(Err(Failure::file("read", path, &error)))?;
            Ok(Next::Statement)
        }
    }
}

/// Runs statements as soon as their last line has come, so that a program may write one and wait for its rows.
async fn lines(shell: &mut Shell, reader: impl BufRead + Send + 'static, name: &Path) -> Outcome<Next> {
    let mut splitter = Splitter::default();
    let mut lines = read_lines(reader);
    let mut number = 0;
    while let Some(line) = shell.unless_interrupted(lines.recv()).await? {
        number += 1;
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                // What the rest of the text would mean is anybody's guess.
                shell.judge(Err(Failure::file(&format!("read line {number} of"), name, &error)))?;
                return Ok(Next::Statement);
            }
        };
        let line = if number == 1 { line.trim_start_matches('\u{feff}') } else { &line };
        if splitter.is_blank() && command::is_command(line) {
            if shell.command(line).await? == Next::Quit {
                return Ok(Next::Quit);
            }
            continue;
        }
        for statement in splitter.push(line, shell.dialect()) {
            shell.statement(&statement).await?;
        }
    }
    if let Some(statement) = splitter.finish(shell.dialect()) {
        shell.statement(&statement).await?;
    }
    Ok(Next::Statement)
}

/// Reads lines on a thread of its own: a read of a pipe cannot be cancelled, and the thread ends with the process.
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
