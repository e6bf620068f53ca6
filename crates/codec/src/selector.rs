//! Finds the stack of layers for a column.

use crate::cascade::Cascade;
use crate::integer::{Bits, Integer};
use crate::layers::CHUNK;
use crate::stack::Stack;

/// A stack, and what it makes of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// The stack.
    pub stack: Stack,
    /// How many times smaller the sample becomes.
    pub ratio: f64,
}

/// Samples a column, and compares all stacks (paper 4, section 4).
///
/// The sample is of what will be sent: rows in the order of a file compress better than those of a hash partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selector {
    /// The most chunks that are sampled.
    pub chunks: usize,
}

impl Default for Selector {
    /// 16 chunks.
    fn default() -> Self {
        Self { chunks: 16 }
    }
}

/// A stack with more layers must be smaller by this share.
const GAIN: f64 = 0.01;

impl Selector {
    /// The stack that makes the buffers of a column smallest, if each is compressed by itself. The sample has a fixed size; finding it
    /// takes `O(n / CHUNK)`.
    pub fn choose<I: Integer>(&self, buffers: &[&[I]]) -> Chosen {
        let sample = self.sample(buffers);
        let bytes = (sample.iter().map(|chunk| chunk.len()).sum::<usize>() * I::Bits::BYTES).max(1) as f64;
        let mut cascade = Cascade::new();
        let mut ratio = |stack| {
            let size: usize = sample.iter().map(|chunk| cascade.size(chunk, stack)).sum();
            bytes / size.max(1) as f64
        };
        let [fewest, others @ ..] = Stack::ALL;
        let mut best = Chosen { stack: fewest, ratio: ratio(fewest) };
        for stack in others {
            let ratio = ratio(stack);
            if ratio * (1.0 - GAIN) > best.ratio {
                best = Chosen { stack, ratio };
            }
        }
        best
    }

    /// Chunks of the buffers, at equal distances, with the first and the last.
    fn sample<'a, I: Integer>(&self, buffers: &[&'a [I]]) -> Vec<&'a [I]> {
        let chunks = |buffer: &'a [I]| buffer.chunks(CHUNK);
        let number: usize = buffers.iter().map(|buffer| buffer.len().div_ceil(CHUNK)).sum();
        let most = self.chunks.max(1);
        let last = number.saturating_sub(1);
        let mut wanted = (0..most).map(|sampled| sampled * last / (most - 1).max(1)).peekable();
        let all = buffers.iter().flat_map(|buffer| chunks(buffer)).enumerate();
        all.filter(|(place, _)| {
            let mut is_wanted = number <= most;
            while wanted.next_if(|wanted| wanted <= place).is_some() {
                is_wanted = true;
            }
            is_wanted
        })
        .map(|(_, chunk)| chunk)
        .collect()
    }
}
