//! How a hash partition is divided among the blocks of a launch.

use overspill_machine::driver::{Function, LaunchShape};
use overspill_machine::{Error, Result};

use crate::Kernels;

const THREADS: u32 = 512;
const WARPS: u64 = THREADS as u64 / 32;
/// Bytes of scratchpad memory for each partition, as `ScatterBatch` declares.
const STATE: u64 = 12 + 2 * WARPS;
/// Bytes for each row besides its value.
const ROW_STATE: u64 = 2;
/// The alignment of values in scratchpad memory.
const ALIGNMENT: u64 = 16;
/// Equals `kMaxTurns`.
const MOST_TURNS: u64 = 16;
/// Blocks that share a multiprocessor: while one waits for a column, the other ranks its rows.
const BLOCKS_TOGETHER: u32 = 2;
/// Bytes of scratchpad memory that the driver takes for each block.
const OF_THE_DRIVER: u64 = 1 << 10;
/// The largest chunk: a block counts its rows in 32 bits.
const MOST_ROWS: u64 = u32::MAX as u64 - 31;

/// The shape of both passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub blocks: u32,
    /// Rows of each block. The last blocks may have fewer.
    pub chunk: u64,
    /// Rows of a batch that each thread takes.
    pub turns: u32,
    /// Bytes of the second pass.
    pub scratchpad: u64,
}

impl Layout {
    /// A batch takes as much scratchpad memory as two blocks of a multiprocessor share, so that runs of neighbours are long. `widest` is
    /// the width of the widest column.
    pub fn new(kernels: &Kernels, scatter: &Function, partitions: u32, rows: u64, widest: u64) -> Result<Self> {
        let (properties, share) = (kernels.device().properties(), kernels.share());
        let state = u64::from(partitions) * STATE + ALIGNMENT;
        let turn = u64::from(THREADS) * (ROW_STATE + widest);
        let fixed = scatter.static_scratchpad();
        let available = properties.scratchpad_per_block.saturating_sub(fixed);
        let needed = state + turn;
        if needed > available {
            let what = "a hash partition of so many partitions";
            return Err(Error::TooSmall { what, needed, of: "scratchpad memory a block", available });
        }
        let together = u64::from(share.per_multiprocessor(BLOCKS_TOGETHER));
        let fair = (properties.scratchpad_per_multiprocessor / together).saturating_sub(OF_THE_DRIVER + fixed);
        let room = if fair < needed { available } else { fair.min(available) };
        let turns = ((room - state) / turn).min(MOST_TURNS);
        let scratchpad = state + turns * turn;
        let most_blocks = u64::from(share.blocks(scatter.resident_blocks(THREADS, scratchpad)?));
        let blocks = rows.div_ceil(turns * u64::from(THREADS)).clamp(1, most_blocks).max(rows.div_ceil(MOST_ROWS));
        let chunk = rows.div_ceil(blocks).next_multiple_of(32);
        let blocks = u32::try_from(blocks)
            .map_err(|_| Error::Invalid(format!("{rows} rows are more than one pass partitions")))?;
        Ok(Self { blocks, chunk, turns: turns as u32, scratchpad })
    }

    /// A launch of all blocks. Both passes divide the rows alike, so no share reduces their number.
    pub fn shape(&self, kernels: &Kernels, scratchpad: u64) -> LaunchShape {
        LaunchShape { blocks: self.blocks, ..kernels.share().shape(1, THREADS, scratchpad) }
    }
}
