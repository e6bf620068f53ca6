//! The pairs of spilled partitions that are left to join.

use std::pin::pin;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::context::{FilePartition, JoinContext, ReadBuild};

/// A pair of partitions to join.
pub(super) struct Pair {
    pub build: FilePartition,
    /// The probe partition, in several files if several streams have written it.
    pub probe: Vec<FilePartition>,
    /// How often the rows have been partitioned.
    pub depth: usize,
    /// The number of hash bits that all rows of the partition share.
    pub used_bits: u32,
    /// The number of rows of the build side that was split into this and other partitions.
    pub siblings: usize,
}

/// The pairs of partitions that a build side has spilled, with the probe partitions of each stream that probed it.
pub(super) fn spilled_pairs(
    context: &JoinContext,
    build: &ReadBuild,
    mut probe: Vec<Vec<Option<FilePartition>>>,
    depth: usize,
) -> Vec<Pair> {
    let Some(radix) = build.side.radix() else { return Vec::new() };
    let mut pairs = Vec::new();
    for (number, partition) in build.spilled.iter().enumerate() {
        let probe: Vec<_> = probe.iter_mut().filter_map(|stream| stream.get_mut(number)?.take()).collect();
        let Some(build_partition) = partition else { continue };
        // Without probe rows, the only possible output is unmatched build rows.
        if !probe.is_empty() || context.plan.spec.join_type.keeps_unmatched_build() {
            pairs.push(Pair {
                build: build_partition.clone(),
                probe,
                depth: depth + 1,
                used_bits: radix.used_bits(),
                siblings: build.rows,
            });
        }
    }
    pairs
}

/// The pairs that several joiners take one at a time.
pub(super) struct PairQueue {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

struct Waiting {
    /// A stack, so that the partitions of a partition are joined before its siblings.
    pairs: Vec<Pair>,
    /// Taken pairs that may still be partitioned again.
    splitting: usize,
}

impl PairQueue {
    pub fn new(pairs: Vec<Pair>) -> Self {
        Self { waiting: Mutex::new(Waiting { pairs, splitting: 0 }), changed: Notify::new() }
    }

    /// Takes a pair. Waits while the pairs of other joiners may still be split; `None` if no pair can follow.
    pub async fn take(&self) -> Option<Pair> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut waiting = self.waiting.lock();
                let pair = waiting.pairs.pop();
                if pair.is_some() {
                    waiting.splitting += 1;
                }
                if pair.is_some() || waiting.splitting == 0 {
                    return pair;
                }
            }
            changed.await;
        }
    }

    /// Adds the pairs into which a taken pair has been split. Each taken pair is split once, be it into none.
    pub fn split(&self, pairs: Vec<Pair>) {
        let mut waiting = self.waiting.lock();
        waiting.pairs.extend(pairs);
        waiting.splitting -= 1;
        drop(waiting);
        self.changed.notify_waiters();
    }
}
