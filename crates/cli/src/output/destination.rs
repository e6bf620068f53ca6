//! Standard output or a file.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::error::ArrowError;
use overspill_session::NamedFormat;
use parking_lot::Mutex;
use tempfile::{Builder, NamedTempFile};

use crate::failure::{Failure, Outcome};

/// The destination of results. It keeps the error of a write, which the format writers convert to text.
pub struct Destination {
    target: Target,
    /// `None` once everything is written.
    writer: Option<Box<dyn Write + Send>>,
    failure: Arc<Mutex<Option<io::Error>>>,
}

enum Target {
    StandardOutput,
    /// A device or a pipe, written directly.
    Special(PathBuf),
    /// A temporary file beside the path that replaces it at the end. A query may therefore read the file that it replaces,
    /// and a failure leaves that file unchanged.
    File(NamedTempFile, PathBuf),
}

impl Destination {
    pub fn standard_output() -> Self {
        let failure = Arc::default();
        let writer = buffered(io::stdout(), &failure);
        Self { target: Target::StandardOutput, writer: Some(Box::new(writer)), failure }
    }

    /// Opens a file, compressed according to its name.
    pub fn file(path: PathBuf) -> Outcome<Self> {
        let compression = path.to_str().map_or("", NamedFormat::compression_of);
        let failed = |error: &io::Error| Failure::file("write to", &path, error);
        let failure = Arc::default();
        let (target, file) = open(&path).map_err(|error| failed(&error))?;
        let writer = compressed(buffered(file, &failure), compression).map_err(|error| failed(&error))?;
        Ok(Self { target, writer: Some(writer), failure })
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self.target, Target::StandardOutput) && io::stdout().is_terminal()
    }

    /// Flushes, and returns the I/O error behind the format writer's error.
    pub fn settle(&mut self, written: Result<(), ArrowError>) -> Outcome<()> {
        let flushed = self.flush();
        self.told_failure()?;
        written.map_err(|error| Failure::message(format!("cannot write the result: {error}")))?;
        flushed.map_err(|error| Failure::message(format!("cannot write the result: {error}")))
    }

    pub fn finish(mut self) -> Outcome<()> {
        self.settle(Ok(()))?;
        // Dropping the writer writes the end of a compressed file.
        drop(self.writer.take());
        self.told_failure()?;
        if let Target::File(file, path) = self.target {
            file.persist(&path).map_err(|error| Failure::file("write to", &path, &error.error))?;
        }
        Ok(())
    }

    fn told_failure(&self) -> Outcome<()> {
        let Some(error) = self.failure.lock().take() else { return Ok(()) };
        Err(match &self.target {
            Target::StandardOutput if error.kind() == io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            Target::StandardOutput => Failure::message(format!("cannot write to standard output: {error}")),
            Target::Special(path) | Target::File(_, path) => Failure::file("write to", path, &error),
        })
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.as_mut().map_or(Ok(0), |writer| writer.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.flush())
    }
}

/// A writer that keeps its first error.
struct Watched<W> {
    writer: W,
    failure: Arc<Mutex<Option<io::Error>>>,
}

impl<W> Watched<W> {
    fn remember<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            // The caller retries interrupted writes.
            if error.kind() != io::ErrorKind::Interrupted {
                self.failure.lock().get_or_insert_with(|| {
                    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
                });
            }
        })
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes);
        self.remember(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.writer.flush();
        self.remember(flushed)
    }
}

fn buffered<W: Write>(writer: W, failure: &Arc<Mutex<Option<io::Error>>>) -> BufWriter<Watched<W>> {
    BufWriter::with_capacity(1 << 16, Watched { writer, failure: Arc::clone(failure) })
}

/// A compressing writer that ends the compressed stream when it is dropped.
fn compressed(writer: impl Write + Send + 'static, compression: &str) -> io::Result<Box<dyn Write + Send>> {
    Ok(match compression {
        "gzip" => Box::new(flate2::write::GzEncoder::new(writer, flate2::Compression::default())),
        "bzip2" => Box::new(bzip2::write::BzEncoder::new(writer, bzip2::Compression::default())),
        "xz" => Box::new(liblzma::write::XzEncoder::new(writer, 6)),
        "zstd" => Box::new(zstd::stream::write::Encoder::new(writer, zstd::DEFAULT_COMPRESSION_LEVEL)?.auto_finish()),
        _ => Box::new(writer),
    })
}

fn open(path: &Path) -> io::Result<(Target, fs::File)> {
    if let Ok(metadata) = fs::metadata(path) {
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let writable = fs::OpenOptions::new().write(true).open(path)?;
        if !metadata.is_file() {
            return Ok((Target::Special(path.to_path_buf()), writable));
        }
    }
    // Write through a link instead of replacing it.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let permissions = match fs::metadata(&path) {
        Ok(metadata) => metadata.permissions(),
        // The process's mask removes permissions from this.
        Err(_) => fs::Permissions::from_mode(0o666),
    };
    let file = Builder::new().prefix(".overspill-").suffix(".part").permissions(permissions).tempfile_in(folder)?;
    let writable = file.as_file().try_clone()?;
    Ok((Target::File(file, path), writable))
}
