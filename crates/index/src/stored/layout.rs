//! Where the parts of an index file are.

use twox_hash::XxHash64;

use super::error::{Result, StoredError};

/// Rows of a block.
pub const BLOCK: usize = 512;

/// Bytes of included columns that have a checksum.
pub(super) const CHUNK: usize = 32 << 10;

/// The first bytes of an index file. They end with the version of the format.
pub(super) const MAGIC: [u8; 16] = *b"overspill index2";

/// Bytes of a checksum.
pub(super) const SUM: usize = 8;

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
    /// Bytes of the included columns.
    pub included: u64,
    /// Bytes of the description.
    pub description: u64,
    /// The checksums of the directory, of those of the included columns, and of the description.
    pub directory_sum: u64,
    pub included_sum: u64,
    pub description_sum: u64,
}

/// How many numbers a trailer has besides its checksum, and their bytes.
const NUMBERS: usize = 7;
const NUMBER_BYTES: usize = NUMBERS * 8;

impl Trailer {
    /// Bytes of a trailer: its numbers, its checksum, and the magic bytes.
    pub const BYTES: usize = NUMBER_BYTES + SUM + MAGIC.len();

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let numbers: [u64; NUMBERS] = [
            self.rows,
            self.row_bytes,
            self.included,
            self.description,
            self.directory_sum,
            self.included_sum,
            self.description_sum,
        ];
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&bytes[..NUMBER_BYTES]);
        bytes[NUMBER_BYTES..][..SUM].copy_from_slice(&sum.to_le_bytes());
        bytes[NUMBER_BYTES + SUM..].copy_from_slice(&MAGIC);
        bytes
    }

    /// # Errors
    /// If these are not the last bytes of an index file of `size` bytes.
    pub fn of(bytes: &[u8; Self::BYTES], size: u64) -> Result<Self> {
        if bytes[NUMBER_BYTES + SUM..] != MAGIC {
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
            included: number(2),
            description: number(3),
            directory_sum: number(4),
            included_sum: number(5),
            description_sum: number(6),
        };
        let fits = checksum(&bytes[..NUMBER_BYTES]) == number(NUMBERS)
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

    /// Where the included columns begin.
    pub fn included(&self) -> u64 {
        self.directory() + self.blocks() * ENTRY as u64
    }

    /// Where the checksums of the included columns begin, and how many there are.
    pub fn included_sums(&self) -> (u64, u64) {
        (self.included() + self.included, self.included.div_ceil(CHUNK as u64))
    }

    /// Where the description begins.
    pub fn description(&self) -> u64 {
        let (place, sums) = self.included_sums();
        place + sums * SUM as u64
    }

    /// Bytes of the whole file. Wide, as the numbers of a damaged trailer may be any.
    fn file_bytes(&self) -> u128 {
        let rows = u128::from(self.rows) * (KEY as u128 + u128::from(self.row_bytes));
        let directory = u128::from(self.blocks()) * ENTRY as u128;
        let sums = u128::from(self.included.div_ceil(CHUNK as u64)) * SUM as u128;
        let included = u128::from(self.included) + sums;
        MAGIC.len() as u128 + rows + directory + included + u128::from(self.description) + Self::BYTES as u128
    }
}
