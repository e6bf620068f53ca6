//! A memory pool that refuses one request.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation, UnboundedMemoryPool};

/// Grants every request but the `refused`-th.
#[derive(Debug)]
pub struct FaultyPool {
    inner: UnboundedMemoryPool,
    requests: AtomicUsize,
    refused: usize,
}

impl FaultyPool {
    pub fn new(refused: usize) -> Self {
        Self { inner: UnboundedMemoryPool::default(), requests: AtomicUsize::new(0), refused }
    }

    /// Whether a request was refused.
    pub fn fired(&self) -> bool {
        self.requests.load(Ordering::Relaxed) >= self.refused
    }
}

impl Display for FaultyPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

impl MemoryPool for FaultyPool {
    fn name(&self) -> &str {
        "faulty"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if self.requests.fetch_add(1, Ordering::Relaxed) + 1 == self.refused {
            return Err(resources_datafusion_err!("the pool refuses this one request, for the test"));
        }
        self.inner.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Infinite
    }
}
