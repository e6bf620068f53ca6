//! The advisor's predictions for the paper's cluster, and for the ranks at hand.

use datafusion::common::{Result, exec_datafusion_err};
use overspill_advisor::{Levels, Machine, Shuffle, ShuffleAdvice, ShufflePrediction};
use overspill_machine::measure::Measurements;

use super::data::{Point, Workload};
use crate::figures::bench::Bench;
use crate::figures::cluster::Cluster;
use crate::report::failed;

/// The profile of the paper's cluster.
pub(super) const MACHINE: &str = "dgx-superpod";

/// The phases that the paper tells apart (figure 9), each with those of the advisor.
pub(super) const STEPS: [(&str, &[&str]); 6] = [
    ("partition", &["partition", "partition again"]),
    ("compress", &["compress"]),
    ("all-to-all", &["shuffle across", "shuffle within"]),
    ("decompress", &["decompress"]),
    ("join", &["local join"]),
    ("materialize", &["materialize"]),
];

pub(super) struct Model(Machine);

impl Model {
    /// # Errors
    /// If there is no such profile.
    pub(super) fn new() -> Result<Self> {
        Machine::named(MACHINE).map(Self).map_err(failed)
    }

    /// Predicts a workload on a number of GPUs that fill nodes.
    ///
    /// # Errors
    /// If they do not, or a GPU has not the memory.
    pub(super) fn advise(&self, workload: Workload, gpus: u32) -> Result<ShuffleAdvice> {
        let network =
            self.0.network.as_ref().ok_or_else(|| exec_datafusion_err!("The profile {MACHINE} has no network."))?;
        let nodes = network.nodes(gpus).map_err(failed)?;
        self.0.advise_shuffle(&workload.join(1.0, gpus, nodes)).map_err(failed)
    }

    /// The prediction of a way for the ranks at hand, by what was measured of this machine and of its ranks; `None` if one of them was not,
    /// or the ranks are no processes, or they do not fill their nodes.
    pub(super) fn here(
        bench: &Bench,
        cluster: &Cluster,
        point: &Point,
        scale: f64,
        way: Shuffle,
    ) -> Option<ShufflePrediction> {
        let ranks = u32::try_from(point.ranks).ok().filter(|_| cluster.are_processes())?;
        let topology = &bench.machine.topology;
        let measured = Measurements::load(&Measurements::path()?, topology)?;
        let machine = Machine::measured(topology, &measured)?.with_measured_network(&measured, ranks);
        // The joins of figures are the processors', whatever GPU there is.
        let machine = Machine { gpu: None, ..machine };
        let nodes = machine.network.as_ref()?.nodes(ranks).ok()?;
        let is_like_here = nodes as usize == cluster.nodes(point.ranks);
        let advice = machine.advise_shuffle(&point.workload.join(scale, ranks, nodes)).ok().filter(|_| is_like_here)?;
        Some(advice.of(way).clone()).filter(|prediction| prediction.refusal.is_none())
    }

    /// The most million random keys a table and GPU for which two levels are faster on this many GPUs.
    ///
    /// # Errors
    /// As `advise` has.
    pub(super) fn crossover(&self, gpus: u32) -> Result<f64> {
        const STEP: f64 = 0.5;
        let mut millions = STEP;
        while self.advise(Workload::Random(millions), gpus)?.choice.levels == Levels::Two {
            millions += STEP;
        }
        Ok(millions - STEP)
    }
}

/// Million tuples a second of a way; `None` if it is refused.
pub(super) fn rate(advice: &ShuffleAdvice, way: Shuffle) -> Option<f64> {
    let prediction = advice.of(way);
    prediction.refusal.is_none().then_some(prediction.tuples_per_second / 1e6)
}

/// Milliseconds of each of `STEPS`.
pub(super) fn steps(prediction: &ShufflePrediction) -> [f64; STEPS.len()] {
    STEPS.map(|(_, phases)| phases.iter().map(|phase| prediction.seconds_of(phase) * 1e3).sum())
}
