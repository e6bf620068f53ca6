//! One chunk: the layers of a stack, and the arrays that they leave.
//!
//! A chunk is a multiple of 8 bytes. Its first byte says whether the integers follow as they are, after 8 bytes, or cascaded:
//!
//! | bytes | |
//! |---|---|
//! | 1 | 0 if raw, 1 if cascaded |
//! | 3 | zeros |
//! | 4 | the bits of a packed value, of each block |
//! | 2, 2, 4 | for each layer of runs: their number, the least length, and the bits of a packed length, of each block |
//! | 8 | the least value |
//! | 8 for each layer of deltas | the first value of its input |
//! | | the packed values, then the packed run lengths of each layer |

use crate::error::{Error, Result};
use crate::integer::Bits;
use crate::layers::{Array, CHUNK, SLACK, differences, find_runs, repeat, sums};
use crate::packing::{Frame, pack, unpack};
use crate::stack::{Layer, Stack};

const RAW: u8 = 0;
const CASCADED: u8 = 1;

/// Bytes before raw integers, and before all else of a cascaded chunk.
const HEAD: usize = 8;

/// Arrays in which a chunk is compressed and decompressed.
#[derive(Debug)]
pub(crate) struct Scratch<T> {
    /// The input of a layer, and its output.
    values: [Box<Array<T>>; 2],
    lengths: [Box<[u16; CHUNK]>; 2],
}

/// What is left of a chunk after all layers.
#[derive(Debug, Clone, Copy)]
struct Left<T> {
    /// The number of values, which are in the first array.
    count: usize,
    frame: Frame<T>,
    firsts: [T; 2],
    /// Of each layer of runs, their number and the frame of their lengths.
    runs: [(usize, Frame<u16>); 2],
}

impl<T: Bits> Left<T> {
    fn bytes(&self, stack: Stack) -> usize {
        let runs = self.runs[..stack.runs()].iter().map(|(count, frame)| frame.packed_bytes(*count));
        head_bytes(stack) + self.frame.packed_bytes(self.count) + runs.sum::<usize>()
    }
}

/// Bytes of a cascaded chunk before its packed arrays.
fn head_bytes(stack: Stack) -> usize {
    HEAD + 8 * stack.runs() + 8 + 8 * stack.deltas()
}

/// Bytes of a raw chunk.
fn raw_bytes<T: Bits>(count: usize) -> usize {
    HEAD + (count * T::BYTES).next_multiple_of(8)
}

/// Writes a chunk of values as they are.
pub(crate) fn write_raw<T: Bits, I: Copy>(values: &[I], bits: impl Fn(I) -> T, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[RAW, 0, 0, 0, 0, 0, 0, 0]);
    for value in values {
        out.extend_from_slice(&bits(*value).word().to_le_bytes()[..T::BYTES]);
    }
    out.resize(begin + raw_bytes::<T>(values.len()), 0);
}

impl<T: Bits> Scratch<T> {
    pub fn new() -> Self {
        let array = || Box::new([T::default(); CHUNK + SLACK]);
        Self { values: [array(), array()], lengths: [Box::new([0; CHUNK]), Box::new([0; CHUNK])] }
    }

    /// Applies the layers. `values` are in the first array.
    fn apply(&mut self, count: usize, stack: Stack, is_signed: bool) -> Left<T> {
        let runs = [(0, Frame::default()); 2];
        let mut left = Left { count, frame: Frame::default(), firsts: [T::default(); 2], runs };
        let (mut run_layers, mut delta_layers) = (0, 0);
        for layer in stack.layers() {
            let [from, to] = &mut self.values;
            let values = &from[..left.count];
            match layer {
                Layer::Runs => {
                    let lengths = &mut self.lengths[run_layers];
                    left.count = find_runs(values, to, lengths);
                    left.runs[run_layers] = (left.count, Frame::of(&lengths[..left.count], false));
                    run_layers += 1;
                }
                Layer::Deltas => {
                    left.firsts[delta_layers] = differences(values, to);
                    left.count = left.count.saturating_sub(1);
                    delta_layers += 1;
                }
            }
            self.values.swap(0, 1);
        }
        left.frame = Frame::of(&self.values[0][..left.count], is_signed || stack.deltas() > 0);
        left
    }

    fn load<I: Copy>(&mut self, values: &[I], bits: impl Fn(I) -> T) {
        for (to, value) in self.values[0].iter_mut().zip(values) {
            *to = bits(*value);
        }
    }

    /// The bytes that [`Self::compress`] would write.
    pub fn size<I: Copy>(&mut self, values: &[I], bits: impl Fn(I) -> T, stack: Stack, is_signed: bool) -> usize {
        self.load(values, bits);
        self.apply(values.len(), stack, is_signed).bytes(stack).min(raw_bytes::<T>(values.len()))
    }

    /// Writes a chunk of at least one and at most [`CHUNK`] values.
    pub fn compress<I: Copy>(
        &mut self,
        values: &[I],
        bits: impl Fn(I) -> T,
        stack: Stack,
        is_signed: bool,
        out: &mut Vec<u8>,
    ) {
        self.load(values, &bits);
        let left = self.apply(values.len(), stack, is_signed);
        if left.bytes(stack) >= raw_bytes::<T>(values.len()) {
            return write_raw(values, bits, out);
        }
        let runs = &left.runs[..stack.runs()];
        out.extend_from_slice(&[CASCADED, 0, 0, 0]);
        out.extend_from_slice(&left.frame.widths);
        for (count, frame) in runs {
            out.extend_from_slice(&(*count as u16).to_le_bytes());
            out.extend_from_slice(&frame.least.to_le_bytes());
            out.extend_from_slice(&frame.widths);
        }
        out.extend_from_slice(&left.frame.least.word().to_le_bytes());
        for first in &left.firsts[..stack.deltas()] {
            out.extend_from_slice(&first.word().to_le_bytes());
        }
        pack(&self.values[0][..left.count], &left.frame, out);
        for ((count, frame), lengths) in runs.iter().zip(&self.lengths) {
            pack(&lengths[..*count], frame, out);
        }
    }

