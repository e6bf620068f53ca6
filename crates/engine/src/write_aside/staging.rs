//! The files of one statement, from the first byte until they are in place.

use std::fs::{self, DirEntry, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err, exec_err, internal_datafusion_err};
use datafusion::error::DataFusionError;
use parking_lot::Mutex;

use super::destination::Destination;
use crate::spill::LockedDirectory;

/// A file that is written and not in place yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedFile {
    /// Where it is.
    pub written: PathBuf,
    /// Where it is to be.
    pub place: PathBuf,
}

/// Files that are written aside.
#[derive(Debug)]
pub(super) struct Staging {
    destination: Destination,
    /// The destination after symbolic links are resolved.
    place: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once the files are in place, or abandoned.
    directory: Option<LockedDirectory>,
    /// The directory's files `N.part`.
    files: Vec<StagedFile>,
    /// The error of the first write that failed.
    failure: Option<String>,
}

impl Staging {
    /// Makes a directory for the files of a statement.
    ///
    /// # Errors
    /// Fails if something at the destination must not be replaced, or if the directory cannot be made.
    pub fn open(destination: Destination) -> Result<Self> {
        destination.check()?;
        let anchor = destination.anchor();
        let directory = LockedDirectory::for_writing(&anchor).or_else(|error| {
            // Adding files to a folder needs no permissions above it.
            let place = destination.resolved();
            let is_denied = matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem);
            let is_folder = !matches!(destination, Destination::File(_)) && place.is_dir();
            if is_denied && is_folder { LockedDirectory::for_writing(&place).map_err(|_| error) } else { Err(error) }
        });
        let directory = directory.map_err(|error| {
            exec_datafusion_err!(
                "{destination} cannot be written: a directory for its unfinished files cannot be made in '{}': {error}",
                anchor.display()
            )
        })?;
        let state = State { directory: Some(directory), files: vec![], failure: None };
        Ok(Self { place: destination.resolved(), destination, state: Mutex::new(state) })
    }

    /// Opens a file for the final path `path`.
    pub fn create(&self, path: PathBuf) -> io::Result<File> {
        // Under the lock, so that no file is created after the statement was abandoned.
        let mut state = self.state.lock();
        let directory = state.directory.as_ref().ok_or_else(|| io::Error::other("the statement was given up"))?;
        if let Some(known) = state.files.iter().find(|file| file.place == path) {
            return File::create(&known.written);
        }
        let written = directory.path().join(format!("{}.part", state.files.len()));
        let file = File::create(&written)?;
        state.files.push(StagedFile { written, place: path });
        Ok(file)
    }

    /// The files so far.
    pub fn files(&self) -> Vec<StagedFile> {
        self.state.lock().files.clone()
    }

    /// Records why a write failed.
    pub fn remember(&self, error: &io::Error) {
        self.state.lock().failure.get_or_insert_with(|| match error.kind() {
            ErrorKind::StorageFull => "the disk is full".to_owned(),
            ErrorKind::QuotaExceeded => "the quota on disk space is spent".to_owned(),
            ErrorKind::FileTooLarge => "the limit on the size of files is reached".to_owned(),
            _ => error.to_string(),
        });
    }

    /// Replaces an error of the sink by the write failure that caused it.
    pub fn explain(&self, error: DataFusionError) -> DataFusionError {
        match &self.state.lock().failure {
            Some(failure) => {
                exec_datafusion_err!("{} cannot be written: {failure}. What was there is unchanged", self.destination)
            }
            None => error,
        }
    }

    /// Removes the files that are not yet in place.
    pub fn give_up(&self) {
        let directory = self.state.lock().directory.take();
        drop(directory);
    }

    /// Puts all files in place, and those that others have written, or none.
    pub fn commit(&self, others: Vec<StagedFile>) -> Result<()> {
        let mut state = self.state.lock();
        let directory = state.directory.take();
        let directory = directory.ok_or_else(|| internal_datafusion_err!("Files are put in place once"))?;
        let mut files = std::mem::take(&mut state.files);
        drop(state);
        if let Some(hidden) = others.iter().find(|file| !file.written.exists()) {
            return exec_err!(
                "{} cannot be written: '{}', which another process has written, is not there. All processes must write to the same file \
                 system. What was there is unchanged",
                self.destination,
                hidden.written.display()
            );
        }
        files.extend(others);
        let placed = match &self.destination {
            Destination::File(_) => self.place_file(&files),
            // Another statement may be moving files there now, or a folder to its place.
            Destination::Table(_) => locked_folder(&self.place).and_then(|_lock| self.place_each(&files)),
            Destination::Folder { overwrites, .. } => match locked_folder(&self.place) {
                Ok(_lock) => {
                    // The other statement may have written files in the meantime.
                    self.destination.check()?;
                    self.place_folder(&directory, &files, *overwrites)
                }
                Err(error) => Err(error),
            },
        };
        placed.map_err(|error| {
            exec_datafusion_err!("{} cannot be written: {error}. What was there is unchanged", self.destination)
        })
    }

    fn place_file(&self, files: &[StagedFile]) -> io::Result<()> {
        let [StagedFile { written, .. }] = files else {
            return Err(io::Error::other(format!("it would be {} files", files.len())));
        };
        if let Ok(replaced) = fs::metadata(&self.place) {
            fs::set_permissions(written, replaced.permissions())?;
        }
        let mut moves = Moves::default();
        moves.make(parent(&self.place))?;
        fs::rename(written, &self.place)?;
        moves.keep();
        Ok(())
    }

    /// Moves files into a folder one by one.
    fn place_each(&self, files: &[StagedFile]) -> io::Result<()> {
        let mut moves = Moves::default();
        self.move_each(files, &mut moves)?;
        moves.keep();
        Ok(())
    }

    fn move_each(&self, files: &[StagedFile], moves: &mut Moves) -> io::Result<()> {
        for file in files {
            let place = self.place.join(self.relative(&file.place)?);
            moves.make(parent(&place))?;
            moves.rename(&file.written, &place, true)?;
        }
        Ok(())
    }

    /// Makes a folder of the files, and puts it in place by a rename. A folder without files is not replaced, as it may be
    /// the working directory of a process and has an owner and permissions: the files are moved into it.
    fn place_folder(&self, directory: &LockedDirectory, files: &[StagedFile], overwrites: bool) -> io::Result<()> {
        let exists = self.place.is_dir();
        if exists && !self.destination.has_files()? {
            return self.place_each(files);
        }
        let replaces = exists && overwrites;
        if replaces {
            let entries = fs::read_dir(&self.place)?.collect::<io::Result<Vec<_>>>()?;
            let is_hidden = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with('.');
            if entries.iter().any(is_hidden) {
                return self.replace_each(directory, files, entries.iter().filter(|entry| !is_hidden(entry)));
            }
        }
        let new = directory.path().join("new");
        fs::create_dir(&new)?;
        for file in files {
            let place = new.join(self.relative(&file.place)?);
            fs::create_dir_all(parent(&place))?;
            fs::rename(&file.written, place)?;
        }
        let mut moves = Moves::default();
        moves.make(parent(&self.place))?;
        if replaces {
            fs::set_permissions(&new, fs::metadata(&self.place)?.permissions())?;
            exchange(&new, &self.place, &replaced(directory, parent(&self.place)))?;
        } else {
            // Another statement may have made the folder since: the file system refuses to replace a full one.
            fs::rename(&new, &self.place)?;
        }
        moves.keep();
        Ok(())
    }

    /// Moves the files of a folder aside and new files into their place, one by one. This is used if the folder contains
    /// something hidden, which stays. That may be the directory of the new files itself, if the folder is the root of a file
    /// system.
    fn replace_each<'e>(
        &self,
        directory: &LockedDirectory,
        files: &[StagedFile],
        entries: impl Iterator<Item = &'e DirEntry>,
    ) -> io::Result<()> {
        let mut moves = Moves::default();
        let old = replaced(directory, &self.place);
        moves.make(&old)?;
        for entry in entries {
            moves.rename(&entry.path(), &old.join(entry.file_name()), false)?;
        }
        self.move_each(files, &mut moves)?;
        moves.keep();
        remove_replaced(&old);
        Ok(())
    }

    /// The path of a file below the destination.
    fn relative<'f>(&self, file: &'f Path) -> io::Result<&'f Path> {
        file.strip_prefix(self.destination.path())
            .map_err(|_| io::Error::other(format!("'{}' is not below it", file.display())))
    }
}

