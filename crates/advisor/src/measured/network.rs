//! Builds the model of a network from measurements of its ranks.

use overspill_machine::measure::{LevelRates, Measurements, NetworkRates};

use crate::machine::Machine;
use crate::network::{Codec, Level, Network};

/// What a rank takes for something, by how many ranks share its machine.
struct Seconds {
    /// Points in the order of these numbers.
    points: Vec<(f64, f64)>,
    /// Threads of a machine.
    threads: f64,
}

impl Seconds {
    fn new(like: &[NetworkRates], threads: usize, seconds: impl Fn(&NetworkRates) -> Option<f64>) -> Option<Self> {
        let point = |rates: &NetworkRates| Some((f64::from(rates.ranks_per_machine), seconds(rates)?));
        let mut points: Vec<_> = like.iter().filter_map(point).filter(|(_, seconds)| *seconds > 0.0).collect();
        // The latest of equally many ranks, which may be on other numbers of machines.
        points.reverse();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points.dedup_by_key(|(ranks, _)| *ranks);
        (!points.is_empty()).then_some(Self { points, threads: threads.max(1) as f64 })
    }

    /// For a number of ranks that share a machine: on the power law through the two nearest points. Ranks take each other at most their
    /// share of the machine, so that twice as many are at most twice as slow.
    fn at(&self, ranks: f64) -> f64 {
        if let Some((_, seconds)) = self.points.iter().find(|(measured, _)| *measured == ranks) {
            return *seconds;
        }
        if let [(measured, seconds)] = self.points[..] {
            // As many ranks as threads have one each.
            return seconds * ranks.max(self.threads) / measured.max(self.threads);
        }
        let above = self.points.partition_point(|(measured, _)| *measured < ranks).clamp(1, self.points.len() - 1);
        let ((few, of_few), (many, of_many)) = (self.points[above - 1], self.points[above]);
        let slope = ((of_many / of_few).ln() / (many / few).ln()).clamp(0.0, 1.0);
        let (near, seconds) = if ranks > many { (many, of_many) } else { (few, of_few) };
        seconds * (ranks / near).powf(slope)
    }
}

impl Network {
    /// The network between `ranks` ranks of machines with `threads` threads, by what was measured last and by earlier measurements of
    /// more or fewer ranks on nodes that are as full; `None` if ranks were not measured.
    ///
    /// If all ranks were on one machine, all are on it: twice as many have half of its processors each. If all were on one node, all are.
    pub fn measured(measured: &Measurements, threads: usize, ranks: u32) -> Option<Self> {
        let latest = measured.networks.last()?;
        let like: Vec<_> = measured.networks.iter().copied().filter(|rates| rates.is_like(latest)).collect();
        let are_on_one_machine = |rates: &NetworkRates| rates.ranks_per_machine == rates.ranks;
        let sharing = if are_on_one_machine(latest) { ranks } else { latest.ranks_per_machine };
        let at = |seconds: &dyn Fn(&NetworkRates) -> Option<f64>| {
            Some(Seconds::new(&like, threads, seconds)?.at(f64::from(sharing)))
        };
        let level = |kind: &str, of: fn(&NetworkRates) -> Option<LevelRates>| {
            let bandwidth = 1.0 / at(&|rates| Some(1.0 / of(rates)?.bytes_per_second))?;
            let latency = at(&|rates| Some(of(rates)?.latency))?;
            let message = at(&|rates| Some(of(rates)?.message))?;
            // Messages to all ranks were under way at once.
            Some(Level { in_flight: ranks.max(1), ..Level::measured(kind, bandwidth, latency, message) })
        };
        let within = level("what connects ranks of a node", |rates| rates.within);
        let across = level("the network", |rates| rates.across);
        let codec = || {
            let compress = 1.0 / at(&|rates| Some(1.0 / rates.codec?.compress))?;
            let decompress = 1.0 / at(&|rates| Some(1.0 / rates.codec?.decompress))?;
            Some(Codec { compress, decompress })
        };
        Some(Self {
            ranks_per_node: if across.is_some() { latest.ranks_per_node } else { ranks.max(1) },
            ranks_per_machine: Some(sharing.max(1)),
            // Ranks that are alone on their nodes send nothing within them.
            within: within.or_else(|| across.clone())?,
            codec: codec(),
            partition: at(&|rates| Some(1.0 / rates.partition)).map(|seconds| 1.0 / seconds),
            across,
        })
    }
}

