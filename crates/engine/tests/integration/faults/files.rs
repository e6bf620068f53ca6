//! Spill files with one operation that fails.

use std::io::{self, ErrorKind, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, StreamExt};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th file cannot be created.
    Create,
    /// The n-th write fails, once.
    Write,
    /// The n-th write and all after it find the disk full.
    DiskFull,
    /// The n-th file cannot be completed.
    Finish,
    /// The n-th file cannot be opened to be read.
    Open,
    /// The n-th chunk that is read fails, once.
    Read,
}

/// Makes files through a real disk manager and fails one operation on them.
pub struct FaultyFiles {
    disk: Arc<DiskManager>,
    trigger: Arc<Trigger>,
}

struct Trigger {
    fault: Fault,
    at: usize,
    seen: AtomicUsize,
}

impl Trigger {
    /// Counts an operation that `fault` may hit, and says whether it hits this one.
    fn hits(&self, fault: Fault) -> bool {
        if self.fault != fault {
            return false;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        seen == self.at || (fault == Fault::DiskFull && seen > self.at)
    }
}

impl FaultyFiles {
    pub fn new(disk: Arc<DiskManager>, fault: Fault, at: usize) -> Self {
        Self { disk, trigger: Arc::new(Trigger { fault, at, seen: AtomicUsize::new(0) }) }
    }

    /// Whether the operation that fails was reached.
    pub fn fired(&self) -> bool {
        self.trigger.seen.load(Ordering::Relaxed) >= self.trigger.at
    }
}

fn failure(fault: Fault) -> io::Error {
    let kind = if fault == Fault::DiskFull { ErrorKind::StorageFull } else { ErrorKind::Other };
    io::Error::new(kind, format!("the {fault:?} operation fails, for the test"))
}

impl TempFileFactory for FaultyFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        if self.trigger.hits(Fault::Create) {
            return Err(DataFusionError::IoError(failure(Fault::Create)));
        }
        let file = self.disk.create_tmp_file(description)?;
        Ok(Arc::new(FaultyFile { file, trigger: Arc::clone(&self.trigger) }))
    }
}

struct FaultyFile {
    file: Arc<dyn SpillFile>,
    trigger: Arc<Trigger>,
}

impl SpillFile for FaultyFile {
    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        if self.trigger.hits(Fault::Open) {
            return Err(DataFusionError::IoError(failure(Fault::Open)));
        }
        let trigger = Arc::clone(&self.trigger);
        let chunks = self.file.read_stream()?.map(move |chunk| match trigger.hits(Fault::Read) {
            true => Err(DataFusionError::IoError(failure(Fault::Read))),
            false => chunk,
        });
        Ok(Box::pin(chunks))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(FaultyWriter { writer: self.file.open_writer()?, trigger: Arc::clone(&self.trigger) }))
    }
}

struct FaultyWriter {
    writer: Box<dyn SpillWriter>,
    trigger: Arc<Trigger>,
}

impl Write for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for fault in [Fault::Write, Fault::DiskFull] {
            if self.trigger.hits(fault) {
                return Err(failure(fault));
            }
        }
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl SpillWriter for FaultyWriter {
    fn finish(&mut self) -> Result<()> {
        if self.trigger.hits(Fault::Finish) {
            return Err(DataFusionError::IoError(failure(Fault::Finish)));
        }
        self.writer.finish()
    }
}