    /// Reads a chunk of `count` values, at most [`CHUNK`]. They are valid until the next.
    ///
    /// # Errors
    /// If the bytes are none that [`Self::compress`] writes.
    pub fn decompress(&mut self, bytes: &[u8], count: usize, stack: Stack) -> Result<&[T]> {
        let head = bytes.first_chunk::<HEAD>().ok_or(Error::Damaged("a chunk ends before it begins"))?;
        if head[0] == RAW {
            if bytes.len() != raw_bytes::<T>(count) {
                return Err(Error::Damaged("a raw chunk has another length"));
            }
            for (value, bytes) in self.values[0][..count].iter_mut().zip(bytes[HEAD..].chunks_exact(T::BYTES)) {
                let mut word = [0; 8];
                word[..T::BYTES].copy_from_slice(bytes);
                *value = T::of_word(u64::from_le_bytes(word));
            }
            return Ok(&self.values[0][..count]);
        }
        let parsed = Parsed::<T>::of(bytes, count, stack)?;
        self.unpack(&bytes[head_bytes(stack)..], &parsed.left, stack);
        self.undo(&parsed, stack)?;
        Ok(&self.values[0][..count])
    }

    /// Unpacks all arrays.
    fn unpack(&mut self, packed: &[u8], left: &Left<T>, stack: Stack) {
        let (values, mut rest) = packed.split_at(left.frame.packed_bytes(left.count));
        unpack(values, &left.frame, &mut self.values[0][..left.count]);
        for ((count, frame), lengths) in left.runs[..stack.runs()].iter().zip(&mut self.lengths) {
            let (own, others) = rest.split_at(frame.packed_bytes(*count));
            unpack(own, frame, &mut lengths[..*count]);
            rest = others;
        }
    }

    /// Takes the layers back, the last first.
    fn undo(&mut self, parsed: &Parsed<T>, stack: Stack) -> Result<()> {
        let Parsed { left, before } = parsed;
        let (mut runs, mut deltas) = (stack.runs(), stack.deltas());
        let mut count = left.count;
        for (layer, before) in stack.layers().rev().zip(before[..runs + deltas].iter().rev()) {
            let [from, to] = &mut self.values;
            match layer {
                Layer::Runs => {
                    runs -= 1;
                    if !repeat(&from[..count], &self.lengths[runs][..count], *before, to) {
                        return Err(Error::Damaged("the runs of a chunk have another length than the chunk"));
                    }
                }
                Layer::Deltas => {
                    deltas -= 1;
                    sums(left.firsts[deltas], &from[..count], to);
                }
            }
            count = *before;
            self.values.swap(0, 1);
        }
        Ok(())
    }
}

/// What the first bytes of a cascaded chunk say.
struct Parsed<T> {
    left: Left<T>,
    /// The number of values before each layer.
    before: [usize; 4],
}

impl<T: Bits> Parsed<T> {
    /// Reads the first bytes of a chunk of `count` values. All lengths fit each other and the arrays of a chunk.
    ///
    /// # Errors
    /// If they do not.
    fn of(bytes: &[u8], count: usize, stack: Stack) -> Result<Self> {
        let damaged = Error::Damaged;
        let head = bytes.get(..head_bytes(stack)).ok_or(damaged("a chunk ends within its head"))?;
        let words = head.as_chunks::<8>().0;
        let [kind, 0, 0, 0, widths @ ..] = words[0] else {
            return Err(damaged("the first bytes of a chunk mean nothing"));
        };
        if kind != CASCADED {
            return Err(damaged("a chunk is of an unknown kind"));
        }
        let (of_runs, others) = words[1..].split_at(stack.runs());
        let mut runs = [(0, Frame::default()); 2];
        for (runs, [number, more, least, above, widths @ ..]) in runs.iter_mut().zip(of_runs) {
            let least = u16::from_le_bytes([*least, *above]);
            *runs = (u16::from_le_bytes([*number, *more]).into(), Frame { least, widths: *widths });
        }
        let mut words = others.iter().map(|word| T::of_word(u64::from_le_bytes(*word)));
        let frame = Frame { least: words.next().unwrap_or_default(), widths };
        let mut left = Left { count, frame, firsts: [T::default(); 2], runs };
        for (first, word) in left.firsts.iter_mut().zip(words) {
            *first = word;
        }
        let (mut before, mut number_of_runs) = ([0; 4], runs.iter().map(|(number, _)| *number));
        for (before, layer) in before.iter_mut().zip(stack.layers()) {
            *before = left.count;
            left.count = match layer {
                Layer::Runs => number_of_runs.next().unwrap_or(0),
                Layer::Deltas => left.count.saturating_sub(1),
            };
            if left.count > *before {
                return Err(damaged("a chunk has more runs than values"));
            }
        }
        let are_possible = runs.iter().all(|(number, frame)| frame.is_possible(*number));
        if !are_possible || !left.frame.is_possible(left.count) {
            return Err(damaged("an array has more bits than its integers"));
        }
        if left.bytes(stack) != bytes.len() {
            return Err(damaged("a chunk has another length than its arrays"));
        }
        Ok(Self { left, before })
    }
}
