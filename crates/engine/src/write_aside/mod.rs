//! Files of `COPY` and `INSERT` that are written aside and put in place when all of them are complete.
//!
//! DataFusion 55 writes files where they will be read: when the query fails, or is cancelled, a part of its result has
//! taken the place of what was there. Here, `WriteAsideExec` runs DataFusion's sink with another object store, which
//! writes each file under a number into a hidden directory, and then moves all files to where the sink wanted them:
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
//! A file replaces another, and (with `overwrite`) a folder a full one, by one rename. Files that come into an empty folder,
//! or join others in the folder of a table, are moved one by one, and taken back if one cannot be moved.
//! The hidden directory goes with the statement. One of a process that was killed goes with the next statement
//! that writes beside it.

mod destination;
mod exec;
mod format;
mod staging;
mod store;
mod table;

pub(crate) use format::WrittenAside;
pub use table::AppendedAside;
