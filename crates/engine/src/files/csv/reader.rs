//! Reads the records of a file, or of a range of it, as batches.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path as FilePath;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::object_store::ObjectMeta;

use super::columns::{Columns, Fault, Layout};
use super::header::First;
use super::lexer::{Dialect, Lexer, Stop};
use crate::files::local::{PIECE, fill, in_file, name};

/// The part of a file to read.
#[derive(Debug, Clone)]
pub struct Part {
    /// The file.
    pub object: ObjectMeta,
    /// Where the first record begins.
    pub start: u64,
    /// Records that begin at or after this offset are not read.
    pub end: u64,
    /// Whether the first record is a header.
    pub has_header: bool,
}

/// The batches of a part of a file. Reading them blocks the thread.
pub struct Batches {
    reader: Box<dyn Read + Send>,
    part: Part,
    lexer: Lexer,
    columns: Columns,
    header: Option<First>,
    piece: Vec<u8>,
    /// The unread bytes of the current piece.
    rest: std::ops::Range<usize>,
    done: bool,
}

impl Batches {
    /// Reads a part of a file from a reader positioned at the start of the part.
    pub fn new(
        reader: Box<dyn Read + Send>,
        part: Part,
        dialect: Dialect,
        layout: Arc<Layout>,
        batch_size: usize,
    ) -> Self {
        Self {
            reader,
            lexer: Lexer::new(dialect, part.start, part.end),
            columns: Columns::new(layout, batch_size),
            header: part.has_header.then(First::default),
            part,
            piece: vec![0; PIECE],
            rest: 0..0,
            done: false,
        }
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        while !self.done {
            if self.rest.is_empty() {
                let length = fill(&mut self.reader, &mut self.piece);
                let length = length.map_err(|error| in_file(&self.part.object, error))?;
                if length == 0 {
                    self.done = true;
                    if let Some(line) = self.lexer.unclosed_quote() {
                        let text = "begins a field in quotes that are not closed".to_string();
                        return Err(self.explain(Fault { line, text }));
                    }
                    if self.header.is_none() {
                        self.lexer.finish(&mut self.columns);
                    }
                    break;
                }
                self.rest = 0..length;
            }
            let bytes = &self.piece[self.rest.clone()];
            if let Some(header) = &mut self.header {
                let (read, stop) = self.lexer.read(bytes, header);
                self.rest.start += read;
                // Blank lines before the header may extend beyond the end of the part.
                self.done = stop == Stop::End;
                if header.ended {
                    self.header = None;
                }
                continue;
            }
            let (read, stop) = self.lexer.read(bytes, &mut self.columns);
            self.rest.start += read;
            match stop {
                Stop::Exhausted => {}
                Stop::Full => break,
                Stop::End => self.done = true,
            }
        }
        let batch = match self.columns.fault() {
            Some(fault) => Err(fault),
            None => self.columns.take(),
        };
        batch.map_err(|fault| self.explain(fault))
    }

    fn explain(&self, fault: Fault) -> DataFusionError {
        let object = &self.part.object;
        // Counted only when needed: the lines before a part are read by other streams.
        match lines_before(object, self.part.start) {
            Ok(before) => {
                exec_datafusion_err!("line {} of {} {}", before + fault.line + 1, name(object), fault.text)
            }
            Err(_) => exec_datafusion_err!("a line of {} {}", name(object), fault.text),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.advance().transpose();
        if matches!(batch, Some(Err(_)) | None) {
            self.done = true;
        }
        batch
    }
}

/// Counts the line breaks before an offset of a local file.
fn lines_before(object: &ObjectMeta, offset: u64) -> io::Result<u64> {
    if offset < 4 {
        // There is at most a byte order mark.
        return Ok(0);
    }
    let mut reader = File::open(FilePath::new("/").join(object.location.as_ref()))?.take(offset);
    let mut piece = vec![0; PIECE];
    let mut lines = 0;
    loop {
        let length = fill(&mut reader, &mut piece)?;
        if length == 0 {
            return Ok(lines);
        }
        lines += piece[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
}
