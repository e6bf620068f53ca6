//! Reads of bytes that the system has in memory.

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use super::buffers::Buffers;

/// The bytes of each range, if the system has all of them in memory; `None` otherwise, and for a file or a range that is not there. Does not wait for a disk.
#[cfg(target_os = "linux")]
pub(super) fn read(path: &Path, ranges: &[Range<u64>], buffers: &std::sync::Arc<Buffers>) -> Option<Vec<Bytes>> {
    use std::io::IoSliceMut;

    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    let file = openat2(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED).ok()?;
    let mut read = Vec::with_capacity(ranges.len());
    for range in ranges {
        let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        let mut buffer = buffers.take(length);
        let mut filled = 0;
        while filled < length {
            let rest = &mut [IoSliceMut::new(&mut buffer[filled..])];
            match preadv2(&file, rest, range.start + filled as u64, ReadWriteFlags::NOWAIT) {
                // The range ends behind the file, or the bytes are not in memory.
                Ok(0) | Err(Errno::AGAIN) => return None,
                Ok(more) => filled += more,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        read.push(Bytes::from_owner(buffer));
    }
    Some(read)
}

/// Other systems do not tell whether they have bytes in memory.
#[cfg(not(target_os = "linux"))]
pub(super) fn read(_: &Path, _: &[Range<u64>], _: &std::sync::Arc<Buffers>) -> Option<Vec<Bytes>> {
    None
}
