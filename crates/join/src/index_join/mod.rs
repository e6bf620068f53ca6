//! Joins that look up the rows of one side in an index over the other (paper 3).

mod window;

pub use window::Window;
