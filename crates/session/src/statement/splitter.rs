//! Splits text into statements at the semicolons outside of strings, quoted names and comments.

use datafusion::common::config::Dialect;
use datafusion::sql::sqlparser::dialect::{Dialect as Rules, GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer, Whitespace};

use crate::error::within;

/// Text that has arrived but does not yet form a complete statement.
///
/// Each part is read once, even inside a string of many lines: of an open string only its opening quote is read again.
#[derive(Debug)]
pub struct Splitter {
    pending: String,
    /// The position of the pending text in all text received.
    begin: Location,
    /// The start of the text that is unread, or must be read again as its last token may continue.
    unread: Mark,
    open: Open,
    /// The position of the statement's first word.
    word: Option<Mark>,
}

/// The state at the end of the text that was read.
#[derive(Debug)]
enum Open {
    Nothing,
    /// An open string or quoted name with this beginning.
    Quote(String),
    /// Another construct, read again from its beginning once this character arrives.
    Until(char),
    /// A token that is read again with the text that follows.
    Part,
}

/// A statement, from its first word to the text before the semicolon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The statement.
    pub text: String,
    /// The position of its first word in all text received. Lines and columns count from 1, columns in characters.
    pub begin: Location,
}

/// A position in a text, as an offset in bytes and as line and column.
#[derive(Debug, Clone, Copy)]
struct Mark {
    offset: usize,
    at: Location,
}

impl Default for Splitter {
    fn default() -> Self {
        Self::beginning(Location::new(1, 1))
    }
}

impl Splitter {
    /// A splitter that has received no text.
    pub fn new() -> Self {
        Self::default()
    }

    fn beginning(begin: Location) -> Self {
        let unread = Mark { offset: 0, at: begin };
        Self { pending: String::new(), begin, unread, open: Open::Nothing, word: None }
    }

    /// Adds a line (or any text), and returns the statements that are now complete.
    pub fn push(&mut self, text: &str, dialect: Dialect) -> Vec<Piece> {
        self.pending.push_str(text);
        match self.open {
            Open::Until(end) if !text.contains(end) => Vec::new(),
            _ => self.read(dialect_from_str(dialect).unwrap_or_else(|| Box::new(GenericDialect {})).as_ref()),
        }
    }

    fn read(&mut self, dialect: &dyn Rules) -> Vec<Piece> {
        let quote = match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Quote(quote) => quote,
            _ => String::new(),
        };
        let text = quote.clone() + &self.pending[self.unread.offset..];
        let mut tokens = Vec::new();
        let tokenized =
            Tokenizer::new(dialect, &text).with_unescape(false).tokenize_with_location_into_buf(&mut tokens);
        // The tokenizer counts from the beginning of this text, including the quote.
        let (unread, shift) = (self.unread, quote.chars().count() as u64);
        let in_pending = |mark: Mark| {
            let column = if mark.at.line <= 1 { mark.at.column.saturating_sub(shift).max(1) } else { mark.at.column };
            let offset = unread.offset + mark.offset.saturating_sub(quote.len());
            Mark { offset, at: within(unread.at, Location::new(mark.at.line, column)) }
        };
        let mut cursor = Cursor { text: &text, mark: Mark { offset: 0, at: Location::new(1, 1) } };
        let (mut pieces, mut end_of_piece, mut certain) = (Vec::new(), None, unread);
        let mut end = cursor.mark;
        for token in tokens {
            let begin = cursor.walk_to(token.span.start);
            end = cursor.walk_to(token.span.end);
            match token.token {
                Token::SemiColon => {
                    if let Some(word) = self.word.take() {
                        let text = self.pending[word.offset..in_pending(begin).offset].trim_end().to_string();
                        pieces.push(Piece { text, begin: word.at });
                    }
                    certain = in_pending(end);
                    end_of_piece = Some(certain);
                }
                // A comment to the end of the line may continue.
                Token::Whitespace(Whitespace::SingleLineComment { .. }) if !text[..end.offset].ends_with('\n') => {}
                // Text after a blank is a separate token.
                Token::Whitespace(_) => certain = in_pending(end),
                Token::EOF => {}
                _ if self.word.is_none() => self.word = Some(in_pending(begin)),
                _ => {}
            }
        }
        self.unread = certain;
        if tokenized.is_err() {
            let open = &text[end.offset..];
            let is_comment = open.starts_with("/*");
            if !is_comment {
                self.word = self.word.or(Some(in_pending(end)));
            }
            // The quote that was open may still be open.
            let goes_on = end.offset == 0 && !quote.is_empty();
            let opening = if goes_on { Some(quote.clone()) } else { opening_quote(open) };
            self.open = match (opening, open.chars().next()) {
                (Some(opening), _) if text.ends_with('\n') => {
                    cursor.walk_to_end();
                    self.unread = in_pending(cursor.mark);
                    Open::Quote(opening)
                }
                (Some(opening), _) if goes_on => Open::Quote(opening),
                _ if is_comment => Open::Until('/'),
                (None, Some('$')) => Open::Until('$'),
                (None, Some('[')) => Open::Until(']'),
                _ => Open::Part,
            };
        }
        if let Some(end) = end_of_piece {
            self.pending.drain(..end.offset);
            self.begin = end.at;
            self.unread.offset -= end.offset;
            if let Some(word) = &mut self.word {
                word.offset -= end.offset;
            }
        }
        pieces
    }

    /// The last statement at the end of the text, without a semicolon.
    pub fn finish(&mut self) -> Option<Piece> {
        let next = Self::beginning(self.end());
        let Self { pending, begin, open, word, .. } = std::mem::replace(self, next);
        match word {
            Some(word) => Some(Piece { text: pending[word.offset..].trim_end().to_string(), begin: word.at }),
            // Leave an open comment to the parser, which reports it.
            None if !matches!(open, Open::Nothing) => Some(Piece { text: pending, begin }),
            None => None,
        }
    }

    /// Whether no statement has begun, so that a line may be a command of the shell. Comments do not begin a statement.
    pub fn is_blank(&self) -> bool {
        self.word.is_none() && matches!(self.open, Open::Nothing)
    }

    /// Skips a line that is a command, and the comments before it.
    pub fn skip(&mut self, line: &str) {
        let mut cursor = Cursor { text: line, mark: Mark { offset: 0, at: self.end() } };
        cursor.walk_to_end();
        *self = Self::beginning(cursor.mark.at);
    }

    /// The position of the next line.
    pub fn end(&self) -> Location {
        let unread = &self.pending[self.unread.offset..];
        let mut cursor = Cursor { text: unread, mark: Mark { offset: 0, at: self.unread.at } };
        cursor.walk_to_end();
        cursor.mark.at
    }
}

