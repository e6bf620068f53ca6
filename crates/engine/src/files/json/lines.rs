//! Reads the lines of a part of a file.

use std::io::{self, Read};

/// Reads the lines that begin in a range of bytes. The last of them is read to its end, which may be beyond the range.
pub struct Lines<R> {
    reader: R,
    /// The file position of the next byte of the reader.
    position: u64,
    end: u64,
    /// Whether the first line of the range has begun.
    begun: bool,
    ended: bool,
}

impl<R: Read> Lines<R> {
    /// Reads the lines of the range from `start` to `end`. The reader must be positioned at [`Self::seek_to`].
    pub fn new(reader: R, start: u64, end: u64) -> Self {
        Self { reader, position: Self::seek_to(start), end, begun: start == 0, ended: end <= start }
    }

    /// The position at which reading begins, before `start`: a line that begins at `start` follows the line break before it.
    pub fn seek_to(start: u64) -> u64 {
        start.saturating_sub(1)
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.ended {
            let length = self.reader.read(buffer)?;
            if length == 0 {
                return Ok(0);
            }
            let bytes = &buffer[..length];
            let mut first = 0;
            if !self.begun {
                let Some(line_break) = memchr::memchr(b'\n', bytes) else {
                    self.position += length as u64;
                    self.ended = self.position >= self.end;
                    continue;
                };
                self.begun = true;
                first = line_break + 1;
                if self.position + first as u64 >= self.end {
                    self.ended = true;
                    return Ok(0);
                }
            }
            // The first line break at or after the last byte of the range ends it.
            let from = (self.end - 1).saturating_sub(self.position).max(first as u64);
            let mut last = length;
            if let Some(rest) = usize::try_from(from).ok().and_then(|from| bytes.get(from..).map(|rest| (from, rest)))
                && let Some(line_break) = memchr::memchr(b'\n', rest.1)
            {
                last = rest.0 + line_break + 1;
                self.ended = true;
            }
            self.position += length as u64;
            if last > first {
                buffer.copy_within(first..last, 0);
                return Ok(last - first);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_each_line_once() {
        let text = "one\n2\n\nthree\nfour";
        for cut in 0..=text.len() as u64 {
            for second in cut..=text.len() as u64 {
                let mut whole = String::new();
                for (start, end) in [(0, cut), (cut, second), (second, text.len() as u64)] {
                    let rest = &text.as_bytes()[Lines::<&[u8]>::seek_to(start) as usize..];
                    let mut lines = String::new();
                    Lines::new(rest, start, end).read_to_string(&mut lines).unwrap();
                    whole.push_str(&lines);
                }
                assert_eq!(whole, text, "cut at {cut} and {second}");
            }
        }
    }
}
