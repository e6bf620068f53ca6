//! Machine profiles in JSON: those included in the crate, and those of users.

use std::fmt;

use crate::machine::{Cpu, Gpu, Machine};
use crate::network::{Level, Network};

/// Names of machines and their files. The field `sources` of a file documents the source of each figure.
const PROFILES: [(&str, &str); 6] = [
    ("ac922", include_str!("../machines/ac922.json")),
    ("xeon-v100-pcie3", include_str!("../machines/xeon-v100-pcie3.json")),
    ("a100-pcie4", include_str!("../machines/a100-pcie4.json")),
    ("h200-pcie5", include_str!("../machines/h200-pcie5.json")),
    ("gh200", include_str!("../machines/gh200.json")),
    ("dgx-superpod", include_str!("../machines/dgx-superpod.json")),
];

/// Why a profile is invalid, as a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileError(String);

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProfileError {}

impl Machine {
    /// The names that [`named`](Self::named) accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.into_iter().map(|(name, _)| name)
    }

    /// A machine included in the crate.
    ///
    /// # Errors
    /// If there is no machine of this name. The error lists the known names.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        match PROFILES.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::from_json(text),
            None => {
                let names: Vec<_> = Self::names().collect();
                Err(ProfileError(format!("there is no machine named {name:?}; known are {}", names.join(", "))))
            }
        }
    }

    /// Parses a machine from JSON: the fields of [`Machine`], in bytes, seconds and counts per second.
    ///
    /// # Errors
    /// If the text does not describe a machine, or a figure is invalid: a rate must be positive.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let machine: Self = serde_json::from_str(text)
            .map_err(|error| ProfileError(format!("the profile is not that of a machine: {error}")))?;
        for (name, figure) in positive_figures(&machine) {
            if !(figure.is_finite() && figure > 0.0) {
                return Err(ProfileError(format!("the profile has {figure} as {name}, which must be positive")));
            }
        }
        for (name, share) in shares_of_contention(&machine) {
            if share > 1.0 {
                return Err(ProfileError(format!("the profile has {share} as {name}, which is at most 1")));
            }
        }
        let shares = [machine.cpu.large_data.map(|large| (large.share <= 1.0) && (large.from_bytes < large.to_bytes))];
        if shares.contains(&Some(false)) {
            return Err(ProfileError(
                "the profile's cpu.large_data must have from_bytes below to_bytes and a share of at most 1".to_owned(),
            ));
        }
        Ok(machine)
    }
}

/// Names and values of all figures that must be positive.
fn positive_figures(machine: &Machine) -> Vec<(&'static str, f64)> {
    let Cpu { cores, threads, cache_line, core_cache, last_level_cache, read, copy, random_reads, latency, .. } =
        machine.cpu;
    let mut figures = vec![
        ("cpu.cores", cores as f64),
        ("cpu.threads", threads as f64),
        ("cpu.cache_line", cache_line as f64),
        ("cpu.core_cache", core_cache as f64),
        ("cpu.last_level_cache", last_level_cache as f64),
        ("cpu.memory_bytes", machine.cpu.memory_bytes.map_or(1.0, |bytes| bytes as f64)),
        ("cpu.read", read),
        ("cpu.copy", copy),
        ("cpu.random_reads", random_reads),
        ("cpu.latency", latency),
        ("cpu.row_work.partition", machine.cpu.row_work.partition),
        ("cpu.row_work.lookup", machine.cpu.row_work.lookup),
        ("cpu.shared_lookup", machine.cpu.shared_lookup.unwrap_or(1.0)),
    ];
    if let Some(large) = machine.cpu.large_data {
        figures.extend([("cpu.large_data.share", large.share), ("cpu.large_data.from_bytes", large.from_bytes)]);
    }
    if let Some(network) = &machine.network {
        figures.extend(network_figures(network));
    }
    let Some(Gpu { memory_bytes, bandwidth, random_reads, multiprocessors, clock, scratchpad_bytes, link, .. }) =
        &machine.gpu
    else {
        return figures;
    };
    let gpu = machine.gpu.as_ref();
    let of_gpu = |figure: fn(&Gpu) -> Option<f64>| gpu.and_then(figure).unwrap_or(1.0);
    figures.extend([
        ("gpu.memory_bytes", *memory_bytes as f64),
        ("gpu.bandwidth", *bandwidth),
        ("gpu.random_reads", *random_reads),
        ("gpu.random_writes", of_gpu(|gpu| gpu.random_writes)),
        ("gpu.l2_random_reads", of_gpu(|gpu| gpu.l2_random_reads)),
        ("gpu.multiprocessors", f64::from(*multiprocessors)),
        ("gpu.clock", *clock),
        ("gpu.scratchpad_bytes", *scratchpad_bytes as f64),
        ("gpu.launch", of_gpu(|gpu| gpu.launch)),
        ("gpu.link.read", link.read),
        ("gpu.link.write", link.write),
        ("gpu.link.both", link.both),
        ("gpu.link.random_reads", link.random_reads),
        ("gpu.link.random_writes", link.random_writes.unwrap_or(1.0)),
        ("gpu.link.transaction_bytes", link.transaction_bytes as f64),
    ]);
    if let Some(translation) = link.translation {
        figures.extend([
            ("gpu.link.translation.near_bytes", translation.near_bytes),
            ("gpu.link.translation.far_slowdown", translation.far_slowdown),
            ("gpu.link.translation.far_bytes", translation.far_bytes),
            ("gpu.link.translation.misses", translation.misses.unwrap_or(1.0)),
            ("gpu.link.translation.read_misses", translation.read_misses.unwrap_or(1.0)),
        ]);
    }
    figures
}

fn network_figures(network: &Network) -> Vec<(&'static str, f64)> {
    let Network { ranks_per_node, within, across, codec, ranks_per_machine, partition } = network;
    let of_across = |figure: fn(&Level) -> f64| across.as_ref().map_or(1.0, figure);
    let of_rails = |level: &Level| level.cross_rail_latency.unwrap_or(1.0);
    vec![
        ("network.ranks_per_node", f64::from(*ranks_per_node)),
        ("network.within.bandwidth", within.bandwidth),
        ("network.within.all_to_all_share", within.all_to_all_share),
        ("network.within.latency", within.latency),
        ("network.within.cross_rail_latency", of_rails(within)),
        ("network.within.message", within.message),
        ("network.within.in_flight", f64::from(within.in_flight)),
        ("network.across.bandwidth", of_across(|level| level.bandwidth)),
        ("network.across.all_to_all_share", of_across(|level| level.all_to_all_share)),
        ("network.across.latency", of_across(|level| level.latency)),
        ("network.across.cross_rail_latency", across.as_ref().map_or(1.0, of_rails)),
        ("network.across.message", of_across(|level| level.message)),
        ("network.across.in_flight", of_across(|level| f64::from(level.in_flight))),
        ("network.ranks_per_machine", ranks_per_machine.map_or(1.0, f64::from)),
        ("network.partition", partition.unwrap_or(1.0)),
        ("network.codec.compress", codec.map_or(1.0, |codec| codec.compress)),
        ("network.codec.decompress", codec.map_or(1.0, |codec| codec.decompress)),
    ]
}

fn shares_of_contention(machine: &Machine) -> Vec<(&'static str, f64)> {
    let Some(Network { within, across, .. }) = &machine.network else { return Vec::new() };
    let across = across.as_ref().map(|level| ("network.across.all_to_all_share", level.all_to_all_share));
    [("network.within.all_to_all_share", within.all_to_all_share)].into_iter().chain(across).collect()
}
