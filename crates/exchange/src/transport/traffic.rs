//! Counts of what a rank has sent.

use std::sync::atomic::{AtomicU64, Ordering};

use super::frame::FrameKind;

/// Messages and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// The messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a rank has sent, without what it kept for itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages to ranks of other nodes.
    pub across: Sent,
    /// Messages to ranks of the same node.
    pub within: Sent,
    /// Frames without a message: windows, ends, failures.
    pub control: u64,
}

#[derive(Debug, Default)]
struct Counter {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn sent(&self) -> Sent {
        Sent { messages: self.messages.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    across: Counter,
    within: Counter,
    control: AtomicU64,
}

impl Counters {
    pub fn count(&self, kind: &FrameKind, is_neighbour: bool) {
        let FrameKind::Data(_, bytes) = kind else {
            self.control.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let counter = if is_neighbour { &self.within } else { &self.across };
        counter.messages.fetch_add(1, Ordering::Relaxed);
        counter.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    pub fn traffic(&self) -> Traffic {
        Traffic {
            across: self.across.sent(),
            within: self.within.sent(),
            control: self.control.load(Ordering::Relaxed),
        }
    }
}
