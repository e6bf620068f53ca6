//! The files that a path names, all of one format.

use std::path::Path;

use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::datasource::listing::ListingTableUrl;
use tokio::task::spawn_blocking;

use super::format::{KNOWN_NAMES, NamedFormat};
use super::listing::{self, Found};

/// The files that a path names.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The path as the user wrote it, and with the home directory expanded.
    pub name: String,
    pub path: String,
    /// The common format given by the names of all files, or `None` if the table declares its format.
    pub named: Option<NamedFormat>,
}

impl Selection {
    /// Lists the files.
    ///
    /// # Errors
    ///
    /// Refuses files whose names give several formats, and files that are not readable.
    pub async fn files(&self) -> Result<Vec<Found>> {
        let found = find(self.path.clone()).await?;
        let Some(named) = &self.named else { return Ok(found) };
        let (format, files) = one_format(&self.name, found, Path::new(&self.path).is_dir())?;
        if format != *named {
            return plan_err!("the files of '{}' have another format than before", self.name);
        }
        Ok(files)
    }
}

/// Lists the files of a path on a thread that may block on the disk.
pub async fn find(path: String) -> Result<Vec<Found>> {
    let found = spawn_blocking(move || listing::files(&path)).await;
    found.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?.map_err(DataFusionError::Plan)
}

/// The common format of the files. Other files in a folder are skipped.
///
/// # Errors
///
/// Refuses files of several formats, and files that match a pattern but have no known format.
pub fn one_format(name: &str, files: Vec<Found>, is_folder: bool) -> Result<(NamedFormat, Vec<Found>)> {
    if files.is_empty() {
        return match is_folder {
            true => {
                plan_err!("no file lies in the folder '{name}' (for those in folders below it: '{name}/**/*.parquet')")
            }
            false => plan_err!("no file matches '{name}'"),
        };
    }
    let mut known: Option<(NamedFormat, std::path::PathBuf)> = None;
    let mut read = Vec::new();
    for file in files {
        let Some(format) = file.object.location.filename().and_then(NamedFormat::of) else {
            if is_folder {
                continue;
            }
            return plan_err!("'{}' is not a table: a file is read by its name, {KNOWN_NAMES}", file.path.display());
        };
        let (first, path) = known.get_or_insert_with(|| (format.clone(), file.path.clone()));
        if *first != format {
            return plan_err!(
                "'{name}' names files of several formats, {} and {}: name those of one, as in '*{}'",
                path.display(),
                file.path.display(),
                first.suffix
            );
        }
        read.push(file);
    }
    match known {
        Some((format, _)) => Ok((format, read)),
        None => plan_err!("'{name}' is not a table: a file is read by its name, {KNOWN_NAMES}"),
    }
}

/// The store of this machine's files.
pub fn local_files() -> Result<ListingTableUrl> {
    ListingTableUrl::parse("file:///")
}
