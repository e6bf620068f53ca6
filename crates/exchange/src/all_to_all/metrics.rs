//! What an exchange has sent.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Messages with columns, or their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Columns {
    /// The messages.
    pub messages: u64,
    /// Bytes of the columns in memory.
    pub bytes: u64,
    /// Bytes of the messages.
    pub sent_bytes: u64,
}

/// Bytes of columns in GPU memory, by their way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuBytes {
    /// Bytes that the transport has read or written in GPU memory itself, or that a GPU has copied from another's memory.
    pub direct: u64,
    /// Bytes that were copied to or from CPU memory on their way: pinned memory where they are sent.
    pub through_cpu: u64,
}

/// What one rank has sent and received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Rounds that it has begun.
    pub rounds: u64,
    /// Columns to ranks of other nodes.
    pub across: Columns,
    /// Columns to ranks of the same node.
    pub within: Columns,
    /// Rows that it kept.
    pub kept_rows: u64,
    /// Rows that it sent.
    pub sent_rows: u64,
    /// Rows that it received from others.
    pub received_rows: u64,
    /// Bytes that it sent from the memory of its GPU.
    pub sent_from_gpu: GpuBytes,
    /// Bytes that it received in the memory of its GPU.
    pub received_on_gpu: GpuBytes,
    /// Time in which it waited for receivers.
    pub sending_wait: Duration,
    /// Time in which it waited for senders.
    pub receiving_wait: Duration,
}

/// How long a rank worked for an exchange, by what it did. On a thread that others interrupt, their time is in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Time in which it partitioned rows.
    pub partitioning: Duration,
    /// Time in which it made messages of columns. Next to nothing unless they are compressed.
    pub compressing: Duration,
    /// Time in which it made columns of messages. Next to nothing unless they are compressed.
    pub decompressing: Duration,
}

impl Add for Columns {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
        }
    }
}

impl Add for GpuBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { direct: self.direct + other.direct, through_cpu: self.through_cpu + other.through_cpu }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            partitioning: self.partitioning + other.partitioning,
            compressing: self.compressing + other.compressing,
            decompressing: self.decompressing + other.decompressing,
        }
    }
}

impl Add for Exchanged {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            across: self.across + other.across,
            within: self.within + other.within,
            kept_rows: self.kept_rows + other.kept_rows,
            sent_rows: self.sent_rows + other.sent_rows,
            received_rows: self.received_rows + other.received_rows,
            sent_from_gpu: self.sent_from_gpu + other.sent_from_gpu,
            received_on_gpu: self.received_on_gpu + other.received_on_gpu,
            sending_wait: self.sending_wait + other.sending_wait,
            receiving_wait: self.receiving_wait + other.receiving_wait,
        }
    }
}

#[derive(Debug, Default)]
struct ColumnCounters {
    messages: AtomicU64,
    bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct GpuCounters {
    direct: AtomicU64,
    through_cpu: AtomicU64,
}

#[derive(Debug, Default)]
struct Counters {
    rounds: AtomicU64,
    across: ColumnCounters,
    within: ColumnCounters,
    kept_rows: AtomicU64,
    sent_rows: AtomicU64,
    received_rows: AtomicU64,
    sent_from_gpu: GpuCounters,
    received_on_gpu: GpuCounters,
    sending_nanoseconds: AtomicU64,
    receiving_nanoseconds: AtomicU64,
    partitioning_nanoseconds: AtomicU64,
    compressing_nanoseconds: AtomicU64,
    decompressing_nanoseconds: AtomicU64,
}

/// Counts what an exchange does. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct ExchangeMetrics(Arc<Counters>);

impl ExchangeMetrics {
    /// What was counted so far.
    pub fn exchanged(&self) -> Exchanged {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let columns = |counters: &ColumnCounters| Columns {
            messages: get(&counters.messages),
            bytes: get(&counters.bytes),
            sent_bytes: get(&counters.sent_bytes),
        };
        let of_gpu = |counters: &GpuCounters| GpuBytes {
            direct: get(&counters.direct),
            through_cpu: get(&counters.through_cpu),
        };
        Exchanged {
            rounds: get(&self.0.rounds),
            across: columns(&self.0.across),
            within: columns(&self.0.within),
            kept_rows: get(&self.0.kept_rows),
            sent_rows: get(&self.0.sent_rows),
            received_rows: get(&self.0.received_rows),
            sent_from_gpu: of_gpu(&self.0.sent_from_gpu),
            received_on_gpu: of_gpu(&self.0.received_on_gpu),
            sending_wait: Duration::from_nanos(get(&self.0.sending_nanoseconds)),
            receiving_wait: Duration::from_nanos(get(&self.0.receiving_nanoseconds)),
        }
    }

    /// How long the rank has worked so far.
    pub fn work(&self) -> Work {
        let get = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        Work {
            partitioning: get(&self.0.partitioning_nanoseconds),
            compressing: get(&self.0.compressing_nanoseconds),
            decompressing: get(&self.0.decompressing_nanoseconds),
        }
    }

    pub(crate) fn partitioned(&self, time: Duration) {
        add(&self.0.partitioning_nanoseconds, time.as_nanos() as u64);
    }

    pub(super) fn compressed(&self, time: Duration) {
        add(&self.0.compressing_nanoseconds, time.as_nanos() as u64);
    }

    pub(super) fn decompressed(&self, time: Duration) {
        add(&self.0.decompressing_nanoseconds, time.as_nanos() as u64);
    }

    pub(crate) fn round(&self) {
        add(&self.0.rounds, 1);
    }

    pub(crate) fn column(&self, is_neighbour: bool, bytes: usize, sent_bytes: usize) {
        let counters = if is_neighbour { &self.0.within } else { &self.0.across };
        add(&counters.messages, 1);
        add(&counters.bytes, bytes as u64);
        add(&counters.sent_bytes, sent_bytes as u64);
    }

    pub(crate) fn kept(&self, rows: usize) {
        add(&self.0.kept_rows, rows as u64);
    }

    pub(crate) fn sent(&self, rows: usize) {
        add(&self.0.sent_rows, rows as u64);
    }

    pub(crate) fn received(&self, rows: usize) {
        add(&self.0.received_rows, rows as u64);
    }

    pub(crate) fn sent_from_gpu(&self, is_direct: bool, bytes: u64) {
        self.0.sent_from_gpu.add(is_direct, bytes);
    }

    pub(crate) fn received_on_gpu(&self, is_direct: bool, bytes: u64) {
        self.0.received_on_gpu.add(is_direct, bytes);
    }

    pub(super) fn waited_to_send(&self, time: Duration) {
        add(&self.0.sending_nanoseconds, time.as_nanos() as u64);
    }

    pub(super) fn waited_to_receive(&self, time: Duration) {
        add(&self.0.receiving_nanoseconds, time.as_nanos() as u64);
    }
}

impl GpuCounters {
    fn add(&self, is_direct: bool, bytes: u64) {
        add(if is_direct { &self.direct } else { &self.through_cpu }, bytes);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