/// The beginning of a multi-line string or quoted name, followed by a blank; its next line then has the same meaning as after
/// the earlier lines. `None` for other tokens.
fn opening_quote(token: &str) -> Option<String> {
    let start = token.find(['\'', '"', '`'])?;
    let (prefix, quoted) = token.split_at(start);
    if !["", "b", "e", "n", "r", "x", "u&"].contains(&prefix.to_ascii_lowercase().as_str()) {
        return None;
    }
    let quote = quoted.chars().next()?;
    // Two quotes are an escaped quote, and three begin a string.
    let quotes: String = quoted.chars().take_while(|next| *next == quote).collect();
    Some(format!("{prefix}{quotes} "))
}

/// Converts the tokenizer's lines and columns, which count characters, to offsets, in one pass over the text.
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

    /// Advances by a character; false at the end.
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
        pieces.extend(splitter.finish());
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
        assert!(splitter.is_blank());
        assert_eq!(splitter.end(), Location::new(2, 1));
        splitter.skip(".timer on\n");
        let pieces = splitter.push("select 1;\n", Dialect::Generic);
        assert_eq!(pieces, [Piece { text: "select 1".to_string(), begin: Location::new(3, 1) }]);
        splitter.push("/* open\n", Dialect::Generic);
        assert!(!splitter.is_blank());
    }

    #[test]
    fn blanks_and_comments_are_no_statements() {
        assert_eq!(split("-- nothing\n;;\n /* here */ ;\n"), Vec::<String>::new());
    }

    #[test]
    fn an_open_string_is_given_to_the_parser_at_the_end() {
        assert_eq!(split("select 1; select 'open;\nselect 2;"), ["select 1", "select 'open;\nselect 2;"]);
    }

    /// Long enough to take minutes if each line were read with all lines before it.
    #[test]
    fn a_long_statement_is_read_once() {
        let rows: String = (0..50_000).map(|row| format!("({row}, 'a; ''b''; \"c'),\n")).collect();
        let text = format!("INSERT INTO t VALUES\n{rows}(0, '');\nSELECT 1;");
        assert_eq!(split(&text).len(), 2);
        for (open, close) in [("'", "'"), ("E'", "'"), ("\"", "\""), ("/*", "*/ 1"), ("$tag$", "$tag$")] {
            let text = format!("SELECT {open}{}{close}; SELECT 2;\n", "it; is\n".repeat(50_000));
            assert_eq!(split(&text).len(), 2, "{open}");
        }
    }

    #[test]
    fn a_string_goes_on_whatever_its_lines_begin_with() {
        for line in ["';", "'';", "''';", "\\';", "\";", "--;", "/*;", "' '", "''''", "$$;", "E';"] {
            for begin in ["'", "''' ", "E'", "\"", "N'x''", "--"] {
                let text = format!("select {begin}\n{line}\n{line} ; 'x' ; select 3;\n");
                let mut whole = Splitter::new();
                let mut at_once = whole.push(&text, Dialect::Generic);
                at_once.extend(whole.finish());
                assert_eq!(pieces(&text), at_once, "{text}");
            }
        }
    }
}
