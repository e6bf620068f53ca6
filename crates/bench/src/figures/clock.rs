//! The time that a join is predicted to take on a machine with a GPU, by cause: a model, for machines without one.
//!
//! The stand-in for the driver counts calls and charges each its usual cost. The advisor's machine profile gives the rates of the
//! link and of GPU memory. Bytes are scaled up to the paper's size. Calls are not: a join of the full size under the full limit of
//! GPU memory has as many pairs of partitions, and its chunks are as many times larger.

use std::fmt::{Display, Formatter};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill::Strategy;
use overspill_advisor::{Bound, Join, LinkBytes, Machine, transfer_seconds};
use overspill_machine::driver::VirtualClock;
use serde::Serialize;

use crate::datagen::TablePair;
use crate::report::failed;

/// The bytes of GPU memory that `triton` reads and writes for each byte of a tuple: its copy, its second pass (counting, reading,
/// writing) and its join.
const PASSES: f64 = 6.0;

/// The machine whose time is predicted.
#[derive(Debug)]
pub(super) struct Clock {
    machine: Machine,
}

/// What a join did on the stand-in. Its time is predicted from this.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observed {
    pub(super) strategy: Strategy,
    pub(super) link_bytes: u64,
    pub(super) calls: VirtualClock,
    /// The part of the paper's size.
    pub(super) scale: f64,
    pub(super) gpu_memory_limit: u64,
}

/// Predicted seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Predicted {
    /// Transfers over the link, of the bytes that were counted.
    link: f64,
    /// The kernels' accesses to GPU memory, and at random to a table that lies in CPU memory too.
    gpu_memory: f64,
    calls: VirtualClock,
    /// All causes one after another, though some of them overlap.
    pub(super) seconds: f64,
    /// The time of the fewest bytes that the strategy must move over the link.
    pub(super) bound: f64,
    /// The advisor's prediction for the strategy.
    pub(super) law: f64,
}

impl Clock {
    /// # Errors
    /// If there is no machine of this name, or it has no GPU.
    pub(super) fn new(name: &str) -> Result<Self> {
        let machine = Machine::named(name).map_err(failed)?;
        match machine.gpu {
            Some(_) => Ok(Self { machine }),
            None => exec_err!("The machine {name} has no GPU, so --clock predicts nothing for it."),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.machine.name
    }

    /// Predicts the time of the join of the paper's size that was observed at a scale.
    ///
    /// # Errors
    /// If the machine's profile lacks a figure that the strategy needs.
    pub(super) fn predict(&self, pair: &TablePair, observed: Observed) -> Result<Predicted> {
        let Observed { strategy, link_bytes, calls, scale, gpu_memory_limit } = observed;
        let Some(gpu) = &self.machine.gpu else { return exec_err!("The machine {} has no GPU.", self.name()) };
        let full = |rows: u64| (rows as f64 / scale).round();
        let (build, probe) = (full(pair.build_rows), full(pair.probe_rows));
        let join = Join {
            gpu_memory_limit: Some((gpu_memory_limit as f64 / scale) as u64),
            ..Join::new(build as u64, probe as u64, pair.tuple.into())
        };
        let advice = self.machine.advise(&join);
        let prediction = advice.of(strategy);
        if let Some(refusal) = &prediction.refusal {
            return Err(exec_datafusion_err!("{} is not predicted for {}: {refusal}", strategy.name(), self.name()));
        }
        let bound = transfer_seconds(&gpu.link, &prediction.link_bytes);
        let link = link_seconds(&prediction.link_bytes, bound, link_bytes as f64 / scale);
        let at_random = |bound| matches!(bound, Bound::GpuRandomAccess | Bound::LinkRandomAccess);
        let gpu_memory = match strategy {
            Strategy::Triton | Strategy::CpuPartitioned => PASSES * join.data_bytes() / gpu.bandwidth,
            // A table outside GPU memory, whose accesses take longer than all transfers.
            _ if prediction.phases.iter().any(|phase| at_random(phase.bound)) => {
                prediction.phases.iter().filter(|phase| at_random(phase.bound)).map(|phase| phase.seconds).sum()
            }
            _ => build / gpu.random_writes.unwrap_or(gpu.random_reads) + probe / gpu.random_reads,
        };
        let nanoseconds = calls.nanoseconds();
        let seconds = link + gpu_memory + nanoseconds as f64 / 1e9;
        Ok(Predicted { link, gpu_memory, calls, seconds, bound, law: prediction.seconds })
    }
}

/// Seconds that `bytes` bytes take over the link. The bytes of `fewest` take `bound` seconds, and the share that goes each way is
/// the same.
fn link_seconds(fewest: &LinkBytes, bound: f64, bytes: f64) -> f64 {
    if fewest.total() > 0.0 { bound * bytes / fewest.total() } else { 0.0 }
}

impl Display for Predicted {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { link, gpu_memory, calls, seconds, bound, law } = self;
        write!(f, "{seconds:.4} s: link {link:.4}, GPU memory {gpu_memory:.4}")?;
        for (name, charge) in calls.charges() {
            write!(f, ", {} {name} {:.4}", charge.calls, charge.nanoseconds as f64 / 1e9)?;
        }
        write!(
            f,
            "; {:.2} x the {bound:.4} s of the fewest bytes over the link, {:.2} x the advisor's {law:.4} s",
            seconds / bound,
            seconds / law
        )
    }
}

#[cfg(test)]
mod tests {
    use overspill_machine::driver::Charge;

    use super::*;
    use crate::datagen::Workload;

    #[test]
    fn causes_add_up_and_calls_are_not_scaled() {
        let clock = Clock::new("h200-pcie5").unwrap();
        let pair = TablePair::of_workload(Workload::A, 1.0 / 64.0);
        let waits = Charge { calls: 100, bytes: 0, nanoseconds: 1_000_000 };
        let observed = |link_bytes, scale| Observed {
            strategy: Strategy::Triton,
            link_bytes,
            calls: VirtualClock { waits, ..VirtualClock::default() },
            scale,
            gpu_memory_limit: 32 << 20,
        };
        let one = clock.predict(&pair, observed(1 << 30, 1.0 / 64.0)).unwrap();
        let two = clock.predict(&pair, observed(2 << 30, 1.0 / 64.0)).unwrap();
        assert!((one.seconds - one.link - one.gpu_memory - 1e-3).abs() < 1e-9);
        assert!((two.link - 2.0 * one.link).abs() < 1e-9 && two.bound == one.bound);
        assert!(one.bound > 0.0 && one.law >= one.bound * 0.9, "{one}");
        assert!(one.to_string().contains("100 waits 0.0010"), "{one}");
    }

    #[test]
    fn machines_without_a_name_or_a_gpu_are_refused() {
        assert!(Clock::new("abacus").unwrap_err().to_string().contains("there is no machine named \"abacus\""));
    }
}
