//! Join keys of any type as words or bytes that can be hashed and compared.
//!
//! Keys that fit 64 or 128 bits are packed into one word per row. A single column of text or binary is its own key. All others
//! (nested types, wide composites) use Arrow's row format. Two rows have equal keys if and only if their words or bytes are
//! equal.

mod bytes;
mod codec;
mod word;

#[cfg(test)]
mod tests;

pub use bytes::KeyBytes;
pub use codec::{KeyCodec, KeyData, Keys};
pub(crate) use codec::{Packed, append_bits, append_column, bits_of};
pub(crate) use word::Word;
