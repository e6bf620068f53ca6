//! The memory of one execution of a join, lent by DataFusion's memory pool.

use std::sync::{Arc, OnceLock};

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::physical_plan::metrics::Gauge;
use overspill_join::JoinError;
use overspill_join::memory::{MemoryHost, Purpose, UnitMemory};
use parking_lot::Mutex;

use crate::size::Size;

/// A join may hold at most this many times the memory that is still free. Each of its build sides may hold at most this many
/// times what remains of the join's memory.
///
/// With `n` joins that want all they can get, each thus ends up with `SHARE / (1 + n * SHARE)` of the pool, and something
/// always remains for the next join, sort or aggregate (dynamic thresholds: Choudhury and Hahne, 1998). In the same way the
/// build sides of a join leave room for each other, and a large one still gets more than small ones.
const SHARE: usize = 3;

/// The number of further joins like itself for which a join leaves the floors free.
const OTHER_JOINS: usize = 2;

/// All memory of one execution of a join.
///
/// Its state is one spillable consumer of the pool, registered when the join first needs memory. Its working buffers, which
/// it needs even to spill, are another consumer that is not spillable.
#[derive(Debug)]
pub(crate) struct JoinMemory {
    pool: Arc<dyn MemoryPool>,
    /// The name of the consumers.
    name: String,
    state: OnceLock<MemoryReservation>,
    floors: OnceLock<MemoryReservation>,
    account: Mutex<Account>,
    /// `overspill.join_memory_limit`, or the largest number.
    limit: usize,
    /// The floor of each unit.
    floor: usize,
    /// The number of units that may need their floor.
    units: usize,
    /// How many of them read a build side.
    builders: usize,
    peak: Gauge,
}

#[derive(Debug, Default)]
struct Account {
    /// Bytes lent to units.
    used: usize,
    /// The part of `used` that was lent as floors.
    floors: usize,
    /// Bytes kept for the floors of units that have not requested theirs.
    kept: usize,
    /// Whether the floors have been secured.
    secured: bool,
}

impl JoinMemory {
    pub fn new(
        pool: &Arc<dyn MemoryPool>,
        name: String,
        limit: usize,
        floor: usize,
        units: usize,
        builders: usize,
        peak: Gauge,
    ) -> Arc<Self> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        Arc::new(Self {
            pool: Arc::clone(pool),
            name,
            state: OnceLock::new(),
            floors: OnceLock::new(),
            account: Mutex::default(),
            limit,
            floor,
            units,
            builders,
            peak,
        })
    }

    /// The account of a unit: a hash table, or a stream that probes it.
    pub fn unit(self: &Arc<Self>) -> Arc<UnitMemory> {
        UnitMemory::new(Box::new(UnitHost { join: Arc::clone(self), floor: Mutex::new(0) }))
    }

    /// The bytes that each of `units` units may hold if all hold the same amount.
    pub fn share(&self, units: usize) -> usize {
        let used = self.account.lock().used;
        let total = match self.pool.memory_limit() {
            MemoryLimit::Finite(limit) => (limit.saturating_sub(self.pool.reserved()) + used) / (SHARE + 1) * SHARE,
            _ => usize::MAX,
        };
        total.min(self.limit) / units.max(1)
    }

    /// The bytes that another join may hold in place of each of `parts` parts of this one; `None` without a limit. The other join
    /// of a single part also gets what is kept for floors, once [`Self::forget_floors`] has given that back.
    pub fn room(&self, parts: usize) -> Option<usize> {
        let account = self.account.lock();
        let kept = if parts == 1 { account.kept } else { 0 };
        let of_pool = match self.pool.memory_limit() {
            MemoryLimit::Finite(limit) => Some(limit.saturating_sub(self.pool.reserved()) + kept),
            _ => None,
        };
        let of_join = (self.limit != usize::MAX).then(|| self.limit.saturating_sub(account.used));
        of_pool.into_iter().chain(of_join).min().map(|room| room / parts.max(1))
    }

    /// Gives back what is kept for the floors of units: another join runs in their place.
    pub fn forget_floors(&self) {
        let mut account = self.account.lock();
        let kept = std::mem::take(&mut account.kept);
        if kept > 0 {
            self.floors().shrink(kept);
        }
    }

    /// Whether every unit has its floor, or will get it.
    pub fn is_secured(&self) -> bool {
        self.account.lock().secured
    }

    fn state(&self) -> &MemoryReservation {
        self.state.get_or_init(|| MemoryConsumer::new(self.name.clone()).with_can_spill(true).register(&self.pool))
    }

    fn floors(&self) -> &MemoryReservation {
        self.floors.get_or_init(|| MemoryConsumer::new(format!("{} working buffers", self.name)).register(&self.pool))
    }

    fn lend(&self, account: &mut Account, bytes: usize) {
        account.used += bytes;
        self.peak.set_max(account.used);
    }

    fn try_grow_floor(&self, bytes: usize) -> Result<(), DataFusionError> {
        let mut account = self.account.lock();
        let kept = bytes.min(account.kept);
        // The limit is checked against floors alone: what a sibling holds beyond its own floor will soon be moved to disk.
        let floors = account.floors + account.kept;
        let grown = match bytes - kept {
            // The pool would refuse to grow by nothing where other operators have overdrawn it.
            0 => Ok(()),
            more => self.check_limit(floors, more).and_then(|()| self.floors().try_grow(more)),
        };
        grown.map_err(|error| {
            error.context(format!(
                "A join that spills needs at least {} for each of its {} partitions; raise the memory limit, or lower \
                 the number of partitions with --threads or datafusion.execution.target_partitions",
                Size(self.floor),
                self.units
            ))
        })?;
        account.kept -= kept;
        account.floors += bytes;
        self.lend(&mut account, bytes);
        Ok(())
    }

    /// Lends bytes to a unit that holds `held` already.
    fn try_grow_state(&self, bytes: usize, held: usize) -> Result<(), DataFusionError> {
        let account = &mut *self.account.lock();
        self.check_limit(account.used + account.kept, bytes)?;
        // No unit must take the minimum that another one needs: before a unit grows beyond a floor, all units get theirs.
        if !account.secured && account.used + bytes > self.floor {
            // The bytes that units already hold count towards their floors.
            let floors = (self.units * self.floor).saturating_sub(account.used);
            self.check_limit(account.used + account.kept, floors.saturating_add(bytes))?;
            self.floors().try_grow(floors)?;
            account.kept += floors;
            account.secured = true;
        }
        let used = account.used + account.kept;
        let mut left = self.limit - used - bytes;
        if let MemoryLimit::Finite(limit) = self.pool.memory_limit() {
            // Joins that have not started yet will need their floors.
            let others = OTHER_JOINS * self.units * self.floor;
            let free = limit.saturating_sub(self.pool.reserved()).saturating_sub(others);
            if used + bytes > SHARE.saturating_mul(free.saturating_sub(bytes)) {
                return Err(DataFusionError::ResourcesExhausted(format!(
                    "{} may not take {} more: it holds {}, and of the memory limit of {} only {} are left for other \
                     operators. Raise the limit with --memory-limit or datafusion.runtime.memory_limit, or let joins \
                     spill with overspill.spill = true",
                    self.name,
                    Size(bytes),
                    Size(used),
                    Size(limit),
                    Size(free),
                )));
            }
            left =
                left.min((SHARE.saturating_mul(free.saturating_sub(bytes)).saturating_sub(used + bytes)) / (SHARE + 1));
        }
        if self.builders > 1 && held + bytes > SHARE.saturating_mul(left) {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "One of the {} partitions of {} may not take {} more: it holds {}, and only {} are left for the others. \
                 Raise the memory limit or overspill.join_memory_limit, or let joins spill with overspill.spill = true",
                self.builders,
                self.name,
                Size(bytes),
                Size(held),
                Size(left),
            )));
        }
        self.state().try_grow(bytes)?;
        self.lend(account, bytes);
        Ok(())
    }

    fn check_limit(&self, held: usize, bytes: usize) -> Result<(), DataFusionError> {
        if bytes <= self.limit.saturating_sub(held) {
            return Ok(());
        }
        Err(DataFusionError::ResourcesExhausted(format!(
            "{} may not take {} more: it holds {} of its limit of {} (overspill.join_memory_limit = {})",
            self.name,
            Size(bytes),
            Size(held),
            Size(self.limit),
            self.limit,
        )))
    }
}

