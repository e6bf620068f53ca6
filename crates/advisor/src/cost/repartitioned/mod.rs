//! Repartitioned joins over a network (paper 4, algorithms 1 and 2).
//!
//! ```text
//! one level    partition into P, shuffle within and across, join
//! two levels   partition into N, shuffle across, partition into M, shuffle within, join
//! ```
//!
//! `P` ranks are on `N` nodes of `M` ranks. A rank has `b` bytes. On one level it sends `b (P-M)/P` of them across nodes and
//! `b (M-1)/P` within its node; on two levels `b (N-1)/N` across, as many, and then `b (M-1)/M` within. The two sums differ
//! by the messages and by the second partition. Nothing overlaps, as in the paper (section 8).

mod rank;

pub(crate) use rank::Rank;

use crate::network::{Codec, Level, Network};
use crate::prediction::{Bound, Refusal};
use crate::repartitioned_join::{Levels, Messages, RepartitionedJoin, Shuffle, ShufflePhase, ShufflePrediction};

/// A join on a network.
#[derive(Debug)]
pub(crate) struct Cluster<'a> {
    pub(crate) network: &'a Network,
    pub(crate) rank: &'a Rank<'a>,
    pub(crate) join: &'a RepartitionedJoin,
}

/// Phases, and the level of the network between nodes.
struct Phases<'a> {
    cluster: &'a Cluster<'a>,
    across: Option<&'a Level>,
    found: Vec<ShufflePhase>,
}

impl Cluster<'_> {
    /// Predicts one way to shuffle.
    pub(crate) fn predict(&self, shuffle: Shuffle) -> ShufflePrediction {
        let join = self.join;
        let phases = self.phases(shuffle);
        let seconds = phases.as_ref().map_or(f64::INFINITY, |phases| phases.iter().map(|phase| phase.seconds).sum());
        let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let of_column = shuffle.levels.messages(join.ranks, join.nodes);
        let columns = join.columns() as u64;
        let messages = Messages { across: of_column.across * columns, within: of_column.within * columns };
        ShufflePrediction {
            shuffle,
            seconds,
            tuples_per_second: rate(join.rows()),
            bytes_per_second: rate(join.rank_bytes() * f64::from(join.ranks)),
            messages,
            refusal: phases.as_ref().err().cloned(),
            phases: phases.unwrap_or_default(),
        }
    }

    fn phases(&self, Shuffle { levels, compressed }: Shuffle) -> Result<Vec<ShufflePhase>, Refusal> {
        let join = self.join;
        let across = self.across()?;
        if levels == Levels::Two && (join.nodes == 1 || join.ranks_on_node() == 1) {
            return Err(Refusal::OneLevel);
        }
        let codec = if compressed { Some(self.codec()?) } else { None };
        self.rank.check_memory(join)?;
        let mut phases = Phases { cluster: self, across, found: Vec::with_capacity(8) };
        match levels {
            Levels::One => {
                phases.partition("partition", join.ranks)?;
                phases.shuffle_across(levels, codec);
                phases.shuffle_within(levels);
            }
            Levels::Two => {
                phases.partition("partition", join.nodes)?;
                phases.shuffle_across(levels, codec);
                phases.partition("partition again", join.ranks_on_node())?;
                phases.shuffle_within(levels);
            }
        }
        for work in self.rank.join(join)? {
            phases.found.push(work);
        }
        Ok(phases.found)
    }

    /// The level between nodes, if there are several.
    fn across(&self) -> Result<Option<&Level>, Refusal> {
        match (self.join.nodes, &self.network.across) {
            (0 | 1, _) => Ok(None),
            (_, Some(level)) => Ok(Some(level)),
            (nodes, None) => Err(Refusal::OneNode { nodes }),
        }
    }

    /// The codec and the ratio that it reaches.
    fn codec(&self) -> Result<(Codec, f64), Refusal> {
        if self.join.nodes <= 1 {
            return Err(Refusal::NothingToCompress);
        }
        let ratio = self.join.compression_ratio.filter(|ratio| *ratio > 0.0).ok_or(Refusal::NoCompressionRatio)?;
        let codec = self.network.codec.ok_or(Refusal::NotMeasured { figure: "how fast columns are compressed" })?;
        Ok((codec, ratio))
    }
}

impl Phases<'_> {
    fn partition(&mut self, name: &'static str, partitions: u32) -> Result<(), Refusal> {
        if partitions <= 1 {
            return Ok(());
        }
        let join = self.cluster.join;
        let (bound, seconds) = self.cluster.rank.partition(join, partitions)?;
        self.found.push(ShufflePhase { name, seconds, bytes: join.rank_bytes(), bound });
        Ok(())
    }

    /// Sends to other nodes, compressed by a codec if there is one. Bytes that stay on the node are not compressed
    /// (section 5).
    fn shuffle_across(&mut self, levels: Levels, codec: Option<(Codec, f64)>) {
        let Some(level) = self.across else { return };
        let join = self.cluster.join;
        let plain = join.rank_bytes() * (1.0 - 1.0 / f64::from(join.nodes));
        let sent = plain / codec.map_or(1.0, |(_, ratio)| ratio);
        let messages = levels.messages(join.ranks, join.nodes).across;
        if let Some((codec, _)) = codec {
            self.found.push(work("compress", plain / codec.compress, plain));
        }
        self.shuffle("shuffle across", level, sent, messages, levels == Levels::One && join.ranks_on_node() > 1);
        if let Some((codec, _)) = codec {
            self.found.push(work("decompress", plain / codec.decompress, plain));
        }
    }

    fn shuffle_within(&mut self, levels: Levels) {
        let join = self.cluster.join;
        let on_node = f64::from(join.ranks_on_node());
        if on_node <= 1.0 {
            return;
        }
        let others = match levels {
            Levels::One => (on_node - 1.0) / f64::from(join.ranks),
            Levels::Two => (on_node - 1.0) / on_node,
        };
        let messages = levels.messages(join.ranks, join.nodes).within;
        self.shuffle("shuffle within", &self.cluster.network.within, join.rank_bytes() * others, messages, false);
    }

    /// Adds a shuffle of `bytes` of a rank, with `messages` of all ranks for each column.
    fn shuffle(&mut self, name: &'static str, level: &Level, bytes: f64, messages: u64, crosses_rails: bool) {
        let join = self.cluster.join;
        let of_rank = messages as f64 / f64::from(join.ranks);
        let transfer = level.transfer(bytes);
        // Columns are sent one after the other (section 3.2).
        let waiting = join.columns() as f64 * level.messages(of_rank, crosses_rails);
        let bound = if transfer >= waiting { Bound::Network } else { Bound::Messages };
        self.found.push(ShufflePhase { name, seconds: transfer + waiting, bytes, bound });
    }
}

fn work(name: &'static str, seconds: f64, bytes: f64) -> ShufflePhase {
    ShufflePhase { name, seconds, bytes, bound: Bound::Codec }
}
