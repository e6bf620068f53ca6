//! One chunk: the layers of a stack, and the arrays that they leave.
//!
//! A chunk is a multiple of 8 bytes. Its first byte says whether the integers follow as they are, after 8 bytes, or cascaded:
//!
//! | bytes | |
//! |---|---|
//! | 1 | 0 if raw, 1 if cascaded |
//! | 1 | the width of the values |
//! | 2 | the widths of the run lengths of the first and second layer, 0 if there is none |
//! | 2 x 2 | the numbers of runs, likewise |
//! | 2 x 2, 4 | the least run lengths, and zeros; only if there is a layer of runs |
//! | 8 | the least value |
//! | 8 for each layer of deltas | the first value of its input |
//! | | the packed values, then the packed run lengths of each layer |

use crate::error::{Error, Result};
use crate::integer::Bits;
use crate::layers::{Array, CHUNK, SLACK, differences, find_runs, repeat, sums};
use crate::packing::{Frame, pack, packed_bytes, unpack};
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
        let runs = self.runs[..stack.runs()].iter().map(|(count, frame)| packed_bytes(*count, frame.width));
        head_bytes(stack) + packed_bytes(self.count, self.frame.width) + runs.sum::<usize>()
    }
}

/// Bytes of a cascaded chunk before its packed arrays.
fn head_bytes(stack: Stack) -> usize {
    HEAD + 8 * usize::from(stack.runs() > 0) + 8 + 8 * stack.deltas()
}

/// Bytes of a raw chunk.
fn raw_bytes<T: Bits>(count: usize) -> usize {
    HEAD + (count * T::BYTES).next_multiple_of(8)
}

impl<T: Bits> Scratch<T> {
    pub fn new() -> Self {
        let array = || Box::new([T::default(); CHUNK + SLACK]);
        Self { values: [array(), array()], lengths: [Box::new([0; CHUNK]), Box::new([0; CHUNK])] }
    }

    /// Applies the layers. `values` are in the first array.
    fn apply(&mut self, count: usize, stack: Stack, is_signed: bool) -> Left<T> {
        let none = Frame { least: 0, width: 0 };
        let mut left = Left {
            count,
            frame: Frame { least: T::default(), width: 0 },
            firsts: [T::default(); 2],
            runs: [(0, none); 2],
        };
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
            let begin = out.len();
            out.extend_from_slice(&[RAW, 0, 0, 0, 0, 0, 0, 0]);
            for value in values {
                out.extend_from_slice(&bits(*value).word().to_le_bytes()[..T::BYTES]);
            }
            out.resize(begin + raw_bytes::<T>(values.len()), 0);
            return;
        }
        let [(first_count, first), (second_count, second)] = left.runs;
        out.extend_from_slice(&[CASCADED, left.frame.width, first.width, second.width]);
        out.extend_from_slice(&(first_count as u16).to_le_bytes());
        out.extend_from_slice(&(second_count as u16).to_le_bytes());
        if stack.runs() > 0 {
            out.extend_from_slice(&first.least.to_le_bytes());
            out.extend_from_slice(&second.least.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
        }
        out.extend_from_slice(&left.frame.least.word().to_le_bytes());
        for first in &left.firsts[..stack.deltas()] {
            out.extend_from_slice(&first.word().to_le_bytes());
        }
        pack(&self.values[0][..left.count], left.frame, out);
        for ((count, frame), lengths) in left.runs[..stack.runs()].iter().zip(&self.lengths) {
            pack(&lengths[..*count], *frame, out);
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
        let (values, mut rest) = packed.split_at(packed_bytes(left.count, left.frame.width));
        unpack(values, left.frame, &mut self.values[0][..left.count]);
        for ((count, frame), lengths) in left.runs[..stack.runs()].iter().zip(&mut self.lengths) {
            let (own, others) = rest.split_at(packed_bytes(*count, frame.width));
            unpack(own, *frame, &mut lengths[..*count]);
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
        let damaged = |what| Error::Damaged(what);
        let head = bytes.get(..head_bytes(stack)).ok_or(damaged("a chunk ends within its head"))?;
        let half = |place: usize| u16::from_le_bytes([head[place], head[place + 1]]);
        let [kind, width, widths @ ..] = [head[0], head[1], head[2], head[3]];
        if kind != CASCADED {
            return Err(damaged("a chunk is of an unknown kind"));
        }
        if usize::from(width) > T::BYTES * 8 || widths.iter().any(|width| *width > 16) {
            return Err(damaged("an array has more bits than its integers"));
        }
        let runs = [0, 1].map(|number| {
            let least = if stack.runs() > 0 { half(HEAD + 2 * number) } else { 0 };
            (usize::from(half(4 + 2 * number)), Frame { least, width: widths[number] })
        });
        let mut words = head[HEAD + 8 * usize::from(stack.runs() > 0)..].as_chunks::<8>().0.iter();
        let mut word = || words.next().map_or(T::default(), |word| T::of_word(u64::from_le_bytes(*word)));
        let frame = Frame { least: word(), width };
        let mut left = Left { count, frame, firsts: [T::default(); 2], runs };
        left.firsts[..stack.deltas()].fill_with(word);
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
        if left.bytes(stack) != bytes.len() {
            return Err(damaged("a chunk has another length than its arrays"));
        }
        Ok(Self { left, before })
    }
}
