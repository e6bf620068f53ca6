//! The sections of a block. `Writer` cascades integers, compresses bytes by lz4, and collects flags, which it writes after all
//! other sections. Each section is a multiple of 8 bytes.

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::ArrowNativeType;

use crate::chunk::{Scratch, write_raw};
use crate::error::{Error, Result};
use crate::integer::Integer;
use crate::layers::CHUNK;
use crate::selector::Selector;
use crate::stack::Stack;

/// The stack of a section of integers.
#[derive(Debug, Clone, Copy)]
struct Known {
    stack: Stack,
    /// How many times smaller it has made blocks since the last sample, at most.
    ratio: f64,
    /// Blocks since the last sample.
    age: u32,
}

/// The share of its ratio that a section may lose before it is sampled again.
const LOSS: f64 = 0.2;

/// Blocks between samples, at least. Blocks of few rows are larger for their rows, and may lie between others.
const LEAST_AGE: u32 = 8;

/// Bytes that lz4 compresses by themselves. Its matches are at most 64 KiB apart.
const PIECE: usize = 1 << 20;

/// Arrays for chunks of integers of each size that has been met.
#[derive(Debug, Default)]
pub(super) struct Scratches {
    u8: Option<Scratch<u8>>,
    u16: Option<Scratch<u16>>,
    u32: Option<Scratch<u32>>,
    u64: Option<Scratch<u64>>,
}

/// An integer that arrays have.
pub(super) trait Stored: Integer + ArrowNativeType {
    /// Those for its size.
    fn scratch(scratches: &mut Scratches) -> &mut Scratch<Self::Bits>;
}

macro_rules! stored {
    ($($bits:ident $signed:ident;)*) => {$(
        impl Stored for $bits {
            fn scratch(scratches: &mut Scratches) -> &mut Scratch<$bits> {
                scratches.$bits.get_or_insert_with(Scratch::new)
            }
        }

        impl Stored for $signed {
            fn scratch(scratches: &mut Scratches) -> &mut Scratch<$bits> {
                <$bits>::scratch(scratches)
            }
        }
    )*};
}

stored! {
    u8 i8;
    u16 i16;
    u32 i32;
    u64 i64;
}

/// Writes the sections of blocks of one schema.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Whether nothing is compressed.
    is_plain: bool,
    scratches: Scratches,
    /// Of each section of integers, in the order in which they are written.
    known: Vec<Option<Known>>,
    next: usize,
    /// The flags, in words of 64.
    flags: Vec<u64>,
    flag: u32,
    pub out: Vec<u8>,
}

impl Writer {
    /// One that compresses nothing.
    pub fn plain() -> Self {
        Self { is_plain: true, ..Self::default() }
    }

    /// A block begins.
    pub fn begin(&mut self) {
        self.next = 0;
        self.flags.clear();
        self.flag = 64;
        self.out.clear();
    }

    /// Writes the flags. Returns the number of their words.
    pub fn finish(&mut self) -> u32 {
        let flags = self.flags.iter().flat_map(|word| word.to_le_bytes());
        self.out.extend(flags);
        self.flags.len() as u32
    }

    pub fn flag(&mut self, flag: bool) {
        if self.flag == 64 {
            self.flags.push(0);
            self.flag = 0;
        }
        if let Some(word) = self.flags.last_mut() {
            *word |= u64::from(flag) << self.flag;
        }
        self.flag += 1;
    }

    pub fn word(&mut self, word: u64) {
        self.out.extend_from_slice(&word.to_le_bytes());
    }

    /// Writes integers. Their stack is that of the same section of the last block, unless it has lost a fifth of its ratio.
    ///
    /// # Errors
    /// If there are too many.
    pub fn integers<I: Stored>(&mut self, values: &[I]) -> Result<()> {
        if self.is_plain {
            return self.compress(values, Stack::ALL[0], self.out.len()).map(|_| ());
        }
        let place = self.next;
        self.next += 1;
        if self.known.len() <= place {
            self.known.resize(place + 1, None);
        }
        let begin = self.out.len();
        let sample = || Selector::default().choose(&[values]).stack;
        let before = self.known[place];
        let stack = before.map_or_else(sample, |known| known.stack);
        let ratio = self.compress(values, stack, begin)?;
        let mut now = match before {
            Some(known) => Known { stack, ratio: ratio.max(known.ratio), age: known.age.saturating_add(1) },
            None => Known { stack, ratio, age: 0 },
        };
        if ratio < now.ratio * (1.0 - LOSS) && now.age >= LEAST_AGE {
            now = Known { stack: sample(), ratio, age: 0 };
            if now.stack != stack {
                now.ratio = self.compress(values, now.stack, begin)?;
            }
        }
        self.known[place] = Some(now);
        Ok(())
    }

    /// Writes integers from `begin` on. Returns how many times smaller they are.
    fn compress<I: Stored>(&mut self, values: &[I], stack: Stack, begin: usize) -> Result<f64> {
        let head = begin + 8 + table_bytes(values.len());
        self.out.resize(begin, 0);
        self.out.resize(head, 0);
        for (number, chunk) in values.chunks(CHUNK).enumerate() {
            if self.is_plain {
                write_raw(chunk, I::bits, &mut self.out);
            } else {
                I::scratch(&mut self.scratches).compress(chunk, I::bits, stack, I::IS_SIGNED, &mut self.out);
            }
            if values.len() > CHUNK {
                let end = ((self.out.len() - head) / 8) as u32;
                self.out[begin + 8 + 4 * number..][..4].copy_from_slice(&end.to_le_bytes());
            }
        }
        let words =
            u32::try_from((self.out.len() - begin - 8) / 8).map_err(|_| Error::TooLarge(size_of_val(values)))?;
        let word = u64::from(words) | u64::from(stack.byte()) << 32;
        self.out[begin..begin + 8].copy_from_slice(&word.to_le_bytes());
        Ok(size_of_val(values) as f64 / (self.out.len() - begin) as f64)
    }