/// Lends the memory of a join to one of its units.
#[derive(Debug)]
struct UnitHost {
    join: Arc<JoinMemory>,
    /// The bytes from the consumer that is not spillable. They are returned last.
    floor: Mutex<usize>,
}

impl MemoryHost for UnitHost {
    fn try_grow(&self, bytes: usize, held: usize, purpose: Purpose) -> overspill_join::Result<()> {
        match purpose {
            Purpose::State => self.join.try_grow_state(bytes, held),
            Purpose::Floor => self.join.try_grow_floor(bytes).inspect(|()| *self.floor.lock() += bytes),
        }
        .map_err(JoinError::host)
    }

    fn grow(&self, bytes: usize) {
        let mut account = self.join.account.lock();
        self.join.state().grow(bytes);
        self.join.lend(&mut account, bytes);
    }

    fn shrink(&self, bytes: usize, held: usize) {
        let mut account = self.join.account.lock();
        account.used -= bytes;
        let mut floor = self.floor.lock();
        let from_state = bytes.min(held - *floor);
        if from_state > 0 {
            self.join.state().shrink(from_state);
        }
        if bytes > from_state {
            self.join.floors().shrink(bytes - from_state);
            *floor -= bytes - from_state;
            account.floors -= bytes - from_state;
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

    #[test]
    fn floors_that_are_kept_are_lent_where_others_overdraw_the_pool() {
        const FLOOR: usize = 1 << 10;
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100 * FLOOR));
        let join = JoinMemory::new(&pool, "Join".to_owned(), 0, FLOOR, 2, 1, Gauge::new());
        let mut state = join.unit().grant();
        state.try_grow(2 * FLOOR).unwrap();
        assert!(join.is_secured());

        let other = MemoryConsumer::new("other").register(&pool);
        other.grow(200 * FLOOR);
        let (first, second) = (join.unit(), join.unit());
        assert!(first.raise_floor(FLOOR).is_ok());
        assert!(second.raise_floor(FLOOR + 1).is_err(), "no more than a floor is kept for each unit");
    }
}
