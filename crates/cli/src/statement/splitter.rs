//! Cuts text into statements at the semicolons that are not inside a string, a quoted name or a comment.

use datafusion::common::config::Dialect;
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer};

use crate::command;

/// Text that has come so far and is not yet a whole statement.
#[derive(Debug)]
pub struct Splitter {
    pending: String,
    /// Where the text that is pending begins in all that came.
    begin: Location,
}

/// A statement, from its first word to what comes before the semicolon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    /// Where its first word stands in all the text that came. Lines and columns count from 1, columns in characters.
    pub begin: Location,
}

/// The statements of a text, and what follows the last semicolon.
#[derive(Debug)]
struct Pieces {
    /// Whole statements, without their semicolons; none of them blank.
    statements: Vec<Piece>,
    /// Where the text begins that belongs to none of them.
    rest: Mark,
    /// Where its first word begins, if it holds more than blanks and comments.
    rest_word: Option<Mark>,
    /// Whether a string, a quoted name or a comment is still open at the end of the text.
    rest_is_open: bool,
}

/// A place in a text, as an offset in bytes and as line and column.
#[derive(Debug, Clone, Copy)]
struct Mark {
    offset: usize,
    at: Location,
}

impl Splitter {
    pub fn new() -> Self {
        Self { pending: String::new(), begin: Location::new(1, 1) }
    }

    /// Adds a line (or any text), and takes out the statements that are whole now.
    pub fn push(&mut self, text: &str, dialect: Dialect) -> Vec<Piece> {
        self.pending.push_str(text);
        // Cutting looks at all that is pending; only a semicolon can have completed something.
        if !text.contains(';') {
            return Vec::new();
        }
        let Some(pieces) = cut(&self.pending, self.begin, dialect) else { return Vec::new() };
        self.pending.drain(..pieces.rest.offset);
        self.begin = pieces.rest.at;
        pieces.statements
    }

    /// The statement that no semicolon ended, at the end of the text.
    pub fn finish(&mut self, dialect: Dialect) -> Option<Piece> {
        let (text, begin) = (std::mem::take(&mut self.pending), self.begin);
        let pieces = cut(&text, begin, dialect)?;
        match pieces.rest_word {
            Some(word) => Some(Piece { text: text[word.offset..].trim_end().to_string(), begin: word.at }),
            // What is open stays for the parser, which says what is wrong with it.
            None if pieces.rest_is_open => Some(Piece { text, begin }),
            None => None,
        }
    }

    /// Whether no statement has begun, so that a line may be a command of the shell. Comments are no statement.
    pub fn is_blank(&self, dialect: Dialect) -> bool {
        is_blank(&self.pending, dialect)
    }

    /// Passes over a line that is a command, and over the comments before it.
    pub fn skip(&mut self, line: &str) {
        let mut cursor = Cursor { text: &self.pending, mark: Mark { offset: 0, at: self.begin } };
        cursor.walk_to_end();
        let mut cursor = Cursor { text: line, mark: Mark { offset: 0, at: cursor.mark.at } };
        cursor.walk_to_end();
        self.begin = cursor.mark.at;
        self.pending.clear();
    }

    /// Where the next line begins.
    pub fn end(&self) -> Location {
        let mut cursor = Cursor { text: &self.pending, mark: Mark { offset: 0, at: self.begin } };
        cursor.walk_to_end();
        cursor.mark.at
    }
}

fn is_blank(text: &str, dialect: Dialect) -> bool {
    text.trim().is_empty()
        || cut(text, Location::new(1, 1), dialect)
            .is_some_and(|pieces| pieces.statements.is_empty() && pieces.rest_word.is_none() && !pieces.rest_is_open)
}

/// Whether the text ends where a statement or a command of the shell does: the interactive shell runs it then.
pub fn is_complete(text: &str, dialect: Dialect) -> bool {
    let mut splitter = Splitter::new();
    let mut complete = true;
    for line in text.split_inclusive('\n') {
        if command::is_command(line) && splitter.is_blank(dialect) {
            splitter.skip(line);
            complete = true;
        } else {
            splitter.push(line, dialect);
            complete = splitter.is_blank(dialect);
        }
    }
    complete
}

