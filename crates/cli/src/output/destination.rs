//! Standard output or a file.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use arrow::error::ArrowError;
use tempfile::{Builder, NamedTempFile};

use crate::failure::{Failure, Outcome};

/// The place that results go to. It remembers a write's error, which the format writers turn into text.
pub struct Destination {
    target: Target,
    failure: Option<io::Error>,
}

enum Target {
    StandardOutput(BufWriter<io::Stdout>),
    /// A device or a pipe, written as it is.
    Special(BufWriter<fs::File>, PathBuf),
    /// Written beside the path and put in its place at the end, so that a query may read what it replaces and a failure
    /// leaves what was there.
    File(BufWriter<NamedTempFile>, PathBuf),
}

impl Destination {
    pub fn standard_output() -> Self {
        Self { target: Target::StandardOutput(BufWriter::with_capacity(1 << 16, io::stdout())), failure: None }
    }

    pub fn file(path: PathBuf) -> Outcome<Self> {
        let target = open(&path).map_err(|error| Failure::file("write to", &path, &error))?;
        Ok(Self { target, failure: None })
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self.target, Target::StandardOutput(_)) && io::stdout().is_terminal()
    }

    /// Flushes, and tells what the format writer's error comes from.
    pub fn settle(&mut self, written: Result<(), ArrowError>) -> Outcome<()> {
        let flushed = self.flush();
        if let Some(error) = self.failure.take() {
            return Err(match &self.target {
                Target::StandardOutput(_) if error.kind() == io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
                Target::StandardOutput(_) => Failure::message(format!("cannot write to standard output: {error}")),
                Target::Special(_, path) | Target::File(_, path) => Failure::file("write to", path, &error),
            });
        }
        written.map_err(|error| Failure::message(format!("cannot write the result: {error}")))?;
        flushed.map_err(|error| Failure::message(format!("cannot write the result: {error}")))
    }

    pub fn finish(mut self) -> Outcome<()> {
        self.settle(Ok(()))?;
        if let Target::File(writer, path) = self.target {
            let file = writer.into_inner().map_err(|error| Failure::file("write to", &path, error.error()))?;
            file.persist(&path).map_err(|error| Failure::file("write to", &path, &error.error))?;
        }
        Ok(())
    }

    fn remember<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            // Interrupted writes are tried again by the caller.
            if error.kind() != io::ErrorKind::Interrupted && self.failure.is_none() {
                self.failure =
                    Some(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error));
            }
        })
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = match &mut self.target {
            Target::StandardOutput(writer) => writer.write(bytes),
            Target::Special(writer, _) => writer.write(bytes),
            Target::File(writer, _) => writer.write(bytes),
        };
        self.remember(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = match &mut self.target {
            Target::StandardOutput(writer) => writer.flush(),
            Target::Special(writer, _) => writer.flush(),
            Target::File(writer, _) => writer.flush(),
        };
        self.remember(result)
    }
}

fn open(path: &Path) -> io::Result<Target> {
    if let Ok(metadata) = fs::metadata(path) {
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let writable = fs::OpenOptions::new().write(true).open(path)?;
        if !metadata.is_file() {
            return Ok(Target::Special(BufWriter::new(writable), path.to_path_buf()));
        }
    }
    // A link is written through, not replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let permissions = match fs::metadata(&path) {
        Ok(metadata) => metadata.permissions(),
        // The process's mask takes away what it must.
        Err(_) => fs::Permissions::from_mode(0o666),
    };
    let file = Builder::new().prefix(".overspill-").suffix(".part").permissions(permissions).tempfile_in(folder)?;
    Ok(Target::File(BufWriter::with_capacity(1 << 16, file), path))
}