/// A lock on a folder, so that each of several statements that move files into it sees all files of the previous one. None if
/// there is no such folder.
fn locked_folder(path: &Path) -> io::Result<Option<File>> {
    const LONGEST: Duration = Duration::from_secs(5);
    let start = Instant::now();
    loop {
        let folder = match File::open(path) {
            Ok(folder) => folder,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match folder.try_lock() {
            // The previous holder of the lock may have put another folder in its place.
            Ok(()) if is_at(&folder, path)? => return Ok(Some(folder)),
            Ok(()) => continue,
            // Moves take milliseconds. If the lock is held for longer, its holder is another program, perhaps the one that
            // started this one.
            Err(TryLockError::WouldBlock) if start.elapsed() < LONGEST => thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(ErrorKind::WouldBlock, "another program holds a lock on the folder"));
            }
            // The file system does not support locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(Some(folder)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Whether a folder is still the one at `path`.
#[cfg(unix)]
fn is_at(folder: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let opened = folder.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((opened.dev(), opened.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// The path in `folder` for replaced files, which are there for a moment. If the process is killed at that moment they are
/// not removed later, unlike the directory of unfinished files.
fn replaced(directory: &LockedDirectory, folder: &Path) -> PathBuf {
    let name = directory.path().file_name().unwrap_or_default().to_string_lossy();
    folder.join(name.replace("-write-", "-replaced-"))
}

/// Removes the files that new files have replaced. The new files are in place, so a failure to remove the old ones is not an
/// error of the statement.
fn remove_replaced(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!("'{}', which has been replaced, cannot be removed: {error}", folder.display());
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Changes to the file system that are undone on drop, in reverse order, unless they are kept.
#[derive(Debug, Default)]
struct Moves {
    done: Vec<Move>,
}

#[derive(Debug)]
enum Move {
    Made(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, is_new: bool },
}

impl Moves {
    /// Makes a directory and its parents.
    fn make(&mut self, path: &Path) -> io::Result<()> {
        let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Ok(()) => self.done.push(Move::Made(folder.to_path_buf())),
                // Another statement has made it in the meantime.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Renames a file to an unused name. What is new there may be lost when the change is undone, and nothing else.
    fn rename(&mut self, from: &Path, to: &Path, is_new: bool) -> io::Result<()> {
        if fs::symlink_metadata(to).is_ok() {
            return Err(io::Error::new(ErrorKind::AlreadyExists, format!("'{}' is there already", to.display())));
        }
        fs::rename(from, to)?;
        self.done.push(Move::Renamed { from: from.to_path_buf(), to: to.to_path_buf(), is_new });
        Ok(())
    }

    fn keep(mut self) {
        self.done.clear();
    }
}

impl Drop for Moves {
    fn drop(&mut self) {
        for step in self.done.drain(..).rev() {
            // A change that cannot be undone is left as it is.
            _ = match step {
                Move::Made(folder) => fs::remove_dir(folder),
                Move::Renamed { from, to, is_new } => fs::rename(&to, from).or_else(|error| match is_new {
                    // The process that has written it has gone, with its directory.
                    true if to.is_dir() => fs::remove_dir_all(to),
                    true => fs::remove_file(to),
                    false => Err(error),
                }),
            };
        }
    }
}

/// Replaces the folder `old` by `new` and removes the old one, which may be at `aside` in between.
fn exchange(new: &Path, old: &Path, aside: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
            // The file system does not support an exchange.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
            // The previous content is removed with the directory of unfinished files.
            Ok(()) => return Ok(()),
        }
    }
    let mut moves = Moves::default();
    moves.rename(old, aside, false)?;
    moves.rename(new, old, true)?;
    moves.keep();
    remove_replaced(aside);
    Ok(())
}
