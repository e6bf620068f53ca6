//! The lanes of a join in a timeline.

use std::fmt;
use std::sync::Arc;

use overspill_machine::timeline::{Number, Numbers};
use tracing::field::Empty;
use tracing::{Span, debug_span};

/// One execution of a join.
#[derive(Debug)]
pub(crate) struct JoinTimeline {
    number: Number,
    /// The join's condition.
    on: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Lane {
    join: Arc<JoinTimeline>,
    name: LaneName,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum LaneName {
    /// Builds the build side that all streams share.
    BuildSide,
    /// The output stream of a partition.
    Stream(usize),
}

impl JoinTimeline {
    /// A join that begins now.
    pub fn new(on: String) -> Arc<Self> {
        static JOINS: Numbers = Numbers::new();
        Arc::new(Self { number: JOINS.take(), on })
    }

    /// The name of the group with the join's lanes.
    pub fn group(&self) -> impl fmt::Display {
        fmt::from_fn(|f| write!(f, "join {}", self.number.get()))
    }

    /// Writing to a spill file.
    pub fn writing(&self) -> Span {
        let group = self.group();
        debug_span!("write", %group, lane = "spill writing", rows = Empty, bytes = Empty)
    }

    /// Reading a spill file of `bytes` bytes, from opening it to its last row.
    pub fn reading(&self, bytes: u64) -> Span {
        debug_span!(parent: None, "read", group = %self.group(), lane = "spill reading", bytes)
    }

    pub fn lane(self: &Arc<Self>, name: LaneName) -> Lane {
        Lane { join: Arc::clone(self), name }
    }
}

impl Lane {
    /// A span that begins now and ends when it is dropped. Threads enter it while they work on it; otherwise it waits for its
    /// input or for the consumer of its output.
    pub fn phase(&self, name: &'static str) -> Span {
        let Self { join, name: lane } = self;
        debug_span!(
            parent: None,
            "phase",
            group = %join.group(),
            %lane,
            title = %fmt::from_fn(|f| write!(f, "{name} ({})", join.on)),
            rows = Empty,
        )
    }

    /// The join of a pair of partitions, within a phase.
    pub fn pair(&self, phase: &Span, depth: usize, build_rows: usize) -> Span {
        let Self { join, name: lane } = self;
        debug_span!(parent: phase, "pair of partitions", group = %join.group(), %lane, depth, build_rows)
    }

    /// A pass over a pair of partitions.
    pub fn pass(&self, pair: &Span, number: usize) -> Span {
        let Self { join, name: lane } = self;
        debug_span!(parent: pair, "pass", group = %join.group(), %lane, number)
    }
}

impl fmt::Display for LaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuildSide => f.write_str("build side"),
            Self::Stream(partition) => write!(f, "stream {partition}"),
        }
    }
}
