//! The prompt's knowledge of SQL: the end of a statement, and the completion of words.

use std::collections::BTreeSet;

use datafusion::common::config::Dialect;
use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;
use overspill_session::Splitter;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use crate::command;

pub struct Assistant {
    names: BTreeSet<String>,
    dialect: Dialect,
    files: FilenameCompleter,
}

impl Assistant {
    pub fn new(dialect: Dialect) -> Self {
        Self { names: BTreeSet::new(), dialect, files: FilenameCompleter::new() }
    }

    /// Updates names and dialect, which the last statement may have changed.
    pub fn learn(&mut self, names: BTreeSet<String>, dialect: Dialect) {
        self.names = names;
        self.dialect = dialect;
    }

    fn words(&self, start: &str) -> Vec<Pair> {
        let lower = start.to_lowercase();
        let names = self.names.iter().filter(|name| name.trim_start_matches('"').to_lowercase().starts_with(&lower));
        let mut pairs: Vec<_> = names.map(|name| pair(name.clone())).collect();
        // Without any letters, all keywords would be too many to read.
        if !start.is_empty() {
            let shouts = !start.chars().any(char::is_lowercase);
            let keywords = ALL_KEYWORDS.iter().copied().chain(["SUMMARIZE"]);
            pairs.extend(
                keywords
                    .filter(|keyword| keyword.to_lowercase().starts_with(&lower))
                    .map(|keyword| pair(if shouts { keyword.to_string() } else { keyword.to_lowercase() })),
            );
        }
        pairs
    }
}

/// Whether the text ends with a complete statement or command, which the interactive shell then runs.
fn is_complete(text: &str, dialect: Dialect) -> bool {
    let mut splitter = Splitter::new();
    for line in text.split_inclusive('\n') {
        if command::is_command(line) && splitter.is_blank() {
            splitter.skip(line);
        } else {
            splitter.push(line, dialect);
        }
    }
    splitter.is_blank()
}

fn pair(word: String) -> Pair {
    Pair { display: word.clone(), replacement: word }
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..position];
        // Inside a string, or after .read, complete a path.
        let in_string = before.matches('\'').count() % 2 == 1;
        if in_string || before.trim_start().starts_with(".read ") {
            return self.files.complete(line, position, context);
        }
        let start = before
            .char_indices()
            .rev()
            .take_while(|(_, next)| next.is_alphanumeric() || *next == '_')
            .last()
            .map_or(position, |(start, _)| start);
        Ok((start, self.words(&before[start..])))
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let complete = is_complete(context.input(), self.dialect);
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    use rustyline::history::DefaultHistory;

    use super::*;

    fn completions(line: &str) -> Vec<String> {
        let mut assistant = Assistant::new(Dialect::Generic);
        assistant
            .learn(["orders".to_string(), "o_orderkey".to_string(), "\"Odd\"".to_string()].into(), Dialect::Generic);
        let history = DefaultHistory::new();
        let (_, pairs) = assistant.complete(line, line.len(), &Context::new(&history)).unwrap();
        pairs.into_iter().map(|pair| pair.replacement).collect()
    }

    #[test]
    fn names_and_keywords_complete_a_word() {
        assert_eq!(completions("select o_o"), ["o_orderkey"]);
        assert!(completions("selec").contains(&"select".to_string()));
        assert!(completions("SELEC").contains(&"SELECT".to_string()));
        assert!(completions("select * from o").contains(&"\"Odd\"".to_string()));
    }

    #[test]
    fn after_a_dot_columns_are_offered() {
        assert_eq!(completions("select o.o_or"), ["o_orderkey"]);
    }

    #[test]
    fn completeness_wants_the_semicolon() {
        assert!(!is_complete("select 1", Dialect::Generic));
        assert!(!is_complete("select ';", Dialect::Generic));
        assert!(is_complete("select 1; -- done", Dialect::Generic));
        assert!(!is_complete("select 1; select", Dialect::Generic));
        assert!(is_complete("  ", Dialect::Generic));
        assert!(is_complete("-- the timer\n.timer on", Dialect::Generic));
        assert!(!is_complete("select 1\n.timer on", Dialect::Generic));
        assert!(!is_complete(".timer on\nselect 1", Dialect::Generic));
    }
}
