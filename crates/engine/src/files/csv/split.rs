//! Finds where records begin in the middle of a file, so that several threads may read one file.
//!
//! Whether a byte is inside quotes depends on all bytes before it. So this module scans these bytes for quotes alone: that is
//! several times faster than reading records, and each byte is scanned once for all threads.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::Path as FilePath;
use std::sync::Arc;

use datafusion::object_store::path::Path;
use parking_lot::Mutex;

use super::lexer::Dialect;
use crate::files::local::fill;

/// The number of bytes scanned at a time.
const PIECE: usize = 1 << 20;

/// The known record starts in the files of a scan.
#[derive(Debug, Default)]
pub struct RecordStarts {
    files: Mutex<HashMap<Path, Arc<Mutex<BTreeSet<u64>>>>>,
}

impl RecordStarts {
    /// Returns the first byte at or after `offset` at which a record of the local file begins, or the length of the file.
    ///
    /// `first` is the position of the first record of the file. Calls block while another thread scans the same file.
    pub fn at_or_behind(&self, location: &Path, dialect: Dialect, first: u64, offset: u64) -> io::Result<u64> {
        let known = Arc::clone(self.files.lock().entry(location.clone()).or_default());
        let mut known = known.lock();
        let from = known.range(..=offset).next_back().copied().unwrap_or(first);
        if from >= offset {
            return Ok(from);
        }
        let mut file = File::open(FilePath::new("/").join(location.as_ref()))?;
        file.seek(SeekFrom::Start(from))?;
        let start = record_start(&mut file, dialect, from, offset)?;
        known.insert(start);
        Ok(start)
    }
}

/// The quoting state of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quotes {
    Outside,
    Inside,
    /// After a quote inside quotes. If another quote follows, both are part of the text.
    Closing,
}

/// Returns the first record start at or after `offset`. The reader's first byte is at position `at` and begins a record.
fn record_start(reader: &mut impl io::Read, dialect: Dialect, at: u64, offset: u64) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut quotes = Quotes::Outside;
    // The byte before the current one. A quote after one of these bytes begins a quoted field.
    let mut before = b'\n';
    let mut position = at;
    let mut ended_by_carriage_return = false;
    loop {
        let length = fill(reader, &mut piece)?;
        if length == 0 {
            return Ok(position);
        }
        let bytes = &piece[..length];
        // If a record begins at `offset`, the previous one ends one byte before.
        let quick = usize::try_from((offset - 1).saturating_sub(position)).map_or(length, |quick| quick.min(length));
        skip(&bytes[..quick], dialect, &mut quotes, &mut before);
        for (index, &byte) in bytes.iter().enumerate().skip(quick) {
            if ended_by_carriage_return {
                return Ok(position + index as u64 + u64::from(byte == b'\n'));
            }
            quotes = step(quotes, byte, before, dialect);
            before = byte;
            match byte {
                b'\n' if quotes == Quotes::Outside => return Ok(position + index as u64 + 1),
                b'\r' if quotes == Quotes::Outside => ended_by_carriage_return = true,
                _ => {}
            }
        }
        position += length as u64;
    }
}

/// Tracks the quotes in bytes without looking for line breaks.
fn skip(bytes: &[u8], dialect: Dialect, quotes: &mut Quotes, before: &mut u8) {
    let mut at = 0;
    while at < bytes.len() {
        if *quotes == Quotes::Closing {
            *quotes = step(*quotes, bytes[at], *before, dialect);
            *before = bytes[at];
            at += 1;
            continue;
        }
        let Some(length) = memchr::memchr(dialect.quote, &bytes[at..]) else {
            *before = bytes[bytes.len() - 1];
            return;
        };
        if length > 0 {
            *before = bytes[at + length - 1];
        }
        at += length;
        *quotes = step(*quotes, bytes[at], *before, dialect);
        *before = bytes[at];
        at += 1;
    }
}

fn step(quotes: Quotes, byte: u8, before: u8, dialect: Dialect) -> Quotes {
    let is_quote = byte == dialect.quote;
    match quotes {
        Quotes::Outside if is_quote && (before == dialect.delimiter || matches!(before, b'\n' | b'\r')) => {
            Quotes::Inside
        }
        Quotes::Outside => Quotes::Outside,
        Quotes::Inside if is_quote => Quotes::Closing,
        Quotes::Inside => Quotes::Inside,
        Quotes::Closing if is_quote => Quotes::Inside,
        Quotes::Closing => Quotes::Outside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Dialect = Dialect { delimiter: b',', quote: b'"', escape: None, comment: None, terminator: None };

    #[test]
    fn records_begin_outside_quotes_wherever_one_looks() {
        let text = "a,b\n\"x\n\"\"y\n\",5\" pipe\r\n\"q\"z\"\n,\"\"\n\"last\n\"\n";
        let starts = [0, 4, 22, 28, 32, 40];
        assert!(starts[1..].iter().all(|start| text.as_bytes()[start - 1] == b'\n'));
        assert_eq!(text.len(), 40);
        for offset in 1..text.len() {
            let expected = starts.iter().find(|start| **start >= offset).unwrap();
            for from in starts.iter().filter(|start| **start < offset) {
                let mut rest = &text.as_bytes()[*from..];
                let start = record_start(&mut rest, PLAIN, *from as u64, offset as u64).unwrap();
                assert_eq!(start, *expected as u64, "from {from} to {offset}");
            }
        }
    }

    #[test]
    fn a_file_that_ends_inside_quotes_has_no_further_record() {
        assert_eq!(record_start(&mut &b"a\n\"b\nc\nd"[..], PLAIN, 0, 4).unwrap(), 8);
    }
}
