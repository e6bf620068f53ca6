//! Accounts of the memory that a host lends to a join.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;

/// What memory is requested for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Rows and hash tables. A refusal makes the join spill.
    State,
    /// The working buffers without which a spilling join cannot continue. A refusal ends the join.
    Floor,
}

/// Lends memory to a join.
pub trait MemoryHost: fmt::Debug + Send + Sync {
    /// Lends `bytes` more bytes in addition to the `held` bytes already lent. The error states why it cannot.
    fn try_grow(&self, bytes: usize, held: usize, purpose: Purpose) -> Result<()>;
    /// Lends `bytes` more bytes even if that exceeds the budget.
    fn grow(&self, bytes: usize);
    /// Takes back `bytes` of the `held` bytes that it has lent.
    fn shrink(&self, bytes: usize, held: usize);
}

/// Lends all that is asked for.
#[derive(Debug)]
pub struct Unlimited;

impl MemoryHost for Unlimited {
    fn try_grow(&self, _: usize, _: usize, _: Purpose) -> Result<()> {
        Ok(())
    }

    fn grow(&self, _: usize) {}

    fn shrink(&self, _: usize, _: usize) {}
}

/// The memory of one hash table that is being built or probed, and of the spilling around it.
///
/// Once it has spilled, a join keeps a *floor* of memory for its working buffers, so that it can continue even if others have
/// taken all other memory.
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
    /// Creates an account that holds nothing yet.
    pub fn new(host: Box<dyn MemoryHost>) -> Arc<Self> {
        Arc::new(Self { host, account: Mutex::default() })
    }

    /// A grant of no bytes, to grow later.
    pub fn grant(self: &Arc<Self>) -> Grant {
        Grant { memory: Arc::clone(self), bytes: 0 }
    }

    /// Ensures that at least `floor` bytes are held, from now until the account is closed.
    ///
    /// # Errors
    /// Fails if the host does not lend the bytes.
    pub fn raise_floor(&self, floor: usize) -> Result<()> {
        let mut account = self.account();
        if account.held < floor {
            self.host.try_grow(floor - account.held, account.held, Purpose::Floor)?;
            account.held = floor;
        }
        account.floor = account.floor.max(floor);
        Ok(())
    }

    /// Bytes granted now.
    pub fn used(&self) -> usize {
        self.account().used
    }

    fn try_grow(&self, bytes: usize) -> Result<()> {
        let mut account = self.account();
        let used = account.used + bytes;
        if used > account.held {
            self.host.try_grow(used - account.held, account.held, Purpose::State)?;
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
        // The numbers are consistent after every statement, so a panic elsewhere has not corrupted them.
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

/// Bytes granted to one owner; dropping the grant returns them.
#[derive(Debug)]
pub struct Grant {
    memory: Arc<UnitMemory>,
    bytes: usize,
}

impl Grant {
    /// Requests `bytes` more bytes.
    pub fn try_grow(&mut self, bytes: usize) -> Result<()> {
        self.memory.try_grow(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes `bytes` more bytes even if that exceeds the budget: for memory that is already in use or without which the join
    /// cannot continue.
    pub fn grow(&mut self, bytes: usize) {
        self.memory.grow(bytes);
        self.bytes += bytes;
    }

    /// Returns `bytes` bytes, or all if the grant has fewer.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.memory.shrink(bytes);
        self.bytes -= bytes;
    }

    /// A grant of no bytes from the same account.
    pub fn another(&self) -> Self {
        self.memory.grant()
    }

    /// Bytes granted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.memory.shrink(self.bytes);
    }
}
