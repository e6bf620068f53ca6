//! Finds the stack of layers for a column.

use crate::cascade::Cascade;
use crate::integer::{Bits, Integer};
use crate::layers::CHUNK;
use crate::stack::Stack;

/// What the best stack is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The one with the fewest bytes.
    Smallest,
    /// The one that is sent and made in the least time, where so many bytes a second are sent.
    Fastest {
        /// Bytes a second of the link or the disk.
        bytes_per_second: f64,
    },
}

/// A stack, and what it makes of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// The stack.
    pub stack: Stack,
    /// How many times smaller the column becomes.
    pub ratio: f64,
    /// Seconds in which one processor compresses and decompresses an integer.
    pub seconds: f64,
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

/// Seconds of one processor for an integer: to pack and unpack it, and for each layer of runs or deltas over as many.
const PACK: f64 = 0.9e-9;
const RUNS: f64 = 1.6e-9;
const DELTAS: f64 = 0.8e-9;

/// A stack with more layers must be smaller by this share.
const GAIN: f64 = 0.01;

impl Selector {
    /// The best stack for the buffers of a column, which are compressed one by one. The sample has a fixed size; finding it takes
    /// `O(n / CHUNK)`.
    pub fn choose<I: Integer>(&self, buffers: &[&[I]], goal: Goal) -> Chosen {
        let sample = self.sample(buffers);
        let bytes = (sample.iter().map(|chunk| chunk.len()).sum::<usize>() * I::Bits::BYTES).max(1) as f64;
        let mut cascade = Cascade::new();
        let mut best: Option<(f64, Chosen)> = None;
        for stack in Stack::ALL {
            let size: usize = sample.iter().map(|chunk| cascade.size(chunk, stack)).sum();
            let share = size.max(1) as f64 / bytes;
            let seconds = PACK + stack.runs() as f64 * RUNS + stack.deltas() as f64 * DELTAS;
            let cost = match goal {
                Goal::Smallest => share,
                Goal::Fastest { bytes_per_second } => {
                    share * I::Bits::BYTES as f64 / bytes_per_second.max(1.0) + seconds
                }
            };
            if best.is_none_or(|(least, _)| cost < least * (1.0 - GAIN)) {
                best = Some((cost, Chosen { stack, ratio: 1.0 / share, seconds }));
            }
        }
        best.map_or(Chosen { stack: Stack::ALL[0], ratio: 1.0, seconds: PACK }, |(_, chosen)| chosen)
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
