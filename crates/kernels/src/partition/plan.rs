//! Sizes a partitioner for a device: its blocks and buffers, and errors if memory is too small.

use overspill_machine::{Error, Result};

use crate::share::Share;
use crate::{Kernels, Radix};

/// The size in bytes of a GPU's write transactions to CPU memory.
const LINE: u64 = 128;
pub(super) const MAX_PAYLOADS: usize = 4;
/// The limit of `partition/linear.cuh`.
const LINEAR_TUPLES_PER_THREAD: u64 = 16;
/// Bytes of state per partition in scratchpad memory, as the headers declare.
const STANDARD_STATE: u64 = 12;
const LINEAR_STATE: u64 = 16;
const SHARED_STATE: u64 = 12;
const HIERARCHICAL_STATE: u64 = 16;
/// Threads of a block. Kernels use up to 128 registers per thread; a multiprocessor has 65536.
const THREADS: u32 = 512;
/// The minimum bytes of a column in a block's share of a partition. The ends of a shorter share leave too many lines
/// incomplete.
const MIN_RUN: u64 = 4096;
/// The same if the output is in GPU memory, whose cache completes the lines that several blocks write.
const MIN_RUN_WITHIN_GPU: u64 = LINE;
/// Wanted bytes of the widest column in a second-level buffer, per partition and block, if memory allows.
const SECOND_LEVEL: u64 = 512;

/// The algorithm that moves tuples to their partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Writes each tuple directly to its place.
    Standard,
    /// Sorts tuples in batches.
    Linear,
    /// Combines writes in scratchpad memory.
    Shared,
    /// Combines writes in scratchpad and GPU memory.
    Hierarchical,
}

impl Algorithm {
    /// All four algorithms.
    pub const ALL: [Self; 4] = [Self::Standard, Self::Linear, Self::Shared, Self::Hierarchical];

    /// The name used by kernels and benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Linear => "linear",
            Self::Shared => "shared",
            Self::Hierarchical => "hierarchical",
        }
    }
}

/// The width of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyWidth {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl KeyWidth {
    /// The width in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// The parameters and memory needs of a partitioner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionPlan {
    pub(super) algorithm: Algorithm,
    pub(super) key: KeyWidth,
    /// The width of each payload in bytes, 4 or 8.
    pub(super) payloads: Vec<u64>,
    pub(super) radix: Radix,
    pub(super) tuples: u64,
    pub(super) blocks: u32,
    /// The number of blocks that the device runs at once.
    most_blocks: u64,
    pub(super) threads: u32,
    pub(super) chunk: u64,
    pub(super) buffer_tuples: u64,
    pub(super) second_level_tuples: u64,
    pub(super) scratchpad: u64,
    pub(super) share: Share,
    /// Every partition starts at a multiple of this many tuples.
    alignment: u64,
}

/// The name of the kernel for an algorithm, key width and number of payloads.
pub(super) fn kernel_name(algorithm: Algorithm, key: KeyWidth, payloads: usize) -> String {
    format!("partition_{}_u{}_{payloads}", algorithm.name(), key.bytes() * 8)
}

/// The number of blocks, and the tuples of a second-level buffer, that fit the budget. Each of `blocks` blocks takes
/// `bytes_of_tuple` bytes for each of `fewest` to `wanted` tuples.
fn second_level(blocks: u64, fewest: u64, wanted: u64, bytes_of_tuple: u64, budget: u64) -> Result<(u64, u64)> {
    let needed = fewest * bytes_of_tuple;
    if needed > budget {
        return Err(Error::TooSmall {
            what: "the second level of Hierarchical partitioning",
            needed,
            of: "GPU memory",
            available: budget,
        });
    }
    // Longer buffers are worth more than more blocks only up to a point: shorten them before reducing the number of blocks.
    let mut tuples = wanted;
    while tuples > fewest && blocks * tuples * bytes_of_tuple > budget {
        tuples /= 2;
    }
    Ok((blocks.min(budget / (tuples * bytes_of_tuple)), tuples))
}

