//! The interactive shell.

mod assistant;
mod names;

use std::path::PathBuf;

use overspill_session::Splitter;
use rustyline::error::{ReadlineError, Signal};
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use tokio::runtime::Runtime;

use crate::failure::{Failure, Outcome, tell};
use crate::script::{self, Next};
use crate::shell::Shell;
use assistant::Assistant;

type Prompt = Editor<Assistant, FileHistory>;

const HISTORY_LENGTH: usize = 10_000;

/// Reads and runs statements until the end of input. Returns true even if statements failed, as the user has seen their
/// errors.
pub fn run(runtime: &Runtime, shell: &mut Shell) -> Outcome<bool> {
    let unusable = |error: ReadlineError| Failure::message(format!("the terminal cannot be used: {error}"));
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .max_history_size(HISTORY_LENGTH)
        .and_then(|config| config.history_ignore_dups(true))
        .map_err(unusable)?
        .build();
    let mut prompt: Prompt = Editor::with_config(config).map_err(unusable)?;
    shell.listen()?;
    prompt.set_helper(Some(Assistant::new(shell.session.dialect())));
    let history = home_file(".overspill_history");
    if let Some(path) = &history {
        // The first start has no history.
        let _ = prompt.load_history(path);
    }
    if let Some(path) = home_file(".overspillrc").filter(|path| path.exists()) {
        match runtime.block_on(script::read(shell, &path)) {
            Ok(Next::Quit) => return Ok(true),
            Ok(Next::Statement) | Err(Failure::Stopped) => {}
            Err(failure) => return Err(failure),
        }
    }
    if !shell.quiet {
        let version = env!("CARGO_PKG_VERSION");
        tell(&format!("overspill {version}: SQL ends with a semicolon, \\? helps, \\q ends."));
    }
    let outcome = converse(runtime, shell, &mut prompt);
    if let Some(path) = &history
        && let Err(error) = prompt.append_history(path)
    {
        tell(&format!("the history could not be kept in {}: {error}", path.display()));
    }
    outcome
}

fn converse(runtime: &Runtime, shell: &mut Shell, prompt: &mut Prompt) -> Outcome<bool> {
    loop {
        let names = runtime.block_on(names::known(shell.session.context()));
        if let Some(assistant) = prompt.helper_mut() {
            assistant.learn(names, shell.session.dialect());
        }
        let text = match prompt.readline("overspill> ") {
            Ok(text) => text,
            // The line is discarded, as in every shell. The line editor also reports the signal that ended a query.
            Err(ReadlineError::Interrupted | ReadlineError::Signal(Signal::Interrupt)) => continue,
            Err(ReadlineError::Eof) => return Ok(true),
            Err(error) => return Err(Failure::message(format!("the terminal cannot be read: {error}"))),
        };
        if text.trim().is_empty() {
            continue;
        }
        // A history that cannot be written is reported once, at the end.
        let _ = prompt.add_history_entry(text.trim());
        shell.interrupts.forget();
        if runtime.block_on(obey(shell, &text))? == Next::Quit {
            return Ok(true);
        }
    }
}

/// Runs the typed text: a command, statements, or both. After an error, the rest is not run.
async fn obey(shell: &mut Shell, text: &str) -> Outcome<Next> {
    let work = async {
        let mut splitter = Splitter::new();
        for line in text.split_inclusive('\n') {
            if script::obey_line(shell, &mut splitter, line, None).await? == Next::Quit {
                return Ok(Next::Quit);
            }
        }
        if let Some(statement) = splitter.finish() {
            shell.statement(&statement, None).await?;
        }
        Ok(Next::Statement)
    };
    match work.await {
        Err(Failure::Stopped) => Ok(Next::Statement),
        end => end,
    }
}

fn home_file(name: &str) -> Option<PathBuf> {
    std::env::home_dir().map(|home| home.join(name))
}
