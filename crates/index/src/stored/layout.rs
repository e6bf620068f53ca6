//! Where the parts of an index file are.

use twox_hash::XxHash64;

use super::error::{Result, StoredError};

/// Rows of a block.
pub const BLOCK: usize = 512;

/// The first bytes of an index file. They end with the version of the format.
pub(super) const MAGIC: [u8; 16] = *b"overspill index1";

/// Bytes of a key, and of an entry of the directory: a first key and a checksum.
pub(super) const KEY: usize = 8;
pub(super) const ENTRY: usize = 16;

/// The checksum of bytes.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

/// The last bytes of an index file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trailer {
    /// Rows of the index.
    pub rows: u64,
    /// Bytes of a row number: 4 or 8.
    pub row_bytes: u64,
    /// Bytes of the description.
    pub description: u64,
    /// The checksums of the directory and the description.
    pub directory_sum: u64,
    pub description_sum: u64,
}

impl Trailer {
    /// Bytes of a trailer: its numbers, its checksum, and the magic bytes.
    pub const BYTES: usize = 6 * 8 + MAGIC.len();

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let numbers = [self.rows, self.row_bytes, self.description, self.directory_sum, self.description_sum];
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&bytes[..40]);
        bytes[40..48].copy_from_slice(&sum.to_le_bytes());
        bytes[48..].copy_from_slice(&MAGIC);
        bytes
    }

    /// # Errors
    /// If these are not the last bytes of an index file of `size` bytes.
    pub fn of(bytes: &[u8; Self::BYTES], size: u64) -> Result<Self> {
        if bytes[48..] != MAGIC {
            return Err(StoredError::NotAnIndex);
        }
        let number = |place: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[8 * place..8 * place + 8]);
            u64::from_le_bytes(number)
        };
        let trailer = Self {
            rows: number(0),
            row_bytes: number(1),
            description: number(2),
            directory_sum: number(3),
            description_sum: number(4),
        };
        let fits = checksum(&bytes[..40]) == number(5)
            && matches!(trailer.row_bytes, 4 | 8)
            && u128::from(size) == trailer.file_bytes();
        if fits { Ok(trailer) } else { Err(StoredError::damaged("its trailer")) }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.rows.div_ceil(BLOCK as u64)
    }

    /// Bytes of a whole block.
    pub fn block_bytes(&self) -> u64 {
        BLOCK as u64 * (KEY as u64 + self.row_bytes)
    }

    /// Where a block begins.
    pub fn block(&self, block: u64) -> u64 {
        MAGIC.len() as u64 + block * self.block_bytes()
    }

    /// Where the directory begins.
    pub fn directory(&self) -> u64 {
        MAGIC.len() as u64 + self.rows * (KEY as u64 + self.row_bytes)
    }

    /// Bytes of the whole file. Wide, as the numbers of a damaged trailer may be any.
    fn file_bytes(&self) -> u128 {
        let rows = u128::from(self.rows) * (KEY as u128 + u128::from(self.row_bytes));
        let directory = u128::from(self.blocks()) * ENTRY as u128;
        MAGIC.len() as u128 + rows + directory + u128::from(self.description) + Self::BYTES as u128
    }
}
