//! Materializes rows by their numbers (paper 4, section 3.3).

use overspill_machine::Result;
use overspill_machine::driver::{Arguments, Function, Stream};
use overspill_machine::memory::{DeviceBuffer, View};

use crate::Kernels;
use crate::columns::{MovedColumn, moved_columns};
use crate::share::Share;

const THREADS: u32 = 256;
/// Rows of a block at a time: each thread takes as many as `kGatheredTogether`.
const ROWS_OF_BLOCK: u64 = THREADS as u64 * 4;

/// Numbers of rows in GPU memory, 4 bytes each.
#[derive(Debug)]
pub struct RowNumbers {
    numbers: DeviceBuffer,
    count: u64,
    /// The rows of the table: each number is less.
    rows: u64,
}

impl RowNumbers {
    /// Memory for `count` numbers of the rows of a table with `rows` rows. A kernel must write them before they are used.
    pub(crate) fn unwritten(stream: &Stream, count: u64, rows: u64) -> Result<Self> {
        Ok(Self { numbers: DeviceBuffer::new(stream.device(), count.saturating_mul(4))?, count, rows })
    }

    pub(crate) fn address(&mut self) -> u64 {
        self.numbers.view_mut().address()
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The numbers, for kernels that read them.
    pub fn view(&self) -> View<'_> {
        self.numbers.view()
    }

    /// Waits for the stream, and copies the numbers to CPU memory.
    ///
    /// # Errors
    /// If the copy fails.
    pub fn read(&self, stream: &Stream) -> Result<Vec<u32>> {
        self.numbers.read(stream, usize::try_from(self.count).unwrap_or(usize::MAX))
    }
}

/// Copies rows of tables by their numbers.
#[derive(Debug)]
pub struct Gather {
    gather: Function,
    share: Share,
}

impl Gather {
    /// # Errors
    /// If the kernel cannot be loaded.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        Ok(Self { gather: kernels.function("gather")?, share: kernels.share() })
    }

    /// Writes to each column the values of the rows with these numbers, in their order, and waits for completion. All columns in one
    /// launch, which reads the numbers once. `O(n)`.
    ///
    /// # Errors
    /// If a column has fewer rows than the table that the numbers are of, there is no room for as many values as there are numbers, a
    /// column is misaligned, of another width than 1, 2, 4, 8 or 16 bytes, or overlaps one that is written, or the device fails.
    pub fn run(&self, stream: &Stream, rows: &RowNumbers, columns: &mut [MovedColumn<'_>]) -> Result<()> {
        let moved = moved_columns(columns, rows.rows, rows.count, &[])?;
        if rows.count == 0 || moved.is_empty() {
            return Ok(());
        }
        let list = DeviceBuffer::with_values(stream, &moved)?;
        let most = self.share.blocks(self.gather.resident_blocks(THREADS, 0)?);
        let blocks = u32::try_from(rows.count.div_ceil(ROWS_OF_BLOCK)).unwrap_or(u32::MAX).min(most);
        let shape = self.share.shape(blocks, THREADS, 0);
        let (numbers, columns, column_count) =
            (rows.numbers.view().address(), list.view().address(), moved.len() as u64);
        let arguments = Arguments::default().with(&numbers).with(&rows.count).with(&columns).with(&column_count);
        // SAFETY: the kernel takes these arguments. Every number is below the number of rows, which each column has been found to have,
        // and the places have been found to have room for all numbers. The list and what is borrowed live until the stream is done,
        // which is waited for here, also after an error.
        let gathered = unsafe { self.gather.launch(stream, shape, arguments) };
        stream.finish(gathered, || stream.synchronize())
    }
}