impl PartitionPlan {
    /// Plans to partition `tuples` tuples with payload columns of 4 or 8 bytes each. Hierarchical's second level takes at
    /// most `second_level_budget` bytes of GPU memory.
    ///
    /// # Errors
    /// If a width is not 4 or 8, there are more than 4 payloads, the scratchpad is too small for the fanout, or the budget is
    /// too small for the second level. The error says how much memory is needed.
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
        let available = properties.scratchpad_per_block.saturating_sub(kernel.static_scratchpad());
        let widest = payloads.iter().copied().chain([key.bytes()]).max().unwrap_or(8);
        // Buffers are aligned to 16 bytes, and their columns to 8.
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
                // Whole lines of every column. Buffers longer than four lines of the widest column gain nothing.
                let most = 4 * LINE / widest.min(4);
                let fitting: u64 = (left - 16) / (fanout * tuple);
                let buffer = fitting.checked_ilog2().map_or(0, |bits| 1 << bits).min(most);
                (buffer, fanout * state + 16 + fanout * buffer * tuple)
            }
        };
        let run = match algorithm {
            Algorithm::Hierarchical | Algorithm::Shared => MIN_RUN / widest,
            Algorithm::Standard | Algorithm::Linear => 32,
        };
        let most_blocks: u64 = share.blocks(kernel.resident_blocks(THREADS, scratchpad)?).into();
        let mut blocks = (tuples / (fanout * run)).clamp(1, most_blocks);
        let mut second_level_tuples = 0;
        if algorithm == Algorithm::Hierarchical {
            // At least a line of every column, and at least the size of a first-level buffer.
            let fewest = buffer_tuples.max(LINE / 4);
            let wanted = fewest.max(SECOND_LEVEL / widest);
            let bytes_of_tuple = (fanout + u64::from(THREADS / 32)) * tuple;
            (blocks, second_level_tuples) = second_level(blocks, fewest, wanted, bytes_of_tuple, second_level_budget)?;
        }
        // At least a line of every column and a buffer.
        let combines = matches!(algorithm, Algorithm::Shared | Algorithm::Hierarchical);
        let alignment = (LINE / 4).max(if combines { buffer_tuples } else { 0 }).max(second_level_tuples);
        let plan = Self {
            algorithm,
            key,
            payloads: payloads.to_vec(),
            radix,
            tuples,
            blocks: 0,
            most_blocks,
            threads: THREADS,
            chunk: 0,
            buffer_tuples,
            second_level_tuples,
            scratchpad,
            share,
            alignment,
        };
        plan.with_blocks(blocks)
    }

    /// Divides the input among about this many blocks.
    fn with_blocks(self, blocks: u64) -> Result<Self> {
        let tuples = self.tuples;
        // A block counts in 32 bits.
        let blocks = blocks.max(tuples.div_ceil(u64::from(u32::MAX) - 1)).max(1);
        let chunk = tuples.div_ceil(blocks).next_multiple_of(32).max(32);
        let blocks = u32::try_from(blocks)
            .map_err(|_| Error::Invalid(format!("{tuples} tuples are more than one pass partitions")))?;
        Ok(Self { blocks, chunk, ..self })
    }

    /// Divides the input among more blocks, for output in GPU memory. Across a link a block should write long runs of tuples to a
    /// partition, for which a small input has few blocks. Within GPU memory runs may be short.
    ///
    /// # Errors
    /// If the algorithm has a second level, whose memory is planned for as many blocks as there are.
    pub fn within_gpu(self) -> Result<Self> {
        if self.algorithm == Algorithm::Hierarchical {
            return Err(Error::Invalid(format!("{} partitioning with blocks for GPU memory", self.algorithm)));
        }
        let widest = self.payloads.iter().copied().chain([self.key.bytes()]).max().unwrap_or(8);
        let run = u64::from(self.radix.fanout()) * (MIN_RUN_WITHIN_GPU / widest);
        let blocks = (self.tuples / run).clamp(1, self.most_blocks);
        self.with_blocks(blocks)
    }

    /// Lets each partition begin where the one before it ends, for output that is read as a whole in the order of partitions.
    ///
    /// # Errors
    /// If the algorithm combines writes, which needs partitions that start with a buffer.
    pub fn without_gaps(self) -> Result<Self> {
        match self.algorithm {
            Algorithm::Standard | Algorithm::Linear => Ok(Self { alignment: 1, ..self }),
            Algorithm::Shared | Algorithm::Hierarchical => {
                Err(Error::Invalid(format!("{} partitioning without gaps between partitions", self.algorithm)))
            }
        }
    }

    /// Every partition starts at a multiple of this many tuples.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Capacity of the output columns in tuples: all tuples, and the padding at the start of partitions.
    pub fn output_tuples(&self) -> u64 {
        self.tuples + u64::from(self.radix.fanout()) * (self.alignment() - 1)
    }

    /// The number of input tuples.
    pub fn tuples(&self) -> u64 {
        self.tuples
    }

    /// The bits that choose the partition.
    pub fn radix(&self) -> Radix {
        self.radix
    }

    /// The number of blocks that share the input.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Tuples in a block's chunk. Blocks take chunks in order; the last blocks may have fewer tuples or none.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    pub(super) fn second_level_bytes(&self) -> u64 {
        let buffers = u64::from(self.radix.fanout() + self.threads / 32);
        let tuple = self.key.bytes() + self.payloads.iter().sum::<u64>();
        u64::from(self.blocks) * buffers * self.second_level_tuples * tuple
    }
}