/// Cuts the text, which begins at `begin`. None for a dialect that the tokenizer does not know.
fn cut(text: &str, begin: Location, dialect: Dialect) -> Option<Pieces> {
    let dialect = dialect_from_str(dialect)?;
    let mut tokens = Vec::new();
    let tokenized =
        Tokenizer::new(dialect.as_ref(), text).with_unescape(false).tokenize_with_location_into_buf(&mut tokens);
    // The tokenizer counts from the beginning of this text.
    let mut cursor = Cursor { text, mark: Mark { offset: 0, at: Location::new(1, 1) } };
    let absolute = |mark: Mark| Mark { offset: mark.offset, at: within(begin, mark.at) };
    let mut pieces = Pieces {
        statements: Vec::new(),
        rest: Mark { offset: 0, at: begin },
        rest_word: None,
        rest_is_open: tokenized.is_err(),
    };
    for token in tokens {
        match token.token {
            Token::SemiColon => {
                let semicolon = cursor.walk_to(token.span.start);
                if let Some(word) = pieces.rest_word.take() {
                    let text = text[word.offset..semicolon.offset].trim_end().to_string();
                    pieces.statements.push(Piece { text, begin: word.at });
                }
                let end = Location::new(token.span.start.line, token.span.start.column + 1);
                pieces.rest = absolute(cursor.walk_to(end));
            }
            Token::Whitespace(_) | Token::EOF => {}
            _ if pieces.rest_word.is_none() => pieces.rest_word = Some(absolute(cursor.walk_to(token.span.start))),
            _ => {}
        }
    }
    Some(pieces)
}

/// A place in a whole text, given its place in a part that begins at `begin`.
pub fn within(begin: Location, at: Location) -> Location {
    match at.line {
        0 | 1 => Location::new(begin.line, begin.column + at.column.saturating_sub(1)),
        line => Location::new(begin.line + line - 1, at.column),
    }
}

/// Turns the tokenizer's lines and columns, which count characters, into offsets, in one walk over the text.
struct Cursor<'a> {
    text: &'a str,
    mark: Mark,
}

impl Cursor<'_> {
    fn walk_to(&mut self, place: Location) -> Mark {
        while self.mark.at < place && self.step() {}
        self.mark
    }

    fn walk_to_end(&mut self) {
        while self.step() {}
    }

    /// Goes on by a character; false at the end.
    fn step(&mut self) -> bool {
        let Some(character) = self.text[self.mark.offset..].chars().next() else { return false };
        self.mark.offset += character.len_utf8();
        if character == '\n' {
            self.mark.at = Location::new(self.mark.at.line + 1, 1);
        } else {
            self.mark.at.column += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        pieces(text).into_iter().map(|piece| piece.text).collect()
    }

    fn pieces(text: &str) -> Vec<Piece> {
        let mut splitter = Splitter::new();
        let mut pieces: Vec<_> =
            text.split_inclusive('\n').flat_map(|line| splitter.push(line, Dialect::Generic)).collect();
        pieces.extend(splitter.finish(Dialect::Generic));
        pieces
    }

    #[test]
    fn semicolons_end_statements() {
        assert_eq!(split("select 1; select 2 ;\nselect\n3"), ["select 1", "select 2", "select\n3"]);
    }

    #[test]
    fn semicolons_in_strings_names_and_comments_do_not() {
        assert_eq!(
            split("select ';' as \"a;b\" -- ; no\n; /* ; \n ; */ select 2;"),
            ["select ';' as \"a;b\" -- ; no", "select 2"]
        );
    }

    #[test]
    fn doubled_quotes_and_backslashes_are_no_end() {
        assert_eq!(split("select 'it''s;', '\\'; select 2"), ["select 'it''s;', '\\'", "select 2"]);
    }

    #[test]
    fn offsets_count_bytes_where_columns_count_characters() {
        assert_eq!(
            split("select 'žluťoučký 🐎';select 'ö'; select 3"),
            ["select 'žluťoučký 🐎'", "select 'ö'", "select 3"]
        );
    }

    #[test]
    fn statements_know_where_they_begin() {
        let places: Vec<_> = pieces("-- first\n  select 1; select 'é'; select\n3;\n\n select 4")
            .into_iter()
            .map(|piece| (piece.begin.line, piece.begin.column))
            .collect();
        assert_eq!(places, [(2, 3), (2, 13), (2, 25), (5, 2)]);
    }

    #[test]
    fn commands_are_passed_over() {
        let mut splitter = Splitter::new();
        assert!(splitter.push("-- about the command\n", Dialect::Generic).is_empty());
        assert!(splitter.is_blank(Dialect::Generic));
        assert_eq!(splitter.end(), Location::new(2, 1));
        splitter.skip(".timer on\n");
        let pieces = splitter.push("select 1;\n", Dialect::Generic);
        assert_eq!(pieces, [Piece { text: "select 1".to_string(), begin: Location::new(3, 1) }]);
        splitter.push("/* open\n", Dialect::Generic);
        assert!(!splitter.is_blank(Dialect::Generic));
    }

    #[test]
    fn blanks_and_comments_are_no_statements() {
        assert_eq!(split("-- nothing\n;;\n /* here */ ;\n"), Vec::<String>::new());
    }

    #[test]
    fn an_open_string_is_given_to_the_parser_at_the_end() {
        assert_eq!(split("select 1; select 'open;\nselect 2;"), ["select 1", "select 'open;\nselect 2;"]);
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
