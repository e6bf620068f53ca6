//! Ways through the orders of a region: all of them, some of them, one by random.

mod enumerate;
mod greedy;
mod linear;
mod optimum;
mod random;

pub use enumerate::enumerate;
pub use greedy::greedy;
pub use linear::add_intervals;
pub use optimum::{Objective, optimum};
pub use random::{RandomNumbers, merged, sampled};
