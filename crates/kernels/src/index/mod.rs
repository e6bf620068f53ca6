//! Lookups in an index over sorted keys (paper 3), in the order that keys come in or in partitioned windows.
//!
//! | index | threads a key | a lookup reads |
//! |---|---|---|
//! | binary search | one | `log2(n)` keys |
//! | B+tree | one | a search in a node a level |
//! | Harmonia | eight, one key after another | one or two lines of 128 bytes a level |
//! | RadixSpline | one | an entry of a table, spline points, and keys around an estimate |
//!
//! The keys, and the index, may be in GPU memory or in CPU memory that kernels read across the link.

mod arguments;
mod look_up;
mod windows;

pub(crate) use arguments::IndexArguments;
pub use arguments::{DeviceIndex, DeviceSearch};
pub use look_up::IndexLookup;
pub use windows::WindowedLookup;
