//! Predicts all strategies for a join and chooses one; predicts joins by lookups in an index.

use crate::cost::cooperative::{gpu_het, het};
use crate::cost::cpu::{ADVANTAGE, hybrid, no_partition, radix};
use crate::cost::gpu_no_partition::gpu_no_partition;
use crate::cost::index::{Lookups, cpu_lookups, gpu_lookups};
use crate::cost::partitioned::{cpu_partitioned, prefix_sum, triton};
use crate::cost::{Cost, Site};
use crate::index_join::{IndexJoin, IndexKind, IndexPrediction, LookupWay};
use crate::join::{Join, Strategy};
use crate::machine::Machine;
use crate::prediction::{Advice, LinkBytes, Prediction, Refusal};
use crate::triton_traffic::PrefixSumProcessor;

impl Machine {
    /// Predicts the time of each strategy for a join, and chooses the fastest. A strategy that partitions on the CPU is
    /// chosen only if it takes a tenth less time than one that does not partition. Takes tens of microseconds.
    pub fn advise(&self, join: &Join) -> Advice {
        self.advise_among(join, &Strategy::ALL)
    }

    /// As `advise`, but chooses among `allowed`. If all of them are refused, `hybrid` is chosen.
    pub fn advise_among(&self, join: &Join, allowed: &[Strategy]) -> Advice {
        let site = self.site(join);
        let strategies: Vec<_> =
            Strategy::ALL.into_iter().map(|strategy| Prediction::new(strategy, join, cost(strategy, &site))).collect();
        let allowed: Vec<_> = strategies.iter().filter(|prediction| allowed.contains(&prediction.strategy)).collect();
        let seconds_of = |strategy: Strategy| {
            allowed.iter().find(|prediction| prediction.strategy == strategy).map_or(f64::INFINITY, |one| one.seconds)
        };
        let unpartitioned = seconds_of(Strategy::NoPartition);
        let is_worth_it = |prediction: &&&Prediction| match prediction.strategy {
            Strategy::Radix | Strategy::Hybrid => prediction.seconds < unpartitioned * ADVANTAGE,
            _ => true,
        };
        let best = allowed
            .iter()
            .filter(|prediction| prediction.refusal.is_none())
            .filter(is_worth_it)
            .min_by(|one, other| one.seconds.total_cmp(&other.seconds));
        let choice = best.map_or(Strategy::Hybrid, |prediction| prediction.strategy);
        Advice { choice, strategies }
    }

    /// The processor that counts keys faster before the first pass of [`Strategy::Triton`], if `threads` CPU threads count
    /// them; `None` without a GPU. Assumes data small enough not to slow the CPU down
    /// ([`Cpu::large_data`](crate::Cpu::large_data)).
    pub fn prefix_sum(&self, threads: usize) -> Option<PrefixSumProcessor> {
        // The cost per byte, independent of the join.
        const KEY_BYTES: f64 = 1.0;
        let join = Join { threads: Some(threads), ..Join::new(0, 0, 0) };
        let site = self.site(&join);
        Some(prefix_sum(&site, site.gpu().ok()?, KEY_BYTES).0)
    }

    /// Predicts an index join. `O(log n)` for `n` indexed rows.
    pub fn index_join(&self, kind: IndexKind, way: LookupWay, join: &IndexJoin) -> IndexPrediction {
        let cost = match way {
            LookupWay::Cpu => Ok(cpu_lookups(&self.cpu, kind, join)),
            LookupWay::Gpu => self.gpu_or_why().and_then(|gpu| gpu_lookups(gpu, kind, join, false)),
            LookupWay::GpuWindows => self.gpu_or_why().and_then(|gpu| gpu_lookups(gpu, kind, join, true)),
        };
        match cost {
            Ok((cost, Lookups { reads, translations })) => {
                let seconds = cost.seconds();
                let Cost { phases, link_bytes } = cost;
                IndexPrediction { kind, way, seconds, reads, translations, phases, link_bytes, refusal: None }
            }
            Err(refusal) => IndexPrediction {
                kind,
                way,
                seconds: f64::INFINITY,
                reads: 0.0,
                translations: 0.0,
                phases: Vec::new(),
                link_bytes: LinkBytes::default(),
                refusal: Some(refusal),
            },
        }
    }

    fn site<'a>(&'a self, join: &'a Join) -> Site<'a> {
        Site {
            cpu: self.cpu.with_data(join.data_bytes()),
            memory: self.cpu.read,
            threads: join.threads.unwrap_or(self.cpu.threads),
            gpu: self.gpu_or_why(),
            join,
        }
    }
}

fn cost(strategy: Strategy, site: &Site<'_>) -> Result<Cost, Refusal> {
    match strategy {
        Strategy::NoPartition => no_partition(site),
        Strategy::Radix => radix(site),
        Strategy::Hybrid => hybrid(site),
        Strategy::GpuNoPartition => gpu_no_partition(site),
        Strategy::Triton => triton(site),
        Strategy::CpuPartitioned => cpu_partitioned(site),
        Strategy::Het => het(site),
        Strategy::GpuHet => gpu_het(site),
    }
}
