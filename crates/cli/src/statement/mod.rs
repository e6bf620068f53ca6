//! Splits text into statements and runs them.

mod ignored;
mod run;
mod splitter;
mod summarize;

pub use run::{Answer, STATEMENTS, answer};
pub use splitter::{Piece, Splitter, is_complete, within};
