//! How a partitioner is cut to a device: blocks, buffers, and what is too little.

use overspill_machine::{Error, Result};

use crate::share::Share;
use crate::{Kernels, Radix};

/// The unit in which a GPU writes to CPU memory, in bytes.
const LINE: u64 = 128;
/// Columns that move along with the key, at most.
pub(super) const MAX_PAYLOADS: usize = 4;
/// What `partition/linear.cuh` allows.
const LINEAR_TUPLES_PER_THREAD: u64 = 16;
/// Bytes of state of each partition in scratchpad memory, as the headers say.
const STANDARD_STATE: u64 = 8;
const LINEAR_STATE: u64 = 16;
const SHARED_STATE: u64 = 12;
const HIERARCHICAL_STATE: u64 = 16;
/// Threads of a block. Kernels use up to 128 registers a thread, of which a multiprocessor has 65536.
const THREADS: u32 = 512;
/// A block's share of a partition is not worth less than this many bytes of a column: its ends do not fill lines.
const MIN_RUN: u64 = 4096;
/// The second level asks for this much of each partition's column and block if there is memory enough.
const SECOND_LEVEL: u64 = 512;

/// How tuples reach their partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Each straight to its place.
    Standard,
    /// Sorted in batches.
    Linear,
    /// Combined in scratchpad memory.
    Shared,
    /// Combined in scratchpad and GPU memory.
    Hierarchical,
}

impl Algorithm {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Standard, Self::Linear, Self::Shared, Self::Hierarchical];

    /// The name, as kernels and benchmarks have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Linear => "linear",
            Self::Shared => "shared",
            Self::Hierarchical => "hierarchical",
        }
    }
}

/// Bytes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyWidth {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl KeyWidth {
    /// How many bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// What a partitioner will do, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionPlan {
    pub(super) algorithm: Algorithm,
    pub(super) key: KeyWidth,
    /// Bytes of each payload, 4 or 8.
    pub(super) payloads: Vec<u64>,
    pub(super) radix: Radix,
    pub(super) tuples: u64,
    pub(super) blocks: u32,
    pub(super) threads: u32,
    pub(super) chunk: u64,
    pub(super) buffer_tuples: u64,
    pub(super) second_level_tuples: u64,
    pub(super) scratchpad: u64,
    pub(super) share: Share,
}

/// The name of the kernel that partitions so.
pub(super) fn kernel_name(algorithm: Algorithm, key: KeyWidth, payloads: usize) -> String {
    format!("partition_{}_u{}_{payloads}", algorithm.name(), key.bytes() * 8)
}

