//! Arithmetic of integers and decimals in words of 64 bits.
//!
//! Types allow for more: a product of two decimals of 15 digits has 30, and Arrow computes with 128 bits. Most values are far smaller. So the range of each
//! column of a batch is found first, and from these the ranges of all results. If each of them fits 64 bits, and the digits of its type, then no operation can
//! overflow, and none has to be checked. Otherwise the caller computes as it would without this module.
//!
//! ```text
//! columns    price: 90 to 10,494,950      discount: 0 to 10
//! steps      0: price    1: discount    2: 100 (one, of the scale of discount)    3: [2] - [1]    4: [0] * [3]
//! ranges                                                                          90 to 100       8,100 to 1,049,495,000
//! ```

mod arithmetic;
mod column;
mod range;
mod values;

#[cfg(test)]
mod tests;

pub use arithmetic::{Arithmetic, Operator, Step};
pub use column::{NarrowColumn, takes_type};
pub use range::Range;
pub use values::{BLOCK, Values, Work};
