//! Splits text into statements and plans them.

mod ignored;
mod prepare;
mod splitter;
mod summarize;

pub use prepare::{Kind, Prepared, prepare};
pub use splitter::{Piece, Splitter};
