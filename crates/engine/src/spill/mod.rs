//! Spill directories, and the errors for a full disk.

mod directory;
mod disk_full;

pub(crate) use directory::LockedDirectory;
pub use directory::SpillDirectory;
pub use disk_full::explain_disk_full;
