//! The memory that the state of a join may hold.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array, make_array};
use arrow::compute::take;
use arrow::datatypes::DataType;

use crate::error::Result;

/// What memory is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Rows and hash tables. A refusal makes the join spill.
    State,
    /// The working buffers without which a join that spills cannot go on. A refusal ends it.
    Floor,
}

/// Whoever lends memory to a join.
pub trait MemoryHost: fmt::Debug + Send + Sync {
    /// Lends so many more bytes, or says in the error why it cannot.
    fn try_grow(&self, bytes: usize, purpose: Purpose) -> Result<()>;
    /// Lends so many more bytes even if that exceeds the budget.
    fn grow(&self, bytes: usize);
    /// Takes back so many of the `held` bytes that it has lent.
    fn shrink(&self, bytes: usize, held: usize);
}

/// The memory of one hash table under construction or in use, with what is spilled around it.
///
/// Once it has spilled, a join keeps a *floor* of memory for its working buffers, so that it can go on even if others
/// have taken all the rest.
#[derive(Debug)]
pub struct UnitMemory {
    host: Box<dyn MemoryHost>,
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    /// Bytes granted.
    used: usize,
    /// Bytes lent by the host: the larger of `used` and `floor`.
    held: usize,
    floor: usize,
}

impl UnitMemory {
    /// An account that holds nothing yet.
    pub fn new(host: Box<dyn MemoryHost>) -> Arc<Self> {
        Arc::new(Self { host, account: Mutex::default() })
    }

    /// A grant of no bytes, to grow later.
    pub fn grant(self: &Arc<Self>) -> Grant {
        Grant { memory: Arc::clone(self), bytes: 0 }
    }

    /// Makes sure that so many bytes are held, now and until the account is closed.
    ///
    /// # Errors
    /// Fails if the host does not lend them.
    pub fn raise_floor(&self, floor: usize) -> Result<()> {
        let mut account = self.account();
        if account.held < floor {
            self.host.try_grow(floor - account.held, Purpose::Floor)?;
            account.held = floor;
        }
        account.floor = account.floor.max(floor);
        Ok(())
    }

    /// Bytes granted at this moment.
    pub fn used(&self) -> usize {
        self.account().used
    }

    fn try_grow(&self, bytes: usize) -> Result<()> {
        let mut account = self.account();
        let used = account.used + bytes;
        if used > account.held {
            self.host.try_grow(used - account.held, Purpose::State)?;
            account.held = used;
        }
        account.used = used;
        Ok(())
    }

    fn grow(&self, bytes: usize) {
        let mut account = self.account();
        account.used += bytes;
        if account.used > account.held {
            self.host.grow(account.used - account.held);
            account.held = account.used;
        }
    }

    fn shrink(&self, bytes: usize) {
        let mut account = self.account();
        account.used -= bytes;
        let held = account.used.max(account.floor);
        if held < account.held {
            self.host.shrink(account.held - held, account.held);
            account.held = held;
        }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        // The numbers are consistent between any two statements, so a panic elsewhere has not spoilt them.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnitMemory {
    fn drop(&mut self) {
        let held = self.account().held;
        if held > 0 {
            self.host.shrink(held, held);
        }
    }
}

/// Bytes granted to one owner; they return when it is dropped.
#[derive(Debug)]
pub struct Grant {
    memory: Arc<UnitMemory>,
    bytes: usize,
}

impl Grant {
    /// Asks for so many more bytes.
    pub fn try_grow(&mut self, bytes: usize) -> Result<()> {
        self.memory.try_grow(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes so many more bytes even if that exceeds the budget: for what exists already, or must exist to go on.
    pub fn grow(&mut self, bytes: usize) {
        self.memory.grow(bytes);
        self.bytes += bytes;
    }

    /// Returns so many bytes, or all if there are fewer.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.memory.shrink(bytes);
        self.bytes -= bytes;
    }

    /// The bytes granted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.memory.shrink(self.bytes);
    }
}

/// The bytes a batch keeps alive.
pub fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| column.get_array_memory_size()).sum()
}

/// The bytes of one row, on average; at least 1.
pub fn row_bytes(batch: &RecordBatch) -> usize {
    (batch_bytes(batch) / batch.num_rows().max(1)).max(1)
}

/// The batch with every column copied that keeps alive far more than its own rows: slices of larger arrays, and views
/// into buffers that are mostly somebody else's.
pub fn compact(batch: RecordBatch) -> Result<RecordBatch> {
    let mut compacted: Option<Vec<ArrayRef>> = None;
    for (index, column) in batch.columns().iter().enumerate() {
        if let Some(copy) = compact_column(column)? {
            compacted.get_or_insert_with(|| batch.columns().to_vec())[index] = copy;
        }
    }
    Ok(match compacted {
        // The columns have the lengths and types they had before.
        Some(columns) => RecordBatch::try_new(batch.schema(), columns)?,
        None => batch,
    })
}

/// The most bytes that a column may keep alive in vain before it is copied.
const COMPACTION_SLACK: usize = 16 * 1024;

fn compact_column(column: &ArrayRef) -> Result<Option<ArrayRef>> {
    let held = column.get_array_memory_size();
    let own = match column.data_type() {
        DataType::Utf8View => column.as_string_view().total_buffer_bytes_used() + column.len() * 16,
        DataType::BinaryView => column.as_binary_view().total_buffer_bytes_used() + column.len() * 16,
        _ => column.to_data().get_slice_memory_size()?,
    };
    if held <= 2 * own + COMPACTION_SLACK {
        return Ok(None);
    }
    Ok(Some(match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()),
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        // Taking all rows copies them.
        _ => {
            let copy = take(column, &UInt32Array::from_iter_values(0..column.len() as u32), None)?;
            make_array(copy.to_data())
        }
    }))
}
