//! Sessions of Overspill: a [`Session`] has limits and settings, runs statements of SQL over files and tables, and returns
//! [`Results`]: a stream of batches, with its progress and metrics. This crate writes to no terminal and reads no arguments;
//! the command line, and whatever else offers Overspill to users, is built on it.
//!
//! The SQL is DataFusion's, with the corrections and the joins of [`overspill`], with paths of files as tables (`FROM
//! 'orders/*.parquet'`), and with `SUMMARIZE`.
//!
//! ```
//! use futures::TryStreamExt;
//! use overspill::OverspillRuntime;
//! use overspill_session::{Limits, Session};
//!
//! # #[tokio::main]
//! # async fn main() -> overspill_session::Result<()> {
//! let limits = Limits { memory: 256 << 20, ..Limits::of_this_machine() };
//! let settings = [("overspill.join_memory_limit".to_string(), "64MB".to_string())];
//! let session = Session::open(&limits, &settings, OverspillRuntime::default())?;
//!
//! let sql = "SELECT count(*) FROM range(1000) a JOIN range(10) b ON a.value = b.value";
//! let mut results = session.run(sql).await?;
//! let monitor = results.monitor();
//! while let Some(batch) = results.try_next().await? {
//!     assert_eq!(batch.num_rows(), 1);
//! }
//! assert_eq!(monitor.progress().joins[0].output_rows, 10);
//! drop(results);
//!
//! // Errors are sentences, with the place in the statement and the name that was probably meant.
//! let error = session.run("SELECT cout(*) FROM range(3)").await.err().unwrap();
//! assert_eq!(error.to_string(), "There is no function 'cout'. Did you mean 'count'?");
//! assert_eq!(error.suggestion(), Some("count"));
//! assert_eq!(error.place().map(|place| (place.line, place.column)), Some((1, 8)));
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

mod budget;
mod error;
mod files;
mod limits;
mod owner;
mod progress;
mod results;
mod session;
mod settings;
mod statement;
mod workers;

pub use error::{Error, Place, Result, io_reason};
pub use files::{KNOWN_NAMES, NamedFormat, distinct_names};
pub use limits::Limits;
pub use progress::{JoinProgress, Monitor, Progress};
pub use results::Results;
pub use session::Session;
pub use statement::{Kind, Piece, Splitter};
pub use workers::Left;

pub use datafusion::sql::sqlparser::tokenizer::Location;

/// The lane of statements in timelines.
pub const STATEMENTS: &str = "statements";