impl Machine {
    /// The machine with the network that was measured between its ranks, for `ranks` of them; without one if ranks were not measured.
    pub fn with_measured_network(self, measured: &Measurements, ranks: u32) -> Self {
        let network = Network::measured(measured, self.cpu.threads, ranks);
        Self { network, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: NetworkRates = NetworkRates {
        ranks: 2,
        ranks_per_node: 2,
        ranks_per_machine: 2,
        within: Some(LevelRates { bytes_per_second: 4e9, latency: 1e-5, message: 1e-6 }),
        across: None,
        partition: 1e9,
        codec: None,
    };

    fn of(ranks: u32, bytes_per_second: f64) -> NetworkRates {
        let within = RATES.within.map(|level| LevelRates { bytes_per_second, ..level });
        NetworkRates { ranks, ranks_per_node: ranks, ranks_per_machine: ranks, within, ..RATES }
    }

    fn bandwidth(networks: &[NetworkRates], threads: usize, ranks: u32) -> f64 {
        let mut measured = Measurements::default();
        networks.iter().for_each(|rates| measured.add_network(*rates));
        Network::measured(&measured, threads, ranks).unwrap().within.bandwidth
    }

    fn is_near(one: f64, other: f64) -> bool {
        (one / other - 1.0).abs() < 1e-9
    }

    #[test]
    fn ranks_of_one_machine_share_it() {
        // Measured once: by the number of threads.
        assert!(is_near(bandwidth(&[of(2, 4e9)], 2, 2), 4e9));
        assert!(is_near(bandwidth(&[of(2, 4e9)], 2, 8), 1e9));
        assert!(is_near(bandwidth(&[of(2, 4e9)], 8, 8), 4e9));
        assert!(is_near(bandwidth(&[of(2, 4e9)], 4, 8), 2e9));
        // Twice: by what more ranks did to each.
        let twice = [of(4, 2e9), of(2, 4e9)];
        assert!(is_near(bandwidth(&twice, 2, 8), 1e9));
        assert!(is_near(bandwidth(&twice, 2, 4), 2e9));
        assert!(is_near(bandwidth(&twice, 2, 2), 4e9));
        assert!(is_near(bandwidth(&twice, 2, 1), 8e9));
        let slightly = [of(2, 4e9), of(4, 4e9 / 2f64.sqrt())];
        assert!(is_near(bandwidth(&slightly, 2, 8), 2e9));
        // More ranks are never faster, nor slower than their share.
        assert!(is_near(bandwidth(&[of(2, 4e9), of(4, 5e9)], 2, 8), 5e9));
        assert!(is_near(bandwidth(&[of(2, 4e9), of(4, 1e9)], 2, 8), 0.5e9));
        let thrice = [of(2, 4e9), of(4, 3e9), of(8, 1e9)];
        assert!(is_near(bandwidth(&thrice, 2, 4), 3e9));
        assert!(is_near(bandwidth(&thrice, 2, 8), 1e9));
        assert!(is_near(bandwidth(&thrice, 2, 16), 0.5e9));
    }

    #[test]
    fn nodes_keep_their_ranks() {
        let across = Some(LevelRates { bytes_per_second: 1e9, latency: 1e-4, message: 1e-5 });
        let cluster = NetworkRates { ranks: 8, ranks_per_node: 4, ranks_per_machine: 4, across, ..RATES };
        let mut measured = Measurements::default();
        assert_eq!(Network::measured(&measured, 4, 8), None);
        measured.add_network(of(2, 9e9));
        measured.add_network(cluster);
        let network = Network::measured(&measured, 4, 32).unwrap();
        assert_eq!((network.ranks_per_node, network.nodes(32)), (4, Ok(8)));
        // Other nodes bring their own processors.
        assert!(is_near(network.within.bandwidth, 4e9) && is_near(network.across.unwrap().bandwidth, 1e9));
        // Ranks alone on their nodes.
        measured.add_network(NetworkRates { within: None, ranks_per_node: 1, ranks_per_machine: 1, ..cluster });
        let network = Network::measured(&measured, 4, 16).unwrap();
        assert_eq!((network.nodes(16), network.ranks_per_machine), (Ok(16), Some(1)));
    }
}
