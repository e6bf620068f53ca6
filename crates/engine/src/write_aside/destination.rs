//! The destination of files, and the checks of what is already there.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::object_store::local::LocalFileSystem;

/// The kind of output that a statement writes.
#[derive(Debug, Clone)]
pub enum Destination {
    /// One file, which replaces a file of the same name.
    File(PathBuf),
    /// All files of a folder.
    Folder {
        /// The folder.
        path: PathBuf,
        /// The extension of the files.
        extension: String,
        /// Whether existing files with this extension may be replaced.
        overwrites: bool,
    },
    /// Additional files of a folder.
    Table(PathBuf),
}

impl Destination {
    /// The local path of a URL; `None` if it names none.
    pub(crate) fn local_path(url: &ListingTableUrl) -> Option<PathBuf> {
        (url.scheme() == "file").then(|| LocalFileSystem::new().path_to_filesystem(url.prefix()).ok()).flatten()
    }

    /// The file or the folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Folder { path, .. } | Self::Table(path) => path,
        }
    }

    /// The destination after symbolic links are resolved.
    pub(crate) fn resolved(&self) -> PathBuf {
        fs::canonicalize(self.path()).unwrap_or_else(|_| self.path().to_path_buf())
    }

    /// The directory for writing files aside, so that moving them is a rename: the nearest one above the destination that
    /// exists and is on the same file system.
    pub(crate) fn anchor(&self) -> PathBuf {
        let path = self.resolved();
        let above = path.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        match self {
            Self::Folder { .. } | Self::Table(_) if path.is_dir() && !same_file_system(above, &path) => path,
            _ => above.to_path_buf(),
        }
    }

    /// Refuses destinations that must not be replaced.
    pub(crate) fn check(&self) -> Result<()> {
        let path = self.path();
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return exec_err!("{self} cannot be written: {error}"),
        };
        match self {
            Self::File(_) if found.is_dir() => {
                exec_err!("{self} cannot be written: it is a folder. End the path with '/' to write files into it")
            }
            Self::File(_) if !found.is_file() => {
                exec_err!("{self} cannot be written: it is a device or a pipe, and COPY makes files")
            }
            // A read-only file is not replaced, either.
            Self::File(_) => match fs::OpenOptions::new().write(true).open(path) {
                Ok(_) => Ok(()),
                Err(error) => exec_err!("{self} cannot be written: {error}"),
            },
            Self::Folder { .. } | Self::Table(_) if !found.is_dir() => {
                exec_err!("{self} cannot be written: it is a file, and not a folder")
            }
            // Nor are files in a read-only folder.
            Self::Folder { .. } | Self::Table(_) if let Err(error) = may_write(path) => {
                exec_err!("{self} cannot be written: {error}")
            }
            Self::Table(_) => Ok(()),
            Self::Folder { extension, overwrites, .. } => self.check_files(extension, *overwrites),
        }
    }

    /// Whether a folder has files, not counting the hidden ones, which stay.
    pub(crate) fn has_files(&self) -> io::Result<bool> {
        find_file(self.path(), 0, &|_| true).map(|found| found.is_some())
    }

    /// Refuses a folder that has files, unless they may be overwritten and are of the kind that is written.
    fn check_files(&self, extension: &str, overwrites: bool) -> Result<()> {
        let suffix = format!(".{extension}");
        let unreadable = |error: io::Error| exec_datafusion_err!("{self} cannot be written: {error}");
        let is_kept = |name: &str| !(overwrites && name.ends_with(&suffix));
        match find_file(self.path(), 0, &is_kept).map_err(unreadable)? {
            Some(foreign) if overwrites => exec_err!(
                "{self} is not overwritten: '{}' in it is no file that ends in {suffix}. Choose another folder, or remove \
                 the file",
                foreign.display()
            ),
            Some(file) => exec_err!(
                "{self} is not written: there are files in it already, such as '{}'. Add OPTIONS (overwrite true) to replace \
                 them, or choose another folder",
                file.display()
            ),
            None => Ok(()),
        }
    }
}

impl Display for Destination {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "'{}'", path.display()),
            Self::Folder { path, .. } | Self::Table(path) => write!(f, "'{}/'", path.display()),
        }
    }
}

/// Finds a file in `folder` or below it that `wanted` accepts by its name. `folder` is `depth` folders below the destination.
/// Hidden entries of the destination itself do not count, as they stay; hidden entries further below are always found.
/// Symbolic links count as files, whatever they lead to.
fn find_file(folder: &Path, depth: usize, wanted: &dyn Fn(&str) -> bool) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            if depth == 0 {
                continue;
            }
            return Ok(Some(entry.path()));
        }
        let found = if entry.file_type()?.is_dir() {
            find_file(&entry.path(), depth + 1, wanted)?
        } else {
            wanted(&name).then(|| entry.path())
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Refuses a folder if this process must not create files in it.
#[cfg(target_os = "linux")]
fn may_write(folder: &Path) -> io::Result<()> {
    use rustix::fs::{Access, access};
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(not(target_os = "linux"))]
fn may_write(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn same_file_system(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.dev() == b.dev(),
        _ => false,
    }
}

#[cfg(not(unix))]
fn same_file_system(_: &Path, _: &Path) -> bool {
    true
}
