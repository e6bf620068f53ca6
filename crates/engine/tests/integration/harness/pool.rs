//! A memory pool that remembers who held how much.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex};

use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

/// Consumers whose name starts so belong to Overspill's joins.
const JOIN_CONSUMERS: [&str; 2] = ["HybridJoin", "ThetaJoin"];

fn is_join(consumer: &MemoryConsumer) -> bool {
    JOIN_CONSUMERS.iter().any(|prefix| consumer.name().starts_with(prefix))
}

#[derive(Debug, Default)]
struct Ledger {
    /// By consumer: its name, and what it holds.
    held: HashMap<usize, (String, usize)>,
    join_held: usize,
    join_peak: usize,
    other_held: usize,
    other_peak: usize,
    spillable: usize,
    spillable_peak: usize,
}

/// Passes everything on to the pool it wraps and records peaks, apart for joins and for everybody else.
#[derive(Debug)]
pub struct RecordingPool {
    inner: Arc<dyn MemoryPool>,
    ledger: Mutex<Ledger>,
}

impl RecordingPool {
    pub fn new(inner: Arc<dyn MemoryPool>) -> Self {
        Self { inner, ledger: Mutex::default() }
    }

    /// The most that Overspill's joins held together.
    pub fn join_peak(&self) -> usize {
        self.ledger.lock().unwrap().join_peak
    }

    /// What Overspill's joins hold now.
    pub fn join_held(&self) -> usize {
        self.ledger.lock().unwrap().join_held
    }

    /// The most that all other operators held together.
    pub fn other_peak(&self) -> usize {
        self.ledger.lock().unwrap().other_peak
    }

    /// The most consumers that could spill and were registered at once: a fair pool divides its limit by them.
    pub fn spillable_peak(&self) -> usize {
        self.ledger.lock().unwrap().spillable_peak
    }

    /// The consumers that hold memory now, and how much.
    pub fn holders(&self) -> Vec<(String, usize)> {
        self.ledger.lock().unwrap().held.values().filter(|(_, held)| *held > 0).cloned().collect()
    }

    fn grown(&self, consumer: &MemoryConsumer, by: usize) {
        let ledger = &mut *self.ledger.lock().unwrap();
        ledger.held.entry(consumer.id()).or_insert_with(|| (consumer.name().to_owned(), 0)).1 += by;
        if is_join(consumer) {
            ledger.join_held += by;
            ledger.join_peak = ledger.join_peak.max(ledger.join_held);
        } else {
            ledger.other_held += by;
            ledger.other_peak = ledger.other_peak.max(ledger.other_held);
        }
    }
}

impl Display for RecordingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner)
    }
}

impl MemoryPool for RecordingPool {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.inner.register(consumer);
        if consumer.can_spill() {
            let ledger = &mut *self.ledger.lock().unwrap();
            ledger.spillable += 1;
            ledger.spillable_peak = ledger.spillable_peak.max(ledger.spillable);
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.inner.unregister(consumer);
        if consumer.can_spill() {
            self.ledger.lock().unwrap().spillable -= 1;
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
        self.grown(reservation.consumer(), additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
        let consumer = reservation.consumer();
        let ledger = &mut *self.ledger.lock().unwrap();
        let (_, held) = ledger.held.entry(consumer.id()).or_default();
        *held = held.checked_sub(shrink).expect("a reservation gives back no more than it took");
        if is_join(consumer) {
            ledger.join_held -= shrink;
        } else {
            ledger.other_held -= shrink;
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.inner.try_grow(reservation, additional)?;
        self.grown(reservation.consumer(), additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}
