//! Cascaded compression of columns of integers (paper 4, section 4).
//!
//! Layers of run-length and delta encoding alternate, as a [`Stack`] says, in chunks of [`CHUNK`] integers, which are independent of each
//! other. Every array that is left goes through a frame of reference and bit packing. A [`Cascade`] compresses and decompresses; a
//! [`Selector`] finds the stack, and a [`DeviceCascade`] does the same on a GPU. `docs/codec.md` specifies the bytes.
//!
//! ```
//! use overspill_codec::{Cascade, Selector};
//!
//! // The orders of lines: each as often as it has lines.
//! let keys: Vec<i64> = (0..100_000).map(|line| line / 4).collect();
//! let chosen = Selector::default().choose(&[&keys[..]]);
//! let (mut compressed, mut again) = (vec![], vec![]);
//! let mut cascade = Cascade::new();
//! cascade.compress(&keys, chosen.stack, &mut compressed)?;
//! assert!(compressed.len() * 50 < keys.len() * 8);
//! cascade.decompress(&compressed, &mut again)?;
//! assert_eq!(again, keys);
//! # Ok::<(), overspill_codec::Error>(())
//! ```
//!
//! ```text
//!   selector ─▶ cascade ─▶ chunk ─┬▶ layers
//!                  │              └▶ packing
//!                  └▶ format ─▶ checksum
//! ```

#![deny(missing_docs)]

mod block;
mod cascade;
mod checksum;
mod chunk;
mod device;
mod error;
mod format;
mod integer;
mod layers;
mod packing;
mod selector;
mod stack;

pub use block::{BlockReader, BlockWriter};
pub use cascade::Cascade;
pub use device::{DeviceCascade, DeviceColumn, DeviceIntegers};
pub use error::{Error, Result};
pub use format::{ColumnInfo, MOST_BYTES, VERSION};
pub use integer::{Bits, Integer};
pub use layers::CHUNK;
pub use selector::{Chosen, Selector};
pub use stack::Stack;
