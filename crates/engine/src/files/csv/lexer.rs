//! Splits bytes into records and fields.
//!
//! ```text
//!                 quote                  quote
//!   FieldStart ----------> Quoted ------------------> QuoteInQuoted
//!     |   ^                  ^      doubled quote           |
//!     |   | delimiter        +------------------------------+
//!     v   |                                                 | anything else
//!   Unquoted <----------------------------------------------+
//! ```
//!
//! A quote is only special at the start of a field; elsewhere in a field without quotes it stands for itself. `\n`, `\r`
//! and `\r\n` end a record outside quotes.

use datafusion::common::config::CsvOptions;

/// The bytes that separate fields and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// Separates fields.
    pub delimiter: u8,
    /// Encloses fields that hold delimiters, quotes or line breaks.
    pub quote: u8,
    /// Makes the next byte of a quoted field stand for itself.
    pub escape: Option<u8>,
    /// Begins a comment line.
    pub comment: Option<u8>,
    /// Ends a record instead of a line break.
    pub terminator: Option<u8>,
}

impl Dialect {
    /// The dialect of DataFusion's options.
    pub fn of(options: &CsvOptions) -> Self {
        let CsvOptions { delimiter, quote, escape, comment, terminator, .. } = *options;
        Self { delimiter, quote, escape, comment, terminator }
    }

    /// Whether quotes alone determine where records end, so that a file can be split between records.
    pub fn is_plain(&self) -> bool {
        self.escape.is_none() && self.comment.is_none() && self.terminator.is_none()
    }

    fn ends_record(&self, byte: u8) -> bool {
        match self.terminator {
            Some(terminator) => byte == terminator,
            None => byte == b'\n' || byte == b'\r',
        }
    }
}

/// Receives the fields of records.
pub trait Fields {
    /// Appends bytes to the current field.
    fn text(&mut self, bytes: &[u8]);

    /// Ends the current field, which was quoted or not.
    fn end_field(&mut self, quoted: bool);

    /// Ends a record that began at a line, counted from 0. Returns whether to continue.
    fn end_record(&mut self, line: u64) -> bool;

    /// Handles an empty line. Returns whether to continue.
    fn blank_line(&mut self, line: u64) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    RecordStart,
    /// After the `\r` that ended a record.
    CarriageReturn,
    Comment,
    FieldStart,
    Unquoted {
        quoted: bool,
    },
    Quoted,
    QuoteInQuoted,
    Escaped,
}

/// The reason why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// All bytes have been read.
    Exhausted,
    /// The receiver of the fields asked to stop for now.
    Full,
    /// The next record begins at or after the end of the range.
    End,
}

/// The lexer's state between two pieces of a file.
#[derive(Debug, Clone)]
pub struct Lexer {
    dialect: Dialect,
    state: State,
    /// Whether a byte is special outside quotes.
    special: Box<[bool; 256]>,
    /// The bytes read so far.
    offset: u64,
    /// Records that begin at or after this offset belong to another reader.
    end: u64,
    /// The current line, from 0, and the line where its record began.
    line: u64,
    record_line: u64,
}

impl Lexer {
    /// Reads a file from `offset`, where a record begins, and returns all records that begin before `end`.
    pub fn new(dialect: Dialect, offset: u64, end: u64) -> Self {
        let mut special = Box::new([false; 256]);
        for byte in 0..=u8::MAX {
            special[usize::from(byte)] = byte == dialect.delimiter || dialect.ends_record(byte);
        }
        Self { dialect, state: State::RecordStart, special, offset, end, line: 0, record_line: 0 }
    }

    /// The first line of an unfinished record, if the input ends inside quotes.
    pub fn unclosed_quote(&self) -> Option<u64> {
        matches!(self.state, State::Quoted | State::Escaped).then_some(self.record_line)
    }

