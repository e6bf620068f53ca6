//! A memory pool in which the joins, sorts, aggregates and repartitions of a query leave room for each other.

use std::fmt::{Debug, Display, Formatter};

use datafusion::common::{HashMap, Result, resources_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;

use super::RAISE_MEMORY_LIMIT;

use crate::size::Size;

/// The name prefixes of the consumers of join state.
const JOIN_PREFIXES: [&str; 2] = ["HybridJoin", "ThetaJoin"];

/// The name prefixes of the consumers of DataFusion's repartitions.
const REPARTITION_PREFIX: &str = "RepartitionExec";

/// The name prefixes of the consumers of our sorts.
const SORT_PREFIX: &str = "SpillingSort";

/// The name prefixes of the consumers of DataFusion's hash aggregates.
const AGGREGATE_PREFIXES: [&str; 5] = [
    "PartialHashAggregateStream",
    "PartialReduceHashAggregateStream",
    "FinalHashAggregateStream",
    "SingleHashAggregateStream",
    "GroupedHashAggregateStream",
];

/// A join may hold at most this many times the memory that is still free for joins: alone it gets 4/5 of the joins'
/// share, a second one 4/5 of what the first left, and so on, so that the last fifth always goes to newcomers.
const ALPHA: usize = 4;

/// In bytes: small limits keep a quarter as headroom, but not more than this; large ones keep a tenth.
const SMALL_HEADROOM: usize = 16 << 20;

/// The number of consumers that an error names.
const NAMED_CONSUMERS: usize = 5;

/// A memory pool with a hard limit that makes operators that can spill leave room for the others.
///
/// Joins, the spillable consumers with a name that starts with `HybridJoin` or `ThetaJoin`, grow by a dynamic threshold
/// (Choudhury and Hahne, 1998): a join may hold at most four times the memory that is then still free for joins. The memory
/// free for joins is the limit, less what joins hold, less the larger of the headroom and what all others hold. The headroom
/// is a quarter of the limit up to 16 MiB, and never less than a tenth of the limit.
///
/// A sort and a hash aggregate hold at most as much as is then still free, less the headroom: a single sort gets half of what
/// it may share, two get a third each, and so on. What aggregates hold counts twice for that: their tables grow before they
/// ask, and what they spill or emit is a copy that they do not reserve. A request of either that holds nothing yet is bounded
/// by the limit alone, as is a request through another reservation of the same consumer: an aggregate that merges its spilled
/// groups reserves the merge, which takes what it gets, and then uses another reservation for the groups in progress, which
/// cannot spill.
///
/// A repartition leaves half of the headroom free. It never fails, as it writes to disk whatever it is refused. Otherwise it
/// would take everything, and joins that begin to spill could not get the floor that they need for that. In the presence of
/// sorts and aggregates it is bounded like them.
///
/// Every other consumer, a join's unspillable working buffers included, is bounded by the limit alone.
pub struct HeadroomPool {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes.
    limit: usize,
    /// Bytes held by spillable joins.
    joins: usize,
    /// Bytes held by all other consumers.
    others: usize,
    /// The spillable part of it that aggregates hold.
    aggregates: usize,
    /// The number of sorts and aggregates that can spill.
    state_consumers: usize,
    /// By consumer id; a consumer may have several reservations.
    consumers: HashMap<usize, Consumer>,
}

#[derive(Debug)]
struct Consumer {
    name: String,
    is_join: bool,
    is_repartition: bool,
    is_aggregate: bool,
    /// Whether it is a sort or an aggregate.
    has_state: bool,
    reserved: usize,
}

/// Why a request was refused.
enum Refusal {
    /// It would have exceeded the limit.
    Limit,
    /// A join would have exceeded its share.
    Share,
    /// A sort or an aggregate would have held more than is free.
    State,
    /// A repartition would have taken what joins need to spill.
    Floors,
}

impl HeadroomPool {
    /// A pool of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            state: Mutex::new(State {
                limit,
                joins: 0,
                others: 0,
                aggregates: 0,
                state_consumers: 0,
                consumers: HashMap::new(),
            }),
        }
    }

    /// Changes the limit to `limit` bytes. Memory held beyond it stays held, but nothing grows until enough of it is
    /// released.
    pub fn set_limit(&self, limit: usize) {
        self.state.lock().limit = limit;
    }

    /// The bytes of a limit of `limit` bytes that joins leave to other operators.
    pub fn headroom(limit: usize) -> usize {
        (limit / 10).max((limit / 4).min(SMALL_HEADROOM))
    }
}