    /// Writes bytes: pieces that are compressed, or as they are where that is smaller.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            let place = self.out.len();
            if self.is_plain {
                self.word(piece.len() as u64);
                self.out.extend_from_slice(piece);
                self.out.resize(self.out.len().next_multiple_of(8), 0);
                continue;
            }
            self.word(0);
            self.out.resize(place + 8 + lz4_flex::block::get_maximum_output_size(piece.len()), 0);
            let length = match lz4_flex::block::compress_into(piece, &mut self.out[place + 8..]) {
                Ok(length) if length < piece.len() => length,
                _ => {
                    self.out[place + 8..][..piece.len()].copy_from_slice(piece);
                    piece.len()
                }
            };
            self.out[place..place + 8].copy_from_slice(&(length as u64).to_le_bytes());
            self.out.truncate(place + 8 + length);
            self.out.resize((place + 8 + length).next_multiple_of(8), 0);
        }
    }
}

/// Bytes of the table of chunks of `count` integers: where each ends. A single chunk has none.
fn table_bytes(count: usize) -> usize {
    if count > CHUNK { (4 * count.div_ceil(CHUNK)).next_multiple_of(8) } else { 0 }
}

/// Reads the sections of a block.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    scratches: &'a mut Scratches,
    rest: &'a [u8],
    /// Words of flags.
    flags: &'a [u8],
    flag: usize,
}

/// Flags that a block lacks.
const NO_FLAGS: Error = Error::Damaged("a block has fewer flags than its arrays");

impl<'a> Reader<'a> {
    /// A reader of sections with `flags` words of flags after them.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn new(scratches: &'a mut Scratches, sections: &'a [u8], flags: u32) -> Result<Self> {
        let flags = sections.len().checked_sub(8 * flags as usize).ok_or(NO_FLAGS)?;
        let (rest, flags) = sections.split_at(flags);
        Ok(Self { scratches, rest, flags, flag: 0 })
    }

    /// Whether all sections and words of flags are read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty() && self.flag.div_ceil(64) * 8 == self.flags.len()
    }

    pub fn flag(&mut self) -> Result<bool> {
        let byte = self.flags.get(self.flag / 8).ok_or(NO_FLAGS)?;
        let flag = byte >> (self.flag % 8) & 1 == 1;
        self.flag += 1;
        Ok(flag)
    }

    pub fn word(&mut self) -> Result<u64> {
        let (word, rest) = self.rest.split_first_chunk::<8>().ok_or(Error::Damaged("a block ends within a word"))?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn take(&mut self, bytes: u64) -> Result<&'a [u8]> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Error::Damaged("a block ends within a section"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads `count` integers.
    ///
    /// # Errors
    /// If there are more or fewer, or others.
    pub fn integers<I: Stored>(&mut self, count: usize) -> Result<Vec<I>> {
        let word = self.word()?;
        let stack = u8::try_from(word >> 32).ok().and_then(Stack::from_byte);
        let stack = stack.ok_or(Error::Damaged("it names no stack of layers"))?;
        let section = self.take(8 * (word & 0xFFFF_FFFF))?;
        // Each chunk has an entry of 4 bytes: this takes at most 8,192 times the memory of what was read.
        let table = section.get(..table_bytes(count)).ok_or(Error::Damaged("a block ends within a section"))?;
        let chunks = &section[table.len()..];
        let scratch = I::scratch(self.scratches);
        let mut values = Vec::with_capacity(count);
        let mut begin = 0;
        while values.len() < count {
            let end = match table.get(values.len() / CHUNK * 4..).and_then(|entry| entry.first_chunk::<4>()) {
                Some(end) => 8 * u32::from_le_bytes(*end) as usize,
                None => chunks.len(),
            };
            let chunk = chunks.get(begin..end).ok_or(Error::Damaged("its chunks are out of order"))?;
            let decompressed = scratch.decompress(chunk, CHUNK.min(count - values.len()), stack)?;
            values.extend(decompressed.iter().map(|bits| I::from_bits(*bits)));
            begin = end;
        }
        if begin != chunks.len() {
            return Err(Error::Damaged("its chunks end elsewhere"));
        }
        Ok(values)
    }

    /// Reads `count` bytes, aligned for any type.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub fn bytes(&mut self, count: usize) -> Result<Buffer> {
        // lz4 makes bytes at most 255 times smaller: no more memory is taken for a block than that.
        if count / 256 > self.rest.len() {
            return Err(Error::Damaged("bytes are fewer than their rows"));
        }
        let mut bytes = MutableBuffer::from_len_zeroed(count);
        for piece in bytes.as_slice_mut().chunks_mut(PIECE) {
            let length = self.word()?;
            let compressed = self.take(length)?;
            self.take(length.next_multiple_of(8) - length)?;
            if compressed.len() == piece.len() {
                piece.copy_from_slice(compressed);
            } else if lz4_flex::block::decompress_into(compressed, piece).ok() != Some(piece.len()) {
                return Err(Error::Damaged("bytes cannot be decompressed"));
            }
        }
        Ok(bytes.into())
    }
}
