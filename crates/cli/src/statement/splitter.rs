//! Cuts text into statements at the semicolons that are not inside a string, a quoted name or a comment.

use datafusion::common::config::Dialect;
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer};

/// Text that has come so far and is not yet a whole statement.
#[derive(Debug, Default)]
pub struct Splitter {
    pending: String,
}

/// A part of the text that ends with a semicolon, or the last one.
#[derive(Debug, Default)]
struct Pieces {
    /// Whole statements, without their semicolons; none of them blank.
    statements: Vec<String>,
    /// Where the text begins that belongs to none of them.
    rest: usize,
    /// Whether that text holds more than blanks and comments.
    rest_is_blank: bool,
    /// Whether a string, a quoted name or a comment is still open at the end of the text.
    rest_is_open: bool,
}

impl Splitter {
    /// Adds a line (or any text), and takes out the statements that are whole now.
    pub fn push(&mut self, text: &str, dialect: Dialect) -> Vec<String> {
        self.pending.push_str(text);
        // Cutting looks at all that is pending; only a semicolon can have completed something.
        if !text.contains(';') {
            return Vec::new();
        }
        let Some(pieces) = cut(&self.pending, dialect) else { return Vec::new() };
        self.pending.drain(..pieces.rest);
        pieces.statements
    }

    /// The statement that no semicolon ended, at the end of the text.
    pub fn finish(&mut self, dialect: Dialect) -> Option<String> {
        let text = std::mem::take(&mut self.pending);
        // What is open stays for the parser, which says what is wrong with it.
        let blank = cut(&text, dialect).is_none_or(|pieces| pieces.rest_is_blank && !pieces.rest_is_open);
        (!blank).then(|| text.trim().to_string())
    }

    /// Whether nothing has begun, so that a line may be a command of the shell.
    pub fn is_blank(&self) -> bool {
        self.pending.trim().is_empty()
    }
}

/// Whether the text ends where a statement does: the interactive shell runs it then.
pub fn is_complete(text: &str, dialect: Dialect) -> bool {
    text.trim().is_empty() || cut(text, dialect).is_some_and(|pieces| pieces.rest_is_blank && !pieces.rest_is_open)
}

/// Cuts the text. None for a dialect that the tokenizer does not know.
fn cut(text: &str, dialect: Dialect) -> Option<Pieces> {
    let dialect = dialect_from_str(dialect)?;
    let mut tokens = Vec::new();
    let tokenized =
        Tokenizer::new(dialect.as_ref(), text).with_unescape(false).tokenize_with_location_into_buf(&mut tokens);
    let mut pieces = Pieces { rest_is_blank: true, rest_is_open: tokenized.is_err(), ..Pieces::default() };
    let mut cursor = Cursor { text, offset: 0, at: Location { line: 1, column: 1 } };
    for token in tokens {
        match token.token {
            Token::SemiColon => {
                let semicolon = cursor.offset_of(token.span.start);
                if !pieces.rest_is_blank {
                    pieces.statements.push(text[pieces.rest..semicolon].trim().to_string());
                }
                pieces.rest = semicolon + 1;
                pieces.rest_is_blank = true;
            }
            Token::Whitespace(_) | Token::EOF => {}
            _ => pieces.rest_is_blank = false,
        }
    }
    Some(pieces)
}

/// Turns the tokenizer's lines and columns, which count characters, into offsets, in one walk over the text.
struct Cursor<'a> {
    text: &'a str,
    offset: usize,
    at: Location,
}

impl Cursor<'_> {
    fn offset_of(&mut self, location: Location) -> usize {
        while self.at < location {
            let Some(character) = self.text[self.offset..].chars().next() else { break };
            self.offset += character.len_utf8();
            if character == '\n' {
                self.at = Location { line: self.at.line + 1, column: 1 };
            } else {
                self.at.column += 1;
            }
        }
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        let mut splitter = Splitter::default();
        let mut statements: Vec<_> =
            text.split_inclusive('\n').flat_map(|line| splitter.push(line, Dialect::Generic)).collect();
        statements.extend(splitter.finish(Dialect::Generic));
        statements
    }

    #[test]
    fn semicolons_end_statements() {
        assert_eq!(split("select 1; select 2 ;\nselect\n3"), ["select 1", "select 2", "select\n3"]);
    }

    #[test]
    fn semicolons_in_strings_names_and_comments_do_not() {
        assert_eq!(
            split("select ';' as \"a;b\" -- ; no\n; /* ; \n ; */ select 2;"),
            ["select ';' as \"a;b\" -- ; no", "/* ; \n ; */ select 2"]
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
    }
}