impl State {
    fn reserved(&self) -> usize {
        self.joins.saturating_add(self.others)
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.reserved())
    }

    /// The bytes that all joins together may still take.
    fn free_for_joins(&self) -> usize {
        let kept = self.kept_from_joins();
        self.limit.saturating_sub(kept).saturating_sub(self.joins)
    }

    fn consumer_mut(&mut self, consumer: &MemoryConsumer) -> &mut Consumer {
        self.consumers.entry(consumer.id()).or_insert_with(|| {
            let is = |prefix: &str| consumer.can_spill() && consumer.name().starts_with(prefix);
            let is_aggregate = AGGREGATE_PREFIXES.into_iter().any(is);
            let has_state = is_aggregate || is(SORT_PREFIX);
            self.state_consumers += usize::from(has_state);
            Consumer {
                name: consumer.name().to_owned(),
                is_join: JOIN_PREFIXES.into_iter().any(is),
                is_repartition: is(REPARTITION_PREFIX),
                is_aggregate,
                has_state,
                reserved: 0,
            }
        })
    }

    fn grow(&mut self, consumer: &MemoryConsumer, additional: usize) {
        let consumer = self.consumer_mut(consumer);
        consumer.reserved = consumer.reserved.saturating_add(additional);
        let (is_join, is_aggregate) = (consumer.is_join, consumer.is_aggregate);
        let total = if is_join { &mut self.joins } else { &mut self.others };
        *total = total.saturating_add(additional);
        if is_aggregate {
            self.aggregates = self.aggregates.saturating_add(additional);
        }
    }

    /// Bytes that sorts and aggregates may still take. What aggregates hold counts twice.
    fn free_for_state(&self) -> usize {
        self.free().saturating_sub(HeadroomPool::headroom(self.limit)).saturating_sub(self.aggregates)
    }

    fn check_growth(&mut self, reservation: &MemoryReservation, additional: usize) -> Result<(), Refusal> {
        let consumer = reservation.consumer();
        let free = self.free();
        let free_for_state = self.free_for_state();
        let has_state_consumers = self.state_consumers > 0;
        let free_for_joins = self.free_for_joins();
        let kept_for_floors = self.kept_for_floors();
        let consumer = self.consumer_mut(consumer);
        if additional > free {
            return Err(Refusal::Limit);
        }
        if consumer.is_repartition && additional > free.saturating_sub(kept_for_floors) {
            return Err(Refusal::Floors);
        }
        let held = consumer.reserved;
        let is_bounded = consumer.has_state && held > 0 && held == reservation.size();
        if is_bounded || (consumer.is_repartition && has_state_consumers) {
            let needed = if consumer.is_aggregate { additional.saturating_mul(2) } else { additional };
            let left = free_for_state.checked_sub(needed).ok_or(Refusal::State)?;
            if held + additional > left {
                return Err(Refusal::State);
            }
        }
        if consumer.is_join {
            let left = free_for_joins.checked_sub(additional).ok_or(Refusal::Share)?;
            if consumer.reserved.saturating_add(additional) > left.saturating_mul(ALPHA) {
                return Err(Refusal::Share);
            }
        }
        Ok(())
    }

    fn refusal(&self, consumer: &MemoryConsumer, additional: usize, refusal: Refusal) -> DataFusionError {
        let limit = Size(self.limit);
        let held = self.consumers.get(&consumer.id()).map_or(0, |consumer| consumer.reserved);
        let reason = match refusal {
            Refusal::Limit => format!("only {} of the memory limit of {limit} is free", Size(self.free())),
            Refusal::Share => format!(
                "of the memory limit of {limit} joins must leave {} to other operators, and a part of the {} that are \
                 still free for joins to each other",
                Size(self.kept_from_joins()),
                Size(self.free_for_joins()),
            ),
            Refusal::State => format!(
                "of the memory limit of {limit} operators that can spill must leave {} to others, and a part of the {} \
                 that are still free for them to each other",
                Size(HeadroomPool::headroom(self.limit)),
                Size(self.free_for_state()),
            ),
            Refusal::Floors => format!(
                "of the memory limit of {limit} repartitions must leave {} to joins that begin to spill",
                Size(self.kept_for_floors()),
            ),
        };
        resources_datafusion_err!(
            "Not enough memory: {} holds {} and asked for {} more, but {reason}. {} {RAISE_MEMORY_LIMIT}",
            consumer.name(),
            Size(held),
            Size(additional),
            self.largest_consumers()
        )
    }

    fn kept_from_joins(&self) -> usize {
        self.others.max(HeadroomPool::headroom(self.limit))
    }

    fn kept_for_floors(&self) -> usize {
        HeadroomPool::headroom(self.limit) / 2
    }

    /// A sentence that names the largest consumers.
    fn largest_consumers(&self) -> String {
        let mut holders: Vec<&Consumer> = self.consumers.values().filter(|consumer| consumer.reserved > 0).collect();
        if holders.is_empty() {
            return "No consumer holds memory yet.".to_owned();
        }
        holders.sort_unstable_by(|a, b| b.reserved.cmp(&a.reserved).then_with(|| a.name.cmp(&b.name)));
        let named: Vec<String> = holders
            .iter()
            .take(NAMED_CONSUMERS)
            .map(|consumer| format!("{} ({})", consumer.name, Size(consumer.reserved)))
            .collect();
        format!("The largest consumers are {}.", named.join(", "))
    }
}

impl MemoryPool for HeadroomPool {
    fn name(&self) -> &str {
        "headroom"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.state.lock().consumer_mut(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        let mut state = self.state.lock();
        let removed = state.consumers.remove(&consumer.id());
        state.state_consumers -= usize::from(removed.is_some_and(|consumer| consumer.has_state));
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.state.lock().grow(reservation.consumer(), additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        let mut state = self.state.lock();
        let consumer = state.consumer_mut(reservation.consumer());
        consumer.reserved = consumer.reserved.saturating_sub(shrink);
        let (is_join, is_aggregate) = (consumer.is_join, consumer.is_aggregate);
        let total = if is_join { &mut state.joins } else { &mut state.others };
        *total = total.saturating_sub(shrink);
        if is_aggregate {
            state.aggregates = state.aggregates.saturating_sub(shrink);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if additional == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        let consumer = reservation.consumer();
        match state.check_growth(reservation, additional) {
            Ok(()) => {
                state.grow(consumer, additional);
                Ok(())
            }
            Err(refusal) => Err(state.refusal(consumer, additional, refusal)),
        }
    }

    fn reserved(&self) -> usize {
        self.state.lock().reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.state.lock().limit)
    }
}

impl Debug for HeadroomPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadroomPool").field("state", &*self.state.lock()).finish()
    }
}

impl Display for HeadroomPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(
            f,
            "{}(used: {}, limit: {}, kept from joins: {})",
            self.name(),
            Size(state.reserved()),
            Size(state.limit),
            Size(Self::headroom(state.limit))
        )
    }
}

#[cfg(test)]
mod tests;
