//! The lowest layer: the processors, memories and links of the machine, and memory with a placement.
//!
//! This is the only crate that calls the CUDA driver. It has no notion of keys or joins.

#![deny(missing_docs)]

mod cache_line;
mod device_kind;
pub mod driver;
mod error;
pub mod measure;
pub mod memory;
pub mod timeline;
pub mod topology;
pub mod transfer;
pub mod vectors;

pub use device_kind::DeviceKind;
pub use error::{Error, Result};
