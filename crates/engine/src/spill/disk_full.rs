//! Turns a spill write that fails for lack of disk space into an error that says how to fix it.

use std::error::Error;
use std::io::{self, ErrorKind};

use datafusion::common::resources_datafusion_err;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::DiskManager;

use crate::size::Size;

/// The text of DataFusion's disk manager when its spill files reach their limit. The error has no kind of its own.
const LIMIT_MESSAGE: &str = "exceeded the allowable limit";

/// The maximum depth of a chain of causes that is followed.
const MAX_DEPTH: usize = 32;

/// Why a write failed for lack of space.
#[derive(Clone, Copy, PartialEq)]
enum Shortage {
    /// The disk, or the user's quota on it, is full.
    Disk,
    /// The spill files reached `datafusion.runtime.max_temp_directory_size`.
    Limit,
}

/// Explains an error that a full disk or the limit on spill files caused: the result names the directory, the limit
/// and the settings that change both. Any other error is returned as it is.
///
/// Pass it the errors of any query: DataFusion's own operators report neither the directory nor the setting of the
/// command line.
pub fn explain_disk_full(error: DataFusionError, disk: &DiskManager) -> DataFusionError {
    let Some(shortage) = shortage(&error, 0) else { return error };
    let directories: Vec<String> =
        disk.temp_dir_paths().iter().map(|directory| format!("'{}'", directory.display())).collect();
    let directory = if directories.is_empty() { "the temporary directory".to_owned() } else { directories.join(", ") };
    let limit = Size(usize::try_from(disk.max_temp_directory_size()).unwrap_or(usize::MAX));
    let used = Size(usize::try_from(disk.used_disk_space()).unwrap_or(usize::MAX));
    match shortage {
        Shortage::Limit => resources_datafusion_err!(
            "Not enough temporary disk space: the spill files in {directory} reached their limit of {limit}. Raise it \
             with --temp-limit on the command line or with SET datafusion.runtime.max_temp_directory_size in SQL, or \
             raise the memory limit so that less is spilled."
        ),
        Shortage::Disk => resources_datafusion_err!(
            "The disk is full: the spill files in {directory} could not grow beyond {used}, though their limit is \
             {limit}. Choose a directory on a larger disk with --temp-dir on the command line, or raise the memory \
             limit so that less is spilled."
        ),
    }
}

/// Looks for a lack of disk space among the causes of an error.
fn shortage(error: &(dyn Error + 'static), depth: usize) -> Option<Shortage> {
    if depth == MAX_DEPTH {
        return None;
    }
    let inner = match error.downcast_ref::<io::Error>() {
        Some(error) => {
            if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge) {
                return Some(Shortage::Disk);
            }
            // `source` of an IO error skips the error that it wraps.
            error.get_ref().map(|inner| inner as &(dyn Error + 'static))
        }
        None => error.source(),
    };
    match inner {
        Some(inner) => shortage(inner, depth + 1),
        // Some wrappers keep only the text of their cause, so the last error of the chain is classified by its text.
        None => error.to_string().contains(LIMIT_MESSAGE).then_some(Shortage::Limit),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use arrow::error::ArrowError;
    use datafusion::common::exec_datafusion_err;
    use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};

    use super::*;

    fn disk(root: &std::path::Path, limit: u64) -> Arc<DiskManager> {
        let builder = DiskManagerBuilder::default()
            .with_mode(DiskManagerMode::Directories(vec![root.to_path_buf()]))
            .with_max_temp_directory_size(limit);
        Arc::new(builder.build().unwrap())
    }

    #[test]
    fn the_limit_of_the_disk_manager_is_explained() {
        let root = tempfile::tempdir().unwrap();
        let disk = disk(root.path(), 4096);
        let file = disk.create_tmp_file("a test").unwrap();
        let error = file.open_writer().unwrap().write_all(&[0; 8192]).unwrap_err();
        for error in [
            DataFusionError::ArrowError(Box::new(ArrowError::IoError(error.to_string(), error)), None),
            exec_datafusion_err!("The used disk space has exceeded the allowable limit of 4 KB"),
        ] {
            let message = explain_disk_full(error.context("while spilling"), &disk).to_string();
            for part in [&*root.path().to_string_lossy(), "4KiB", "--temp-limit", "max_temp_directory_size"] {
                assert!(message.contains(part), "{part} is not in: {message}");
            }
        }
    }

    #[test]
    fn a_full_disk_is_explained_through_every_wrapper() {
        let root = tempfile::tempdir().unwrap();
        let disk = disk(root.path(), 1 << 30);
        let full = || io::Error::from(ErrorKind::StorageFull);
        for error in [
            DataFusionError::IoError(full()),
            DataFusionError::from(ArrowError::from(full())),
            DataFusionError::IoError(io::Error::from(DataFusionError::IoError(full()))),
            DataFusionError::External(Box::new(full())),
            DataFusionError::Shared(Arc::new(DataFusionError::IoError(full()))).context("outer"),
        ] {
            let message = explain_disk_full(error, &disk).to_string();
            for part in [&*root.path().to_string_lossy(), "The disk is full", "--temp-dir"] {
                assert!(message.contains(part), "{part} is not in: {message}");
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_error_of_a_full_device_is_recognised() {
        let root = tempfile::tempdir().unwrap();
        let error = std::fs::File::options().write(true).open("/dev/full").unwrap().write_all(b"x").unwrap_err();
        let message = explain_disk_full(DataFusionError::IoError(error), &disk(root.path(), 1)).to_string();
        assert!(message.contains("The disk is full"), "{message}");
    }

    #[test]
    fn other_errors_stay_as_they_are() {
        let root = tempfile::tempdir().unwrap();
        let disk = disk(root.path(), 1);
        for error in [
            exec_datafusion_err!("division by zero"),
            DataFusionError::IoError(io::Error::from(ErrorKind::PermissionDenied)),
        ] {
            let before = error.to_string();
            assert_eq!(explain_disk_full(error, &disk).to_string(), before);
        }
    }
}
