//! The memory of a query.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

use crate::memory::{HeadroomPool, limit_of};
use crate::size::Size;

/// The part of a session's memory that a query may use: a pool in the session's pool.
///
/// The operators of a query leave room for each other within its grant, and not for those of other queries. The grant is a limit, not a
/// reservation: the session's pool counts what the query uses, as one consumer. If a grant shrinks, what is held stays held.
pub(crate) struct GrantPool {
    /// The grant.
    pool: HeadroomPool,
    /// The number of queries that share the session's memory.
    sharing: AtomicUsize,
    /// What the query holds of the session's memory.
    held: MemoryReservation,
}

impl GrantPool {
    /// The part of `session` of a query with this name, which may use all of it until it must share.
    pub fn new(query: &str, session: &Arc<dyn MemoryPool>, limit: usize) -> Self {
        Self {
            pool: HeadroomPool::new(limit),
            sharing: AtomicUsize::new(1),
            held: MemoryConsumer::new(query).register(session),
        }
    }

    /// Changes the grant to `limit` bytes, as `sharing` queries share the session's memory.
    pub fn set_limit(&self, limit: usize, sharing: usize) {
        self.pool.set_limit(limit);
        self.sharing.store(sharing, Ordering::Relaxed);
    }

    /// Bytes that it may hold.
    pub fn limit(&self) -> usize {
        limit_of(&self.pool).unwrap_or(usize::MAX)
    }

    fn explained(&self, refusal: DataFusionError) -> DataFusionError {
        let sharing = self.sharing.load(Ordering::Relaxed);
        match refusal {
            DataFusionError::ResourcesExhausted(text) if sharing > 1 => DataFusionError::ResourcesExhausted(format!(
                "{text} The query may use {}, as {sharing} queries share the memory",
                Size(self.limit())
            )),
            other => other,
        }
    }
}

impl MemoryPool for GrantPool {
    fn name(&self) -> &str {
        "grant"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
        self.held.grow(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
        self.held.shrink(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.pool.try_grow(reservation, additional).map_err(|refusal| self.explained(refusal))?;
        self.held.try_grow(additional).map_err(|refusal| {
            self.pool.shrink(reservation, additional);
            self.explained(refusal)
        })
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}

impl fmt::Debug for GrantPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantPool").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl fmt::Display for GrantPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(limit: usize) -> Arc<dyn MemoryPool> {
        Arc::new(HeadroomPool::new(limit))
    }

    #[test]
    fn a_query_is_refused_what_exceeds_its_grant_or_the_sessions_memory() {
        let session = session(1000);
        let [one, two] = ["Query 1", "Query 2"].map(|name| Arc::new(GrantPool::new(name, &session, 1000)));
        let [of_one, of_two] = [&one, &two].map(|grant| {
            let grant: Arc<dyn MemoryPool> = Arc::clone(grant) as _;
            MemoryConsumer::new("sort").register(&grant)
        });
        of_one.try_grow(700).unwrap();
        [&one, &two].iter().for_each(|grant| grant.set_limit(500, 2));
        assert_eq!((one.reserved(), two.reserved(), session.reserved()), (700, 0, 700));
        // The other still holds more than its grant.
        let refusal = of_two.try_grow(400).unwrap_err().strip_backtrace();
        assert!(refusal.contains("Query 1") && refusal.ends_with("as 2 queries share the memory"), "{refusal}");
        assert_eq!((two.reserved(), session.reserved()), (0, 700));
        let refusal = of_one.try_grow(1).unwrap_err().strip_backtrace();
        assert!(refusal.contains("sort holds 700 B") && refusal.contains("may use 500 B"), "{refusal}");
        of_one.shrink(300);
        of_two.try_grow(500).unwrap();
        drop((of_one, of_two));
        assert_eq!((one.reserved(), two.reserved(), session.reserved()), (0, 0, 0));
    }

    #[test]
    fn a_refusal_is_one_of_memory() {
        let session = session(1000);
        let grant: Arc<dyn MemoryPool> = Arc::new(GrantPool::new("Query 1", &session, 100));
        let refusal = MemoryConsumer::new("sort").register(&grant).try_grow(101).unwrap_err();
        assert!(matches!(refusal, DataFusionError::ResourcesExhausted(_)), "{refusal}");
    }
}
