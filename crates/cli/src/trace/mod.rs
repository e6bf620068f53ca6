//! `--trace`: shows the spans of the crate `tracing` from all layers of the program as lanes of a timeline.
//!
//! `overspill_machine::timeline` documents the fields of spans.

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

/// The timeline of this process.
pub struct Trace {
    path: PathBuf,
    file: Arc<TraceFile>,
}

impl Trace {
    /// Records all spans of the process from now on.
    pub fn open(path: &Path) -> Outcome<Self> {
        let file = TraceFile::create(path).map_err(|error| Failure::file("write to", path, &error))?;
        let file = Arc::new(file);
        let subscriber = tracing_subscriber::registry().with(TraceLayer::new(Arc::clone(&file)));
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| Failure::message("--trace: this process is traced already"))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Completes the file. Later spans are not written.
    pub fn finish(self) -> Outcome<()> {
        self.file.finish().map_err(|error| Failure::file("write to", &self.path, &error))
    }
}
