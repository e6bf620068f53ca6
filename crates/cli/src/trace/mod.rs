//! `--trace`: what every floor says it does, by spans of the crate `tracing`, as lanes of a timeline.
//!
//! `overspill_machine::timeline` tells which fields spans have.

mod fields;
mod file;
mod layer;
mod thread;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing_subscriber::layer::SubscriberExt;

use crate::failure::{Failure, Outcome};
use file::TraceFile;
use layer::TraceLayer;

/// The timeline of this process, which is being written.
pub struct Trace {
    path: PathBuf,
    file: Arc<TraceFile>,
}

impl Trace {
    /// Listens to all spans of the process from now on.
    pub fn open(path: &Path) -> Outcome<Self> {
        let file = TraceFile::create(path).map_err(|error| Failure::file("write to", path, &error))?;
        let file = Arc::new(file);
        let subscriber = tracing_subscriber::registry().with(TraceLayer::new(Arc::clone(&file)));
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| Failure::message("--trace: this process is traced already"))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Completes the file. What is said from now on is not written.
    pub fn finish(self) -> Outcome<()> {
        self.file.finish().map_err(|error| Failure::file("write to", &self.path, &error))
    }
}
