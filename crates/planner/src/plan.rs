//! What the planner answers.

use std::fmt;

use crate::{Node, estimate::Base};

/// The order to take.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The joins. The left side of each builds.
    pub root: Node,
    /// Of each join of `root`, in post-order (left side, right side, join).
    pub estimates: Vec<Estimate>,
    /// The cost of all joins of `root`, in the unit of the cost model.
    pub cost: f64,
    /// The cost of the joins as written.
    pub written_cost: f64,
    /// Why this order.
    pub reason: Reason,
}

/// What is expected of a join.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Rows that it gives, at least 1.
    pub rows: f64,
    /// Bytes of such a row.
    pub width: f64,
    /// Its own cost, without its inputs.
    pub cost: f64,
}

/// Why an order was taken. Shares are of the written order's cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The options ask for the written order.
    Asked,
    /// The options ask for a random order.
    Random(u64),
    /// No order is cheaper than the written one.
    NoneCheaper,
    /// The best order gains too little.
    SmallGain {
        /// What it gains.
        gain: f64,
        /// What it should.
        least: f64,
    },
    /// The best order would be dearer than the written one if one estimate were wrong.
    Fragile {
        /// What it gains if no estimate is wrong.
        gain: f64,
        /// The estimate.
        estimate: Base,
        /// The factor by which it would be wrong.
        factor: f64,
    },
    /// An order was found that gains enough, whichever estimate is wrong.
    Cheaper {
        /// What it gains.
        gain: f64,
        /// Whether all orders were looked at.
        all: bool,
    },
}

impl Reason {
    /// Whether the written order is kept.
    pub fn keeps_written(&self) -> bool {
        !matches!(self, Self::Random(_) | Self::Cheaper { .. })
    }
}

/// A percentage that is never shown as one more than it is.
fn percent(share: f64) -> f64 {
    (share * 100.0).floor()
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Asked => write!(f, "kept as written: asked for"),
            Self::Random(seed) => write!(f, "random order of seed {seed}"),
            Self::NoneCheaper => write!(f, "kept as written: no order is cheaper"),
            Self::SmallGain { gain, least } => {
                write!(f, "kept as written: gain {} % below {} %", percent(gain), percent(least))
            }
            Self::Fragile { gain, estimate, factor } => {
                let times = if factor < 1.0 { format!("1/{:.0}", 1.0 / factor) } else { format!("{factor:.0}") };
                write!(f, "kept as written: gain {} % is lost with {times} times the {estimate}", percent(gain))
            }
            Self::Cheaper { gain, all } => {
                write!(f, "gain {} %, of {} orders", percent(gain), if all { "all" } else { "some" })
            }
        }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(relation) => write!(f, "rows of relation {relation}"),
            Self::Selectivity(predicate) => write!(f, "selectivity of predicate {predicate}"),
        }
    }
}
