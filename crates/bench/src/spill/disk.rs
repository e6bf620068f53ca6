//! The speed of the disk for spilled data.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Bytes written and read at a time.
const BLOCK: usize = 1 << 20;

/// The speed of a disk for a file that is written, forced to the disk, and read again.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskRate {
    pub(super) bytes: u64,
    /// Writing, with the fsync that ends it.
    pub(super) write: Duration,
    /// Reading right after writing, as a join does. What fits is read from the operating system's cache.
    pub(super) read: Duration,
}

impl DiskRate {
    /// Writes and reads an unnamed file of `bytes` bytes in `directory`.
    pub(super) fn measure(directory: &Path, bytes: u64) -> Result<Self> {
        let failed = |error: std::io::Error| {
            exec_datafusion_err!("The disk below '{}' could not be measured: {error}", directory.display())
        };
        let mut file: File = tempfile::tempfile_in(directory).map_err(failed)?;
        // All blocks differ, so that no file system can deduplicate them.
        let mut block = vec![0; BLOCK];
        let mut random = ChaCha8Rng::seed_from_u64(1);
        random.fill_bytes(&mut block);
        let start = Instant::now();
        let mut left = bytes;
        while left > 0 {
            block[..8].copy_from_slice(&left.to_le_bytes());
            let length = BLOCK.min(usize::try_from(left).unwrap_or(BLOCK));
            file.write_all(&block[..length]).map_err(failed)?;
            left -= length as u64;
        }
        file.sync_all().map_err(failed)?;
        let write = start.elapsed();
        let start = Instant::now();
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        while file.read(&mut block).map_err(failed)? > 0 {}
        Ok(Self { bytes, write, read: start.elapsed() })
    }

    /// Bytes per second that can be written and read again.
    pub(super) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / (self.write + self.read).as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let rate = DiskRate::measure(directory.path(), 3 * BLOCK as u64 + 5).unwrap();
        assert_eq!(rate.bytes, 3 * BLOCK as u64 + 5);
        assert!(rate.write > Duration::ZERO && rate.bytes_per_second() > 0.0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let message = DiskRate::measure(&directory.path().join("missing"), 1).unwrap_err().to_string();
        assert!(message.contains("could not be measured"), "{message}");
    }
}
