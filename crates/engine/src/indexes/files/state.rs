//! The state of a file, by which an index knows it again.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use overspill_index::IndexedFile;
use twox_hash::XxHash64;

const NANOSECONDS: i128 = 1_000_000_000;

/// The state of a file with this number of rows.
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

/// What Arrow files end with. Others are Parquet files, with four bytes.
const ARROW: &[u8; 6] = b"ARROW1";

/// The hash of a footer, with its length and the magic bytes. It tells files apart that were written to the same place within the
/// resolution of the clock.
fn footer(file: &File, size: u64) -> io::Result<u64> {
    let mut end = [0; 10];
    let place = size.checked_sub(end.len() as u64).ok_or(ErrorKind::UnexpectedEof)?;
    file.read_exact_at(&mut end, place)?;
    let (length, place) = match end {
        [length @ .., _, _, _, _, _, _] if end.ends_with(ARROW) => (length, place),
        [_, _, length @ .., _, _, _, _] => (length, place + 2),
    };
    let start = place.checked_sub(u32::from_le_bytes(length).into()).ok_or(ErrorKind::InvalidData)?;
    let mut bytes = vec![0; (size - start) as usize];
    file.read_exact_at(&mut bytes, start)?;
    Ok(XxHash64::oneshot(0, &bytes))
}
