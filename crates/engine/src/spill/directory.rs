//! Directories that are removed after their process ends, however it ends: one for spill files, and those for files that are
//! written before they are put in place.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use datafusion::common::{Result, exec_datafusion_err};
use datafusion::error::DataFusionError;

/// Spill directories of running processes are called `overspill-PID-RANDOM`.
const PREFIX: &str = "overspill-";

/// Directories of unfinished files are called `.overspill-write-PID-RANDOM`.
const WRITE_PREFIX: &str = ".overspill-write-";

/// Directories are made under this name and renamed once they hold a locked lock file.
const UNFINISHED_PREFIX: &str = ".overspill-";

/// Hexadecimal digits of RANDOM.
const RANDOM_DIGITS: usize = 16;

/// The file that marks a directory as ours. Its process holds an advisory lock on it.
const LOCK_FILE: &str = ".overspill.lock";

/// The first bytes of a lock file.
const MARKER: &[u8] = b"Overspill spill directory\n";

/// No process takes this long to make its directory: an unfinished directory of that age was left by a process that died.
const UNFINISHED_AGE: Duration = Duration::from_secs(600);

/// A directory for the spill files of this process, removed on drop.
///
/// It holds a lock file with an advisory lock of the process. If the process is killed, its lock is released, and the next
/// process that opens the same root takes the lock and removes the directory. The locks of live processes cannot be taken, so
/// their directories are never touched; neither is anything without our name and our lock file.
#[derive(Debug)]
pub struct SpillDirectory(LockedDirectory);

impl SpillDirectory {
    /// Makes a directory for this process in `root`, and removes the directories that dead processes left there. Creates
    /// `root` if its parent exists.
    ///
    /// # Errors
    /// When `root` is not a directory, cannot be created, or cannot be written to.
    pub fn open(root: &Path) -> Result<Self> {
        ensure_root(root)?;
        let directory = LockedDirectory::create(root, PREFIX)
            .map_err(|error| unusable_root(root, "cannot be written to", &error))?;
        sweep(root, &directory.path, PREFIX);
        Ok(Self(directory))
    }

    /// The path of the directory, for [`DiskManagerMode::Directories`].
    ///
    /// [`DiskManagerMode::Directories`]: datafusion::execution::disk_manager::DiskManagerMode::Directories
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

/// A directory with a lock file on which the process holds an advisory lock. It is removed on drop, or by the next process
/// that opens a directory of its kind in the same place.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    path: PathBuf,
    /// Holds the lock until everything has been removed.
    _lock: File,
}

impl LockedDirectory {
    /// Makes a hidden directory in `root` for unfinished files, and removes those that dead processes left there.
    pub fn for_writing(root: &Path) -> io::Result<Self> {
        let directory = Self::create(root, WRITE_PREFIX)?;
        sweep(root, &directory.path, WRITE_PREFIX);
        Ok(directory)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn create(root: &Path, prefix: &str) -> io::Result<Self> {
        // Absolute, so that a later change of the working directory does not matter.
        let root = fs::canonicalize(root)?;
        loop {
            let name = format!("{}-{:0width$x}", std::process::id(), random(), width = RANDOM_DIGITS);
            let unfinished = root.join(format!("{UNFINISHED_PREFIX}{name}"));
            match private_directory(&unfinished) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // The lock is taken before the directory gets a name that other processes look for: none of them ever sees it
            // without its lock.
            let path = root.join(format!("{prefix}{name}"));
            let locked = locked_file(&unfinished.join(LOCK_FILE)).and_then(|lock| {
                fs::rename(&unfinished, &path)?;
                Ok(lock)
            });
            return match locked {
                Ok(lock) => Ok(Self { path, _lock: lock }),
                Err(error) => {
                    _ = remove(&unfinished);
                    Err(error)
                }
            };
        }
    }
}

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        // What cannot be removed now is left for the next process that opens the root.
        _ = remove(&self.path);
    }
}

fn ensure_root(root: &Path) -> Result<()> {
    match fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(exec_datafusion_err!(
            "The temporary directory '{}' is a file. Choose a directory with --temp-dir.",
            root.display()
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::create_dir(root) {
            // Another process may have made it in the meantime.
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty());
                match parent {
                    Some(parent) if error.kind() == ErrorKind::NotFound => Err(exec_datafusion_err!(
                        "The temporary directory '{}' cannot be created because '{}' does not exist. Choose another \
                         with --temp-dir.",
                        root.display(),
                        parent.display()
                    )),
                    _ => Err(unusable_root(root, "does not exist and cannot be created", &error)),
                }
            }
            _ => Ok(()),
        },
        Err(error) => Err(unusable_root(root, "cannot be used", &error)),
    }
}

fn unusable_root(root: &Path, what: &str, error: &io::Error) -> DataFusionError {
    exec_datafusion_err!(
        "The temporary directory '{}' {what}: {error}. Choose another with --temp-dir.",
        root.display()
    )
}

/// Other users must not read spilled rows.
fn private_directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn locked_file(path: &Path) -> io::Result<File> {
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.write_all(MARKER)?;
    writeln!(file, "{}", std::process::id())?;
    // If a file system does not support locks, no other process can take this one either, so no process removes the
    // directory.
    _ = file.try_lock();
    Ok(file)
}

/// A number that differs between processes and calls.
fn random() -> u64 {
    RandomState::new().hash_one(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok())
}

/// Removes what dead processes left in `root` under names with this prefix. Failures are left for another process to try.
fn sweep(root: &Path, own: &Path, prefix: &str) {
    let (Ok(entries), Ok(own)) = (fs::read_dir(root), fs::symlink_metadata(own)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let path = entry.path();
        // Not through a symbolic link, and not another user's directory: a process with root privileges could otherwise be
        // made to remove files elsewhere.
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() && same_owner(&metadata, &own) => {
                if name.strip_prefix(prefix).is_some_and(is_pid_and_random) {
                    _ = remove_abandoned(&path);
                } else if name.strip_prefix(UNFINISHED_PREFIX).is_some_and(is_pid_and_random) && is_old(&metadata) {
                    // A process died between making the directory and locking it.
                    _ = remove_abandoned(&path);
                    _ = fs::remove_dir(&path);
                }
            }
            _ => {}
        }
    }
}

#[cfg(unix)]
fn same_owner(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    a.uid() == b.uid()
}

#[cfg(not(unix))]
fn same_owner(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

fn is_old(metadata: &fs::Metadata) -> bool {
    metadata.modified().ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > UNFINISHED_AGE)
}

fn is_pid_and_random(name: &str) -> bool {
    name.split_once('-').is_some_and(|(pid, random)| {
        pid.parse::<u32>().is_ok()
            && random.len() == RANDOM_DIGITS
            && random.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Removes a directory if it holds our lock file and the lock can be taken.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    use io::Read;
    let lock_path = path.join(LOCK_FILE);
    if !fs::symlink_metadata(&lock_path)?.is_file() {
        return Ok(());
    }
    let mut lock = File::options().read(true).write(true).open(&lock_path)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut marker = [0; MARKER.len()];
    lock.read_exact(&mut marker)?;
    if marker != MARKER {
        return Ok(());
    }
    remove(path)
}

/// Removes one of our directories. The lock file goes last, so that an interrupted removal can be continued.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == LOCK_FILE {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    match fs::remove_file(path.join(LOCK_FILE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir(path),
    }
}

#[cfg(test)]
mod tests;
