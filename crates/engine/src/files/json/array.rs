//! Turns JSON of any layout into one value per line while reading it.

use std::io::{self, Read};

/// Reads the values of an array, or consecutive values, as one value per line.
///
/// The number of bytes does not change: separators between values become line breaks, and line breaks within a value become
/// blanks.
pub struct Values<R> {
    reader: R,
    shape: Shape,
    /// The nesting depth of objects and arrays at the next byte.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// The layout of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Only blanks so far.
    Unknown,
    /// An array of values.
    Array,
    EndedArray,
    /// Consecutive values.
    Values,
}

impl<R: Read> Values<R> {
    /// Reads a text from its start.
    pub fn new(reader: R) -> Self {
        Self { reader, shape: Shape::Unknown, depth: 0, in_string: false, escaped: false }
    }

    fn follow(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        for byte in bytes {
            if self.in_string {
                match *byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match (self.shape, *byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => *byte = if self.depth == 0 { b'\n' } else { b' ' },
                (Shape::Unknown, b'[') => {
                    self.shape = Shape::Array;
                    *byte = b'\n';
                }
                (Shape::EndedArray, _) => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "there is more behind the end of the array",
                    ));
                }
                (Shape::Array, b']') if self.depth == 0 => {
                    self.shape = Shape::EndedArray;
                    *byte = b'\n';
                }
                (Shape::Array, b',') if self.depth == 0 => *byte = b'\n',
                (shape, byte) => {
                    if shape == Shape::Unknown {
                        self.shape = Shape::Values;
                    }
                    match byte {
                        b'"' => self.in_string = true,
                        b'{' | b'[' => self.depth += 1,
                        b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Values<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.reader.read(buffer)?;
        self.follow(&mut buffer[..length])?;
        if length == 0 && !buffer.is_empty() && (self.shape == Shape::Array || self.depth > 0) {
            let text = "the file is cut short: its last value or array has no end";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(length)
    }
}

/// Determines the layout of a text from its first bytes: whether its records are lines, so that it can be split at line
/// breaks.
pub fn has_records_in_lines(head: &[u8]) -> bool {
    let mut depth = 0_usize;
    let (mut in_string, mut escaped) = (false, false);
    for &byte in head {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' if depth == 0 => return false,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'\n' if depth > 0 => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text in pieces of a length.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(buffer.len()).min(self.0.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    fn read(text: &str, piece: usize) -> io::Result<String> {
        let mut values = String::new();
        Values::new(Pieces(text.as_bytes(), piece)).read_to_string(&mut values)?;
        Ok(values)
    }

    #[test]
    fn an_array_becomes_its_values() {
        let text = "\n[{\"a\": [1, 2], \"b\": \"]\\\",\"},\n {\"a\": {}}]\n";
        for piece in 1..=text.len() {
            assert_eq!(
                read(text, piece).unwrap(),
                "\n\n{\"a\": [1, 2], \"b\": \"]\\\",\"}\n\n\n{\"a\": {}}\n\n",
                "{piece}"
            );
        }
    }

    #[test]
    fn other_values_come_one_a_line() {
        assert_eq!(read("{\"a\": [1,\n2]} {\"a\":\n\"\n\"}", 3).unwrap(), "{\"a\": [1, 2]}\n{\"a\": \"\n\"}");
    }

    #[test]
    fn an_array_without_end_and_text_behind_one_are_errors() {
        assert!(read("[{\"a\": 1}", 4).unwrap_err().to_string().contains("cut short"));
        assert!(read("[{\"a\": 1}] {}", 4).unwrap_err().to_string().contains("behind the end"));
    }

    #[test]
    fn records_are_lines_where_no_value_reaches_over_one() {
        assert!(has_records_in_lines(b"{\"a\": \"{[\\\"\"}\n{\"a\": [1]}\n{\"a\""));
        assert!(!has_records_in_lines(b"\n[{\"a\": 1}]"));
        assert!(!has_records_in_lines(b"{\n  \"a\": 1\n}\n"));
    }
}
