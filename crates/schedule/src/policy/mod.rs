//! Who decides.

mod first_come;
mod fixed;
mod overspill;
mod paper5;

use std::fmt::Debug;

pub use overspill::OverspillSettings;
pub use paper5::{Arrivals, Paper5Settings};

use crate::board::Board;
use crate::limits::Limits;
use crate::query::{Place, QueryId};

/// A policy's decision on one query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Which.
    pub id: QueryId,
    /// What to do.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Run there.
    Start(Place),
    /// Leave the GPU, and go on on the CPU.
    Move,
}

/// Why a query runs where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The policy has no choice: it knows one place, or the query can use no GPU.
    Only,
    /// It is so short that it takes no slot.
    Brief,
    /// It is its turn.
    Turn,
    /// It takes less time on the CPU than others of its round (paper 5).
    Shorter,
    /// All queries together are predicted to end sooner so.
    Sooner,
    /// It has waited as long as it may.
    WaitedEnough,
    /// Its join takes more GPU memory than was predicted, and there is no room for it beside the others.
    TooLarge,
    /// The GPU is lost.
    GpuLost,
}

/// A policy by its name, with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PolicyKind {
    /// All on the CPU, at once.
    AllCpu,
    /// All that can on the GPU, at once, without limits.
    AllGpu,
    /// The GPU in the order of arrival, within its limits.
    FirstCome,
    /// Paper 5.
    Paper5(Paper5Settings),
    /// Ours.
    Overspill(OverspillSettings),
}

impl PolicyKind {
    /// The name in settings.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AllCpu => "all_cpu",
            Self::AllGpu => "all_gpu",
            Self::FirstCome => "first_come",
            Self::Paper5(_) => "paper5",
            Self::Overspill(_) => "overspill",
        }
    }

    /// The limits with which policies are compared: those of the paper for its policy and for that which waits, none for ours, which
    /// goes by what queries cost each other on the GPU, and for those that know none.
    pub fn compared_limits(&self) -> Limits {
        if matches!(self, Self::FirstCome | Self::Paper5(_)) { Limits::PAPER } else { Limits::NONE }
    }

    pub(crate) fn policy(&self, limits: Limits) -> Box<dyn Policy> {
        match *self {
            Self::AllCpu => Box::new(fixed::All(Place::Cpu)),
            Self::AllGpu => Box::new(fixed::All(Place::Gpu)),
            Self::FirstCome => Box::new(first_come::FirstCome { limits }),
            Self::Paper5(settings) => Box::new(paper5::Paper5::new(settings, limits)),
            Self::Overspill(settings) => Box::new(overspill::Overspill::new(settings, limits)),
        }
    }
}

/// Decides who runs where.
pub(crate) trait Policy: Debug + Send {
    /// A query has come, and is on the board.
    fn arrived(&mut self, _: &mut Board, _: QueryId) {}

    /// The GPU is lost. No query on the board can use it any more.
    fn gpu_lost(&mut self) {}

    /// The limits that it keeps on the GPU.
    fn limits(&self) -> Limits;

    /// What is to be done now.
    fn decide(&mut self, board: &mut Board) -> Vec<Decision>;

    /// When it wants to be asked again.
    fn next_tick(&self, _: &Board) -> Option<f64> {
        None
    }
}