    /// Reads bytes. Returns how many were read, and why reading stopped.
    pub fn read(&mut self, bytes: &[u8], fields: &mut impl Fields) -> (usize, Stop) {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            match self.state {
                State::CarriageReturn => {
                    self.state = State::RecordStart;
                    at += usize::from(byte == b'\n');
                }
                State::RecordStart => {
                    if self.offset + at as u64 >= self.end {
                        return self.stop(at, Stop::End);
                    }
                    self.record_line = self.line;
                    if self.dialect.ends_record(byte) {
                        at += 1;
                        self.end_line(byte);
                        if !fields.blank_line(self.record_line) {
                            return self.stop(at, Stop::Full);
                        }
                    } else if self.dialect.comment == Some(byte) {
                        self.state = State::Comment;
                    } else {
                        self.state = State::FieldStart;
                    }
                }
                State::Comment => match bytes[at..].iter().position(|byte| self.dialect.ends_record(*byte)) {
                    Some(length) => {
                        self.end_line(bytes[at + length]);
                        at += length + 1;
                    }
                    None => at = bytes.len(),
                },
                State::FieldStart if byte == self.dialect.quote => {
                    self.state = State::Quoted;
                    at += 1;
                }
                State::FieldStart => self.state = State::Unquoted { quoted: false },
                State::Unquoted { quoted } => {
                    let length = bytes[at..].iter().position(|byte| self.special[usize::from(*byte)]);
                    let stop = at + length.unwrap_or(bytes.len() - at);
                    if stop > at {
                        fields.text(&bytes[at..stop]);
                    }
                    at = stop;
                    let Some(&byte) = bytes.get(at) else { break };
                    at += 1;
                    fields.end_field(quoted);
                    if byte == self.dialect.delimiter {
                        self.state = State::FieldStart;
                        continue;
                    }
                    self.end_line(byte);
                    if !fields.end_record(self.record_line) {
                        return self.stop(at, Stop::Full);
                    }
                }
                State::Quoted => {
                    let special = |byte: &u8| *byte == self.dialect.quote || Some(*byte) == self.dialect.escape;
                    let length = bytes[at..].iter().position(special);
                    let stop = at + length.unwrap_or(bytes.len() - at);
                    let text = &bytes[at..stop];
                    self.line += text.iter().filter(|byte| **byte == b'\n').count() as u64;
                    fields.text(text);
                    at = stop;
                    let Some(&byte) = bytes.get(at) else { break };
                    at += 1;
                    self.state = if byte == self.dialect.quote { State::QuoteInQuoted } else { State::Escaped };
                }
                State::QuoteInQuoted if byte == self.dialect.quote => {
                    fields.text(&bytes[at..=at]);
                    at += 1;
                    self.state = State::Quoted;
                }
                State::QuoteInQuoted => self.state = State::Unquoted { quoted: true },
                State::Escaped => {
                    fields.text(&bytes[at..=at]);
                    self.line += u64::from(byte == b'\n');
                    at += 1;
                    self.state = State::Quoted;
                }
            }
        }
        self.stop(at, Stop::Exhausted)
    }

    /// Ends the last record at the end of the file if no line break follows it.
    pub fn finish(&mut self, fields: &mut impl Fields) {
        let quoted = match self.state {
            State::RecordStart | State::CarriageReturn | State::Comment => return,
            State::FieldStart => false,
            State::Unquoted { quoted } => quoted,
            State::Quoted | State::QuoteInQuoted | State::Escaped => true,
        };
        self.state = State::RecordStart;
        fields.end_field(quoted);
        fields.end_record(self.record_line);
    }

    fn end_line(&mut self, byte: u8) {
        self.line += 1;
        self.state =
            if byte == b'\r' && self.dialect.terminator.is_none() { State::CarriageReturn } else { State::RecordStart };
    }

    fn stop(&mut self, read: usize, stop: Stop) -> (usize, Stop) {
        self.offset += read as u64;
        (read, stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields as text, in brackets where they were quoted; records with their lines.
    #[derive(Default)]
    struct Collected {
        field: String,
        record: Vec<String>,
        records: Vec<(u64, Vec<String>)>,
    }

    impl Fields for Collected {
        fn text(&mut self, bytes: &[u8]) {
            self.field.push_str(std::str::from_utf8(bytes).unwrap());
        }

        fn end_field(&mut self, quoted: bool) {
            let field = std::mem::take(&mut self.field);
            self.record.push(if quoted { format!("[{field}]") } else { field });
        }

        fn end_record(&mut self, line: u64) -> bool {
            self.records.push((line, std::mem::take(&mut self.record)));
            true
        }

        fn blank_line(&mut self, line: u64) -> bool {
            self.records.push((line, vec![]));
            true
        }
    }

    const PLAIN: Dialect = Dialect { delimiter: b',', quote: b'"', escape: None, comment: None, terminator: None };

    /// Reads a text in pieces of a length.
    fn read(dialect: Dialect, text: &str, piece: usize) -> Vec<(u64, Vec<String>)> {
        let mut lexer = Lexer::new(dialect, 0, u64::MAX);
        let mut collected = Collected::default();
        for bytes in text.as_bytes().chunks(piece) {
            assert_eq!(lexer.read(bytes, &mut collected), (bytes.len(), Stop::Exhausted));
        }
        lexer.finish(&mut collected);
        collected.records
    }

    fn record(line: u64, fields: &[&str]) -> (u64, Vec<String>) {
        (line, fields.iter().map(|field| field.to_string()).collect())
    }

    #[test]
    fn records_are_the_same_wherever_the_bytes_are_cut() {
        let text = "a,b\r\n\"x\ny\",\"\"\r\n5\" pipe,\"q\"z\n\n,\"say \"\"hi\"\"\"\rlast,";
        let expected = [
            record(0, &["a", "b"]),
            record(1, &["[x\ny]", "[]"]),
            record(3, &["5\" pipe", "[qz]"]),
            record(4, &[]),
            record(5, &["", "[say \"hi\"]"]),
            record(6, &["last", ""]),
        ];
        for piece in 1..=text.len() {
            assert_eq!(read(PLAIN, text, piece), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn escapes_comments_and_terminators_are_read() {
        let dialect = Dialect { escape: Some(b'\\'), comment: Some(b'#'), terminator: Some(b'|'), ..PLAIN };
        let text = "# \"a comment|\"x\\\"y\",\n|#another|z,w";
        for piece in 1..=text.len() {
            let records = read(dialect, text, piece);
            assert_eq!(records[0].1, ["[x\"y]", "\n"], "pieces of {piece}");
            assert_eq!(records[1].1, ["z", "w"], "pieces of {piece}");
        }
    }

    #[test]
    fn a_range_ends_before_the_record_that_begins_at_its_end() {
        let mut lexer = Lexer::new(PLAIN, 10, 14);
        let mut collected = Collected::default();
        assert_eq!(lexer.read(b"a\nbc\nd\n", &mut collected), (5, Stop::End));
        assert_eq!(collected.records, [record(0, &["a"]), record(1, &["bc"])]);
    }

    #[test]
    fn a_quote_that_is_not_closed_is_told() {
        let mut lexer = Lexer::new(PLAIN, 0, u64::MAX);
        lexer.read(b"a,b\nc,\"d\ne\n", &mut Collected::default());
        assert_eq!(lexer.unclosed_quote(), Some(1));
    }
}
