//! The memory of one execution of a join, lent by DataFusion's memory pool.

use std::sync::{Arc, OnceLock};

use datafusion::common::{DataFusionError, human_readable_size};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::physical_plan::metrics::Gauge;
use overspill_join::JoinError;
use overspill_join::memory::{MemoryHost, Purpose, UnitMemory};
use parking_lot::Mutex;

/// How many times the memory that is still free one join may hold.
///
/// A pool of `n` joins that want all they can get thus settles where each holds `SHARE / (1 + n * SHARE)` of it, and
/// something always remains for the next join, sort or aggregate (dynamic thresholds: Choudhury and Hahne, 1998).
const SHARE: usize = 3;

/// All memory of one execution of a join: one consumer of the pool, registered when it first needs memory.
#[derive(Debug)]
pub(super) struct JoinMemory {
    pool: Arc<dyn MemoryPool>,
    /// What EXPLAIN calls the join, for the name of its consumer.
    name: String,
    reservation: OnceLock<MemoryReservation>,
    account: Mutex<Account>,
    /// `overspill.join_memory_limit`, or the largest number.
    limit: usize,
    /// The floor of each unit.
    floor: usize,
    /// How many units may come to need their floor.
    units: usize,
    peak: Gauge,
}

#[derive(Debug, Default)]
struct Account {
    /// Bytes lent to units.
    used: usize,
    /// Bytes kept for the floors of units that have not asked for theirs.
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
        peak: Gauge,
    ) -> Arc<Self> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        Arc::new(Self {
            pool: Arc::clone(pool),
            name,
            reservation: OnceLock::new(),
            account: Mutex::default(),
            limit,
            floor,
            units,
            peak,
        })
    }

    /// The account of a unit: a hash table, or a stream that probes it.
    pub fn unit(self: &Arc<Self>) -> Arc<UnitMemory> {
        UnitMemory::new(Box::new(UnitHost(Arc::clone(self))))
    }

    fn reservation(&self) -> &MemoryReservation {
        self.reservation
            .get_or_init(|| MemoryConsumer::new(self.name.clone()).with_can_spill(true).register(&self.pool))
    }

    fn try_grow(&self, bytes: usize, purpose: Purpose) -> Result<(), DataFusionError> {
        let mut account = self.account.lock();
        match purpose {
            Purpose::State => self.try_grow_state(&mut account, bytes)?,
            Purpose::Floor => {
                let kept = bytes.min(account.kept);
                self.check_limit(&account, bytes - kept)
                    .and_then(|()| self.reservation().try_grow(bytes - kept))
                    .map_err(|error| {
                        error.context(format!(
                            "A join that spills needs at least {} for each of its {} partitions",
                            human_readable_size(self.floor),
                            self.units
                        ))
                    })?;
                account.kept -= kept;
            }
        }
        account.used += bytes;
        self.peak.set_max(account.used);
        Ok(())
    }

    fn try_grow_state(&self, account: &mut Account, bytes: usize) -> Result<(), DataFusionError> {
        self.check_limit(account, bytes)?;
        // One unit must not take what another needs to go on at all: beyond the size of a floor, all have theirs first.
        if !account.secured && account.used + bytes > self.floor {
            let missing = (self.units * self.floor).saturating_sub(account.used);
            self.check_limit(account, missing)?;
            self.reservation().try_grow(missing)?;
            account.kept += missing;
            account.secured = true;
        }
        if let MemoryLimit::Finite(limit) = self.pool.memory_limit() {
            let held = account.used + account.kept + bytes;
            let free = limit.saturating_sub(self.pool.reserved());
            if bytes <= free && held > SHARE.saturating_mul(free - bytes) {
                return Err(DataFusionError::ResourcesExhausted(format!(
                    "{} may not take {} more: it holds {}, and of the memory limit of {} only {} are left for other \
                     operators. Raise the limit with --memory-limit or datafusion.runtime.memory_limit, or let joins \
                     spill with overspill.spill = true",
                    self.name,
                    human_readable_size(bytes),
                    human_readable_size(account.used + account.kept),
                    human_readable_size(limit),
                    human_readable_size(free),
                )));
            }
        }
        self.reservation().try_grow(bytes)
    }

    fn check_limit(&self, account: &Account, bytes: usize) -> Result<(), DataFusionError> {
        let held = account.used + account.kept;
        if bytes <= self.limit.saturating_sub(held) {
            return Ok(());
        }
        Err(DataFusionError::ResourcesExhausted(format!(
            "{} may not take {} more: it holds {} of its limit of {} (overspill.join_memory_limit = {})",
            self.name,
            human_readable_size(bytes),
            human_readable_size(held),
            human_readable_size(self.limit),
            self.limit,
        )))
    }
}

/// Lends the memory of a join to one of its units.
#[derive(Debug)]
struct UnitHost(Arc<JoinMemory>);

impl MemoryHost for UnitHost {
    fn try_grow(&self, bytes: usize, purpose: Purpose) -> overspill_join::Result<()> {
        self.0.try_grow(bytes, purpose).map_err(JoinError::host)
    }

    fn grow(&self, bytes: usize) {
        let mut account = self.0.account.lock();
        self.0.reservation().grow(bytes);
        account.used += bytes;
        self.0.peak.set_max(account.used);
    }

    fn shrink(&self, bytes: usize) {
        let mut account = self.0.account.lock();
        account.used -= bytes;
        self.0.reservation().shrink(bytes);
    }
}
