//! Predicts all ways to shuffle the sides of a repartitioned join, and chooses one.

use std::fmt;

use crate::cost::repartitioned::{Cluster, Rank};
use crate::machine::Machine;
use crate::network::Network;
use crate::prediction::Refusal;
use crate::repartitioned_join::{Levels, RepartitionedJoin, Shuffle, ShuffleAdvice, ShufflePrediction};

/// Phases that an advice compares, whose names cost/repartitioned gives.
const ACROSS: [&str; 1] = ["shuffle across"];
const BY_ITSELF: [&str; 3] = ["partition", "partition again", "shuffle within"];
const CODEC: [&str; 2] = ["compress", "decompress"];

impl Network {
    /// The number of nodes that `ranks` ranks fill: one that has all of them, or full ones.
    ///
    /// # Errors
    /// If there is no rank, or the ranks would not be spread evenly.
    pub fn nodes(&self, ranks: u32) -> Result<u32, Refusal> {
        let ranks_per_node = self.ranks_per_node.max(1);
        match ranks {
            1.. if ranks <= ranks_per_node => Ok(1),
            1.. if ranks.is_multiple_of(ranks_per_node) => Ok(ranks / ranks_per_node),
            _ => Err(Refusal::UnevenNodes { ranks, ranks_per_node }),
        }
    }
}

impl Machine {
    /// Predicts the time of a join with each way to shuffle its sides, and chooses the fastest.
    ///
    /// # Errors
    /// If the machine has no network, or no way is possible, for instance as a rank has not the memory.
    pub fn advise_shuffle(&self, join: &RepartitionedJoin) -> Result<ShuffleAdvice, Refusal> {
        let network = self.network.as_ref().ok_or_else(|| Refusal::NoNetwork { machine: self.name.clone() })?;
        let ranks_per_node = join.ranks_on_node();
        if join.nodes == 0 || ranks_per_node == 0 || join.ranks != join.nodes.saturating_mul(ranks_per_node) {
            let ranks_per_node = ranks_per_node.max(1);
            return Err(Refusal::UnevenNodes { ranks: join.ranks, ranks_per_node });
        }
        let rank = Rank::new(self, join);
        let cluster = Cluster { network, rank: &rank, join };
        let shuffles = Shuffle::ALL.map(|shuffle| cluster.predict(shuffle));
        if let [ShufflePrediction { refusal: Some(refusal), .. }, ..] = &shuffles {
            // What one level without compression does, all others do.
            return Err(refusal.clone());
        }
        let possible = shuffles.iter().filter(|prediction| prediction.refusal.is_none());
        let fastest = possible.min_by(|one, other| one.seconds.total_cmp(&other.seconds));
        let choice = fastest.map_or(Shuffle::ALL[0], |prediction| prediction.shuffle);
        let of = |shuffle: Shuffle| shuffles.iter().find(|prediction| prediction.shuffle == shuffle);
        let other = |shuffle: Shuffle| of(choice).zip(of(shuffle));
        let on_levels = |levels| Shuffle { levels, ..choice };
        let other_levels = match choice.levels {
            Levels::One => other(on_levels(Levels::Two)),
            Levels::Two => other(on_levels(Levels::One)),
        };
        let other_compression = other(Shuffle { compressed: !choice.compressed, ..choice });
        let levels_because = other_levels.map(|(chosen, other)| levels_because(chosen, other)).unwrap_or_default();
        let compression_because =
            other_compression.map(|(chosen, other)| compression_because(chosen, other)).unwrap_or_default();
        Ok(ShuffleAdvice { choice, levels_because, compression_because, shuffles: shuffles.into() })
    }
}

/// Seconds of phases in one prediction beyond those of the same phases in another.
fn beyond(one: &ShufflePrediction, other: &ShufflePrediction, names: &[&str]) -> f64 {
    names.iter().map(|name| one.seconds_of(name) - other.seconds_of(name)).sum()
}

fn levels_because(chosen: &ShufflePrediction, other: &ShufflePrediction) -> String {
    if let Some(refusal) = &other.refusal {
        return refusal.to_string();
    }
    let longer = Longer { chosen: chosen.seconds, other: other.seconds };
    let (one, two) = if chosen.shuffle.levels == Levels::One { (chosen, other) } else { (other, chosen) };
    let (spent, saved) = (Milliseconds(beyond(two, one, &BY_ITSELF)), Milliseconds(beyond(one, two, &ACROSS)));
    let name = other.shuffle.levels.name();
    let plural = if other.shuffle.levels == Levels::One { "" } else { "s" };
    format!(
        "{name} level{plural} would take {longer}: a second partition and shuffle within nodes cost {spent}, and {} messages \
         across nodes in place of {} save {saved}",
        two.messages.across, one.messages.across
    )
}

fn compression_because(chosen: &ShufflePrediction, other: &ShufflePrediction) -> String {
    if let Some(refusal) = &other.refusal {
        return refusal.to_string();
    }
    let longer = Longer { chosen: chosen.seconds, other: other.seconds };
    let (plain, small, word) =
        if chosen.shuffle.compressed { (other, chosen, "plain") } else { (chosen, other, "compressed") };
    let (spent, saved) = (Milliseconds(beyond(small, plain, &CODEC)), Milliseconds(beyond(plain, small, &ACROSS)));
    format!("{word} it would take {longer}: the codec costs {spent}, and fewer bytes across nodes save {saved}")
}

/// How much longer another way takes, in words.
struct Longer {
    chosen: f64,
    other: f64,
}

impl fmt::Display for Longer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match 100.0 * (self.other / self.chosen - 1.0) {
            percent if percent >= 0.05 => write!(f, "{percent:.1} % longer"),
            _ => f.write_str("as long"),
        }
    }
}

struct Milliseconds(f64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0 * 1e3)
    }
}
