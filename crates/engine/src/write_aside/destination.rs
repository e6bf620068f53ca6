//! Where files are to come to lie, and what may lie there already.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::object_store::local::LocalFileSystem;

/// What a statement makes of the files that it writes.
#[derive(Debug, Clone)]
pub(crate) enum Destination {
    /// One file, which replaces what has its name.
    File(PathBuf),
    /// All files of a folder.
    Folder {
        path: PathBuf,
        /// How the names of the files end.
        extension: String,
        /// Whether files with this extension that are there already may be replaced.
        overwrites: bool,
    },
    /// Further files of a folder.
    Table(PathBuf),
}

impl Destination {
    /// The path of this machine that a URL names; `None` if it names none.
    pub fn local_path(url: &ListingTableUrl) -> Option<PathBuf> {
        (url.scheme() == "file").then(|| LocalFileSystem::new().path_to_filesystem(url.prefix()).ok()).flatten()
    }

    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Folder { path, .. } | Self::Table(path) => path,
        }
    }

    /// Where it is once symbolic links are followed.
    pub fn resolved(&self) -> PathBuf {
        fs::canonicalize(self.path()).unwrap_or_else(|_| self.path().to_path_buf())
    }

    /// The directory below which files can be written aside, so that moving them is a rename: the nearest above the
    /// destination that exists and is on the same file system.
    pub fn anchor(&self) -> PathBuf {
        let path = self.resolved();
        let above = path.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        match self {
            Self::Folder { .. } | Self::Table(_) if path.is_dir() && !same_file_system(above, &path) => path,
            _ => above.to_path_buf(),
        }
    }

    /// Refuses what must not be replaced.
    pub fn check(&self) -> Result<()> {
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
            // A file that must not be written is not replaced, either.
            Self::File(_) => match fs::OpenOptions::new().write(true).open(path) {
                Ok(_) => Ok(()),
                Err(error) => exec_err!("{self} cannot be written: {error}"),
            },
            Self::Folder { .. } | Self::Table(_) if !found.is_dir() => {
                exec_err!("{self} cannot be written: it is a file, and not a folder")
            }
            // Nor is what is in a folder that must not be written.
            Self::Folder { .. } | Self::Table(_) if let Err(error) = may_write(path) => {
                exec_err!("{self} cannot be written: {error}")
            }
            Self::Table(_) => Ok(()),
            Self::Folder { extension, overwrites, .. } => self.check_files(extension, *overwrites),
        }
    }

    /// Whether a folder has files, beside those that are hidden in it and stay.
    pub fn has_files(&self) -> io::Result<bool> {
        find_file(self.path(), 0, &|_| true).map(|found| found.is_some())
    }

    /// Refuses a folder that has files, unless they may be overwritten and are of the kind that is written.
    fn check_files(&self, extension: &str, overwrites: bool) -> Result<()> {
        let suffix = format!(".{extension}");
        let unreadable = |error: io::Error| exec_datafusion_err!("{self} cannot be written: {error}");
        let find = |wanted: &dyn Fn(&str) -> bool| find_file(self.path(), 0, wanted).map_err(unreadable);
        if overwrites {
            match find(&|name| !name.ends_with(&suffix))? {
                Some(foreign) => exec_err!(
                    "{self} is not overwritten: '{}' in it is no file that ends in {suffix}. Choose another folder, or remove \
                     the file",
                    foreign.display()
                ),
                None => Ok(()),
            }
        } else {
            match find(&|_| true)? {
                Some(file) => exec_err!(
                    "{self} is not written: there are files in it already, such as '{}'. Add OPTIONS (overwrite true) to replace \
                     them, or choose another folder",
                    file.display()
                ),
                None => Ok(()),
            }
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

/// A file in `folder`, which lies `depth` folders below the destination, or below whose name is `wanted`. What is hidden in
/// the destination itself does not count, as it stays; whatever is hidden further below is found. Symbolic links are
/// files, wherever they lead.
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

/// Refuses a folder in which this process must not make files.
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