impl PartitionPlan {
    /// Plans to partition `tuples` tuples with payload columns of 4 or 8 bytes each. Hierarchical's second level, which lies
    /// in GPU memory, takes at most `second_level_budget` bytes.
    ///
    /// # Errors
    /// If a width is not 4 or 8 or there are more than 4 payloads; if the scratchpad is too small for the fanout, or the
    /// budget for the second level. The error says how much is needed.
    pub fn new(
        kernels: &Kernels,
        algorithm: Algorithm,
        key: KeyWidth,
        payloads: &[u64],
        radix: Radix,
        tuples: u64,
        second_level_budget: u64,
    ) -> Result<Self> {
        if payloads.len() > MAX_PAYLOADS || payloads.iter().any(|width| ![4, 8].contains(width)) {
            return Err(Error::Invalid(format!(
                "payload columns of {payloads:?} bytes: at most {MAX_PAYLOADS} of 4 or 8 bytes each move along with a key"
            )));
        }
        let fanout = u64::from(radix.fanout());
        let tuple = key.bytes() + payloads.iter().sum::<u64>();
        let (properties, share) = (kernels.device().properties(), kernels.share());
        let kernel = kernels.function(&kernel_name(algorithm, key, payloads.len()))?;
        let available = properties.scratchpad_per_block.saturating_sub(kernel.static_scratchpad()?);
        let widest = payloads.iter().copied().chain([key.bytes()]).max().unwrap_or(8);
        // Buffers start at 16 bytes, and the columns in them at 8.
        let (state, smallest, what) = match algorithm {
            Algorithm::Standard => (STANDARD_STATE, 0, "Standard partitioning of this fanout"),
            Algorithm::Linear => (LINEAR_STATE, u64::from(THREADS) * (tuple + 4), "Linear partitioning of this fanout"),
            Algorithm::Shared => (SHARED_STATE, fanout * 2 * tuple + 16, "Shared partitioning of this fanout"),
            Algorithm::Hierarchical => {
                (HIERARCHICAL_STATE, fanout * 2 * tuple + 16, "Hierarchical partitioning of this fanout")
            }
        };
        let needed = fanout * state + smallest;
        if needed > available {
            return Err(Error::TooSmall { what, needed, of: "scratchpad memory a block", available });
        }
        let left = available - fanout * state;
        let (buffer_tuples, scratchpad) = match algorithm {
            Algorithm::Standard => (0, fanout * state),
            Algorithm::Linear => {
                let threads = u64::from(THREADS);
                let batch = (left / (tuple + 4) / threads).min(LINEAR_TUPLES_PER_THREAD) * threads;
                (batch, fanout * state + batch * (tuple + 4))
            }
            Algorithm::Shared | Algorithm::Hierarchical => {
                // Whole lines of every column; more than four lines of the widest gain nothing.
                let most = 4 * LINE / widest.min(4);
                let buffer = previous_power_of_two((left - 16) / (fanout * tuple)).min(most);
                (buffer, fanout * state + 16 + fanout * buffer * tuple)
            }
        };
        let run = match algorithm {
            Algorithm::Hierarchical | Algorithm::Shared => MIN_RUN / widest,
            Algorithm::Standard | Algorithm::Linear => 32,
        };
        let per_multiprocessor = (properties.scratchpad_per_multiprocessor / (scratchpad + 1024)).clamp(1, 4) as u32;
        let most_blocks = share.blocks(per_multiprocessor).into();
        let mut blocks = (tuples / (fanout * run)).clamp(1, most_blocks);
        let mut second_level_tuples = 0;
        if algorithm == Algorithm::Hierarchical {
            let buffers = fanout + u64::from(THREADS / 32);
            // At least a line of every column, and as much as a buffer of the first level.
            let fewest = buffer_tuples.max(LINE / 4);
            let needed = buffers * fewest * tuple;
            if needed > second_level_budget {
                return Err(Error::TooSmall {
                    what: "the second level of Hierarchical partitioning",
                    needed,
                    of: "GPU memory",
                    available: second_level_budget,
                });
            }
            let wanted = fewest.max(SECOND_LEVEL / widest);
            // Longer buffers are worth more than more blocks only up to a point: shorten them before blocks get few.
            second_level_tuples = wanted;
            while second_level_tuples > fewest && blocks * buffers * second_level_tuples * tuple > second_level_budget {
                second_level_tuples /= 2;
            }
            blocks = blocks.min(second_level_budget / (buffers * second_level_tuples * tuple));
        }
        // A block counts in 32 bits.
        let blocks = blocks.max(tuples.div_ceil(u64::from(u32::MAX) - 1)).max(1);
        let chunk = tuples.div_ceil(blocks).next_multiple_of(32).max(32);
        Ok(Self {
            algorithm,
            key,
            payloads: payloads.to_vec(),
            radix,
            tuples,
            blocks: u32::try_from(blocks)
                .map_err(|_| Error::Invalid(format!("{tuples} tuples are more than one pass partitions")))?,
            threads: THREADS,
            chunk,
            buffer_tuples,
            second_level_tuples,
            scratchpad,
            share,
        })
    }

    /// Every partition starts at a multiple of this many tuples: a line of every column, and a buffer.
    pub fn alignment(&self) -> u64 {
        (LINE / 4).max(self.buffer_tuples_if_combining()).max(self.second_level_tuples)
    }

    fn buffer_tuples_if_combining(&self) -> u64 {
        match self.algorithm {
            Algorithm::Shared | Algorithm::Hierarchical => self.buffer_tuples,
            Algorithm::Standard | Algorithm::Linear => 0,
        }
    }

    /// Tuples that output columns must have room for: all, and what partitions lose by starting on a line.
    pub fn output_tuples(&self) -> u64 {
        self.tuples + u64::from(self.radix.fanout()) * (self.alignment() - 1)
    }

    /// Tuples of the input.
    pub fn tuples(&self) -> u64 {
        self.tuples
    }

    /// The bits that choose the partition.
    pub fn radix(&self) -> Radix {
        self.radix
    }

    /// Blocks that share the input.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Tuples of a block's chunk: the first block has the first so many, and the last what is left, if anything is.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Whether every buffer that leaves for the output is whole lines, but for the ends of a block's share.
    pub fn writes_whole_lines(&self) -> bool {
        let narrowest = self.payloads.iter().copied().chain([self.key.bytes()]).min().unwrap_or(8);
        match self.algorithm {
            Algorithm::Shared => self.buffer_tuples * narrowest >= LINE,
            Algorithm::Hierarchical => self.second_level_tuples * narrowest >= LINE,
            Algorithm::Standard | Algorithm::Linear => false,
        }
    }

    /// Bytes of GPU memory that the second level takes.
    pub fn second_level_bytes(&self) -> u64 {
        let buffers = u64::from(self.radix.fanout() + self.threads / 32);
        let tuple = self.key.bytes() + self.payloads.iter().sum::<u64>();
        u64::from(self.blocks) * buffers * self.second_level_tuples * tuple
    }
}

fn previous_power_of_two(number: u64) -> u64 {
    match number {
        0 => 0,
        number => 1 << number.ilog2(),
    }
}
