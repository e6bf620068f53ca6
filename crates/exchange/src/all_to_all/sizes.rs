//! The first message of a round, and of a stream.

use arrow::buffer::Buffer;

use super::column::Form;
use crate::error::{Error, Result};
use crate::rank::Rank;

/// The version of all messages. Ranks of different versions refuse each other's rows.
const VERSION: u64 = 1;

/// The highest bit of a column's size says that it is a block; the others are its bytes.
const BLOCK: u64 = 1 << 63;

/// What a rank sends in a round: words of 64 bits, lowest byte first. The first is the number of rows, each of the others describes a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    pub rows: usize,
    pub columns: Vec<(Form, usize)>,
}

impl Sizes {
    pub fn message(&self) -> Buffer {
        let column = |(form, bytes): &(Form, usize)| match form {
            Form::Values => *bytes as u64,
            Form::Block => *bytes as u64 | BLOCK,
        };
        let words = std::iter::once(self.rows as u64).chain(self.columns.iter().map(column));
        Buffer::from_vec(words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    /// Reads a message of sizes of this many columns.
    pub fn read(message: &Buffer, columns: usize, rank: Rank) -> Result<Self> {
        let wrong = || Error::Unexpected { rank, what: format!("sizes of {} bytes", message.len()) };
        let (words, rest) = message.as_slice().as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (rows, sizes) = words.split_first().ok_or_else(wrong)?;
        // Without rows no column follows.
        if !rest.is_empty() || sizes.len() != if *rows == 0 { 0 } else { columns } {
            return Err(wrong());
        }
        let columns = sizes.iter().map(|size| {
            let form = if size & BLOCK == 0 { Form::Values } else { Form::Block };
            Ok((form, usize::try_from(size & !BLOCK).map_err(|_| wrong())?))
        });
        // The numbers of rows in a batch have 32 bits.
        let rows = u32::try_from(*rows).map_err(|_| wrong())? as usize;
        Ok(Self { rows, columns: columns.collect::<Result<_>>()? })
    }
}

/// The first message of a stream: what rows are, and by what they are shuffled.
pub fn greeting(description: &str) -> Buffer {
    Buffer::from_slice_ref(with_version(description))
}

/// Checks the greeting of a rank.
pub fn check_greeting(message: &Buffer, description: &str, rank: Rank) -> Result<()> {
    let expected = with_version(description);
    if message.as_slice() == expected.as_bytes() {
        return Ok(());
    }
    let found = String::from_utf8_lossy(message);
    Err(Error::Unexpected { rank, what: format!("{found}, in place of {expected}") })
}

fn with_version(description: &str) -> String {
    format!("rows of version {VERSION} with {description}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_were_written() {
        let sizes = Sizes { rows: 7, columns: vec![(Form::Values, 56), (Form::Block, 1 << 40)] };
        assert_eq!(Sizes::read(&sizes.message(), 2, 0).unwrap(), sizes);
        let none = Sizes { rows: 0, columns: vec![] };
        assert_eq!(Sizes::read(&none.message(), 2, 0).unwrap(), none);
    }

    #[test]
    fn forged_sizes_are_refused() {
        let sizes = Sizes { rows: 7, columns: vec![(Form::Values, 56)] };
        for (message, columns) in [
            (sizes.message(), 2),
            (Buffer::from_vec(vec![0_u8; 0]), 0),
            (Buffer::from_vec(vec![1_u8; 9]), 0),
            (Sizes { rows: 1 << 40, columns: vec![] }.message(), 0),
        ] {
            let error = Sizes::read(&message, columns, 3).unwrap_err().to_string();
            assert!(error.starts_with("rank 3 sent what was not expected: sizes of"), "{error}");
        }
    }

    #[test]
    fn other_rows_are_refused() {
        let greeting = greeting("the key a Int32");
        check_greeting(&greeting, "the key a Int32", 1).unwrap();
        let error = check_greeting(&greeting, "the key a Int64", 1).unwrap_err().to_string();
        assert!(error.contains("with the key a Int32, in place of rows of version 1 with the key a Int64"), "{error}");
    }
}
