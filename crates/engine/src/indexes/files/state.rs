//! The state of a file, by which an index knows it again.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use overspill_index::IndexedFile;
use twox_hash::XxHash64;

const NANOSECONDS: i128 = 1_000_000_000;

/// The state of a Parquet file with this number of rows.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn of_file(path: &Path, rows: u64) -> io::Result<IndexedFile> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let footer = footer(&file, metadata.len())?;
    Ok(IndexedFile {
        path: path.to_owned(),
        size: metadata.len(),
        inode: metadata.ino(),
        modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        footer,
        rows,
    })
}

fn nanoseconds(seconds: i64, rest: i64) -> i128 {
    i128::from(seconds) * NANOSECONDS + i128::from(rest)
}

/// Whether a file is in the state that an index has of it, as far as its metadata tell.
pub(super) fn is_unchanged(file: &IndexedFile, metadata: &Metadata) -> bool {
    file.size == metadata.len()
        && file.inode == metadata.ino()
        && file.modified == nanoseconds(metadata.mtime(), metadata.mtime_nsec())
        && file.changed == nanoseconds(metadata.ctime(), metadata.ctime_nsec())
}

/// Why a file is not in the state that an index has of it; `None` if it is. Reads its footer.
pub(super) fn change(file: &IndexedFile, path: &Path) -> Option<String> {
    match of_file(path, file.rows) {
        Ok(state) if (IndexedFile { path: file.path.clone(), ..state }) == *file => None,
        Ok(_) => Some(format!("{} was changed", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("{} was removed", path.display())),
        Err(error) => Some(format!("{} cannot be read: {error}", path.display())),
    }
}

/// The hash of a footer, with its length and the magic bytes. It tells files apart that were written to the same place within the
/// resolution of the clock.
fn footer(file: &File, size: u64) -> io::Result<u64> {
    let mut end = [0; 8];
    let place = size.checked_sub(8).ok_or(ErrorKind::UnexpectedEof)?;
    file.read_exact_at(&mut end, place)?;
    let length = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    let start = place.checked_sub(length).ok_or(ErrorKind::InvalidData)?;
    let mut bytes = vec![0; (size - start) as usize];
    file.read_exact_at(&mut bytes, start)?;
    Ok(XxHash64::oneshot(0, &bytes))
}
