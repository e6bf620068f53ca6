//! The shell's commands that are not SQL: lines that begin with a backslash or a dot.

use std::path::PathBuf;

use crate::failure::{Failure, Outcome};

/// The text of `\?`.
pub const HELP: &str = "\
\\d              the tables
\\d NAME         the columns and indexes of a table or file
\\q, .quit       end (so does Ctrl-D)
\\?, .help       this text
.read FILE      run the statements of a file
.timer on|off   the time that each statement takes
Anything else is SQL and ends with a semicolon. A path in quotes is a table: SELECT * FROM 'orders.parquet';
SUMMARIZE NAME describes the values of a table; EXPLAIN ANALYZE shows what a query did. Ctrl-C cancels a query.
";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Tables,
    Columns(String),
    Quit,
    Help,
    Read(PathBuf),
    Timer(bool),
}

/// Whether a line is a command, if a statement may begin there.
pub fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with('\\') || (line.starts_with('.') && line[1..].starts_with(|next: char| next.is_ascii_alphabetic()))
}

pub fn parse(line: &str) -> Outcome<Command> {
    // Accept a trailing semicolon.
    let line = line.trim().trim_end_matches(';').trim_end();
    let (name, argument) = match line.split_once(char::is_whitespace) {
        Some((name, argument)) => (name, argument.trim()),
        None => (line, ""),
    };
    match (name, argument) {
        ("\\d" | "\\dt" | ".tables", "") => Ok(Command::Tables),
        ("\\d" | ".schema", table) if !table.is_empty() => Ok(Command::Columns(table.to_string())),
        ("\\q" | ".quit" | ".exit", "") => Ok(Command::Quit),
        ("\\?" | "\\h" | ".help", "") => Ok(Command::Help),
        (".read" | "\\i", "") => Err(Failure::message(format!("{name} needs the name of a file"))),
        (".read" | "\\i", path) => Ok(Command::Read(PathBuf::from(path.trim_matches('\'')))),
        (".timer" | "\\timing", "on") => Ok(Command::Timer(true)),
        (".timer" | "\\timing", "off") => Ok(Command::Timer(false)),
        (".timer" | "\\timing", _) => Err(Failure::message(format!("{name} needs on or off"))),
        _ => Err(Failure::message(format!("{line} is not a command of this shell; \\? lists them"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_begin_with_a_backslash_or_a_dot_and_a_letter() {
        assert!(is_command("\\d"));
        assert!(is_command("  .read x.sql"));
        assert!(!is_command(".5 + 1"));
        assert!(!is_command("select 1"));
        assert!(!is_command("."));
    }

    #[test]
    fn commands_are_read_with_their_arguments() {
        assert_eq!(parse("\\d").unwrap(), Command::Tables);
        assert_eq!(parse("\\d  orders;").unwrap(), Command::Columns("orders".into()));
        assert_eq!(parse(".read 'a b.sql'").unwrap(), Command::Read("a b.sql".into()));
        assert_eq!(parse(".timer on").unwrap(), Command::Timer(true));
        for wrong in [".timer", ".timer maybe", ".read", "\\x", ".drop everything"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
