//! Where spill files live, and what to say when they do not fit.

mod directory;
mod disk_full;

pub(crate) use directory::LockedDirectory;
pub use directory::SpillDirectory;
pub use disk_full::explain_disk_full;
