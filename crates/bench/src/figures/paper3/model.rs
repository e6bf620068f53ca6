//! The advisor's predictions for the paper's machines.

use datafusion::common::Result;
use overspill_advisor::{HashTable, IndexJoin, IndexKind, Join, LookupWay, Machine, Side, Strategy};

use super::Order;
use super::workload::Workload;
use crate::report::failed;

pub(super) struct Model {
    machine: Machine,
}

impl Model {
    /// # Errors
    /// If there is no machine of this name.
    pub(super) fn new(name: &str) -> Result<Self> {
        Machine::named(name).map(|machine| Self { machine }).map_err(failed)
    }

    /// Queries a second of an index join on the GPU; 0 if it is refused.
    pub(super) fn index_join(&self, kind: IndexKind, gib: f64, order: Order) -> f64 {
        let join = IndexJoin::new(Workload::rows(gib), Workload::LOOKUPS);
        let prediction = match order {
            Order::AsKeysCome => self.machine.index_join(kind, LookupWay::Gpu, &join),
            Order::Windows(window) => {
                self.machine.index_join(kind, LookupWay::GpuWindows, &IndexJoin { window, ..join })
            }
        };
        1.0 / prediction.seconds
    }

    /// Queries a second of a hash join that builds on s, in a table at half load; 0 if it is refused.
    pub(super) fn hash_join(&self, gib: f64) -> f64 {
        let side = |rows| Side { rows, tuple_bytes: 8, key_bytes: 8 };
        let rows = Workload::rows(gib);
        let join = Join {
            build: side(Workload::LOOKUPS),
            probe: side(rows),
            hash_table: HashTable::LinearProbing,
            match_rate: (Workload::LOOKUPS as f64 / rows as f64).min(1.0),
            ..Join::new(0, 0, 8)
        };
        1.0 / self.machine.advise(&join).of(Strategy::GpuNoPartition).seconds
    }

    /// The GiB of r from which on an index join in windows is faster than the hash join.
    pub(super) fn crossover(&self, kind: IndexKind) -> f64 {
        const STEP: f64 = 1.01;
        const STEPS: i32 = 1000;
        let is_faster = |gib: f64| self.index_join(kind, gib, Order::Windows(super::WINDOW)) > self.hash_join(gib);
        (0..STEPS).map(|step| 0.5 * STEP.powi(step)).find(|gib| is_faster(*gib)).unwrap_or(f64::INFINITY)
    }
}
