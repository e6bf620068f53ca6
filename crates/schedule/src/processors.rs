//! How fast queries run beside each other.

use crate::query::Class;

/// The CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cpu {
    /// Each query runs on one core, as in the paper's PostgreSQL. The number is that of the cores.
    CoreEach(usize),
    /// A query runs on all cores, which those that run at the same time share.
    Shared,
    /// The same, but a query alone leaves cores idle now and then: several together do this number of times as much.
    Overlapping(f64),
}

/// How much of the GPU's throughput is lost to queries that run beside others.
///
/// Of queries with losses `l` that run at the same time, all but the one that loses least slow the GPU: its throughput is
/// `1 / (1 + sum of l - least l)` of that of a query alone, and they share it equally.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoRun {
    /// Of scans and joins.
    pub join: f64,
    /// Of aggregates, and of queries with both.
    pub aggregate: f64,
}

impl Default for CoRun {
    /// By paper 5, section 2.3: four joins at once stay faster than on the CPU, and four aggregates, each 1.5 times as fast as on the
    /// CPU when alone, take three times as long as there. Of that, sharing alone explains 2.67.
    fn default() -> Self {
        Self { join: 0.0, aggregate: 0.0417 }
    }
}

/// The processors of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Processors {
    /// Its CPU.
    pub cpu: Cpu,
    /// Queries beside each other on its GPU.
    pub co_run: CoRun,
}

impl Processors {
    /// The speed of each of `count` queries on the CPU, where 1 is that of one alone.
    pub fn cpu_speed(&self, count: usize) -> f64 {
        let count = count.max(1) as f64;
        match self.cpu {
            Cpu::CoreEach(cores) => (cores.max(1) as f64 / count).min(1.0),
            Cpu::Shared => 1.0 / count,
            Cpu::Overlapping(gain) => gain.clamp(1.0, count) / count,
        }
    }

    /// The machines that the CPU is if each runs one query at a time: their number, and the speed of each.
    pub(crate) fn cpu_machines(&self) -> (usize, f64) {
        match self.cpu {
            Cpu::CoreEach(cores) => (cores.max(1), 1.0),
            Cpu::Shared => (1, 1.0),
            Cpu::Overlapping(gain) => (1, gain.max(1.0)),
        }
    }

    /// How many queries run on the CPU while others queue for it.
    pub fn cpu_slots(&self) -> usize {
        match self.cpu {
            Cpu::CoreEach(cores) => cores.max(1),
            Cpu::Shared => 1,
            Cpu::Overlapping(_) => 2,
        }
    }

    /// The speed of each of some queries on the GPU, where 1 is that of one alone.
    pub fn gpu_speed(&self, classes: impl Iterator<Item = Class>) -> f64 {
        let (mut count, mut sum, mut least) = (0.0, 0.0, f64::INFINITY);
        for class in classes {
            let loss = match class {
                Class::Join => self.co_run.join,
                Class::Aggregate | Class::Both => self.co_run.aggregate,
            };
            (count, sum, least) = (count + 1.0, sum + loss, loss.min(least));
        }
        if count == 0.0 { 1.0 } else { 1.0 / (1.0 + sum - least) / count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_aggregates_at_once_take_three_times_as_long_as_on_the_cpu() {
        let processors = Processors { cpu: Cpu::CoreEach(6), co_run: CoRun::default() };
        let speed = processors.gpu_speed([Class::Aggregate; 4].into_iter());
        assert!((1.0 / 1.5 / speed - 3.0).abs() < 0.01, "{speed}");
        assert_eq!(processors.gpu_speed([Class::Aggregate].into_iter()), 1.0);
        assert_eq!(processors.gpu_speed([Class::Join; 4].into_iter()), 0.25);
        assert_eq!([1, 6, 12].map(|count| processors.cpu_speed(count)), [1.0, 1.0, 0.5]);
        let overlapping = Processors { cpu: Cpu::Overlapping(1.2), ..processors };
        assert_eq!([1, 2, 4].map(|count| overlapping.cpu_speed(count)), [1.0, 0.6, 0.3]);
    }
}
