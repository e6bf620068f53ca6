//! Join keys of any type as words or bytes that can be hashed and compared.
//!
//! Keys that fit 64 or 128 bits are packed into one word per row. All others (strings, nested types, wide composites) use
//! Arrow's row format. Two rows have equal keys if and only if their words or bytes are equal.

mod codec;
mod word;

#[cfg(test)]
mod tests;

pub(crate) use codec::hash_bytes;
pub use codec::{KeyCodec, KeyData, Keys};
pub use word::Word;
