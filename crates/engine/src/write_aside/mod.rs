//! Files of `COPY` and `INSERT` that are written aside and put in place when all of them are complete.
//!
//! DataFusion 55 writes files directly to the place where they will be read: when the query fails, or is cancelled, a part of
//! its result has replaced the previous files. Here, `WriteAsideExec` runs DataFusion's sink with another object store, which
//! writes each file under a number into a hidden directory, and then moves all files to the paths that the sink gave:
//!
//! ```text
//!   COPY … TO 'out/'                                    out/.. has meanwhile
//!
//!   WriteAsideExec: out/            moves files          .overspill-write-PID-RANDOM/
//!     DataSinkExec: TextSink        writes files           .overspill.lock
//!       …                                                  0.part
//!                                                          1.part
//! ```
//!
//! A file replaces another file, and (with `overwrite`) a folder replaces a full one, by one rename. Files for an empty
//! folder, or additional files for the folder of a table, are moved one by one, and moved back if one of the moves fails. The
//! hidden directory is removed with the statement. The hidden directory of a killed process is removed by the next statement
//! that writes next to it.

mod destination;
mod exec;
mod format;
mod staged;
mod staging;
mod store;
mod table;

pub use destination::Destination;
pub use exec::WriteAsideExec;
pub(crate) use format::WrittenAside;
pub use staged::Staged;
pub use staging::StagedFile;
pub use table::appended_aside;
