//! Joins of sides that are spread over the ranks of a network (paper 4: Gao and Sakharnykh, *Scaling Joins to a Thousand GPUs*,
//! ADMS 2021): their sizes, and what is predicted of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::prediction::{Bound, Refusal};

/// A side of a join as it lies on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSide {
    /// The number of rows on a rank.
    pub rows: u64,
    /// Bytes of a value of each column. The first column is the key.
    pub columns: Vec<u64>,
}

/// The join to predict (algorithms 1 and 2). Both sides lie in the memory of their ranks, column by column, with equally many
/// rows on each. Keys are spread evenly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepartitionedJoin {
    /// The side of which a hash table is built: the smaller one (section 3.3).
    pub build: RankSide,
    /// The side that looks its keys up.
    pub probe: RankSide,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of nodes, with equally many ranks on each.
    pub nodes: u32,
    /// The share of probe rows with a match, from 0 to 1.
    pub match_share: f64,
    /// Bytes of all columns by bytes of the same compressed; `None` if unknown, and then compression is not predicted.
    pub compression_ratio: Option<f64>,
}

/// How rows reach the rank of their key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Levels {
    /// All ranks send to all (algorithm 1).
    One,
    /// Ranks send along their rail to the other nodes, then within the node (algorithm 2).
    Two,
}

/// A way to shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shuffle {
    /// On how many levels.
    pub levels: Levels,
    /// Whether what crosses nodes is compressed (section 4).
    pub compressed: bool,
}

/// The number of messages of all ranks, for one column in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Messages {
    /// Between nodes.
    pub across: u64,
    /// Within nodes.
    pub within: u64,
}

/// A part of a repartitioned join that ends before the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ShufflePhase {
    /// Its name.
    pub name: &'static str,
    /// The duration in seconds.
    pub seconds: f64,
    /// Bytes of a rank that the phase partitions, compresses, sends, decompresses or joins, or of the result that it writes.
    pub bytes: f64,
    /// The longest of its parts.
    pub bound: Bound,
}

/// The predicted cost of a repartitioned join with one way to shuffle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShufflePrediction {
    /// The way to shuffle.
    #[serde(flatten)]
    pub shuffle: Shuffle,
    /// Seconds of the whole join; infinite, and null in JSON, if it is refused.
    pub seconds: f64,
    /// Rows of both sides on all ranks, per second; 0 if it is refused.
    pub tuples_per_second: f64,
    /// Bytes of both sides on all ranks, per second; 0 if it is refused.
    pub bytes_per_second: f64,
    /// Messages of all ranks, for all columns in one round.
    pub messages: Messages,
    /// The sequential phases.
    pub phases: Vec<ShufflePhase>,
    /// Why it is not possible, or `None` if it is.
    pub refusal: Option<Refusal>,
}

/// Predictions of all ways to shuffle, and the chosen one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShuffleAdvice {
    /// The chosen way.
    pub choice: Shuffle,
    /// Why so many levels, as a sentence.
    pub levels_because: String,
    /// Why compressed or not, as a sentence.
    pub compression_because: String,
    /// All ways, in the order of [`Shuffle::ALL`].
    pub shuffles: Vec<ShufflePrediction>,
}

impl Levels {
    /// All levels.
    pub const ALL: [Self; 2] = [Self::One, Self::Two];

    /// The number, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two => "two",
        }
    }

    /// Messages of a column in a round, among `ranks` ranks on `nodes` nodes. One level has `P(P-1)` in all. Two levels have
    /// `N M (N-1)` across nodes and `N M (M-1)` within them, for `N` nodes of `M` ranks.
    pub fn messages(self, ranks: u32, nodes: u32) -> Messages {
        let [ranks, nodes] = [ranks, nodes].map(|count| u64::from(count.max(1)));
        let on_node = (ranks / nodes).max(1);
        let across = match self {
            Self::One => ranks * ranks.saturating_sub(on_node),
            Self::Two => ranks * (nodes - 1),
        };
        Messages { across, within: ranks * (on_node - 1) }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Shuffle {
    /// All ways, those on one level first.
    pub const ALL: [Self; 4] = [
        Self { levels: Levels::One, compressed: false },
        Self { levels: Levels::One, compressed: true },
        Self { levels: Levels::Two, compressed: false },
        Self { levels: Levels::Two, compressed: true },
    ];
}

impl fmt::Display for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match (self.levels, self.compressed) {
            (Levels::One, false) => "one level, plain",
            (Levels::One, true) => "one level, compressed",
            (Levels::Two, false) => "two levels, plain",
            (Levels::Two, true) => "two levels, compressed",
        })
    }
}

impl ShufflePrediction {
    /// Seconds of all phases of a name.
    pub fn seconds_of(&self, name: &str) -> f64 {
        self.phases.iter().filter(|phase| phase.name == name).map(|phase| phase.seconds).sum()
    }
}

impl ShuffleAdvice {
    /// The prediction of a way to shuffle.
    ///
    /// # Panics
    /// Never: every way is there.
    pub fn of(&self, shuffle: Shuffle) -> &ShufflePrediction {
        self.shuffles.iter().find(|prediction| prediction.shuffle == shuffle).expect("all ways are predicted")
    }

    /// The prediction of the chosen way.
    pub fn chosen(&self) -> &ShufflePrediction {
        self.of(self.choice)
    }
}

impl RankSide {
    /// `rows` rows on a rank, with columns of these widths in bytes, the key first.
    pub fn new(rows: u64, columns: impl Into<Vec<u64>>) -> Self {
        Self { rows, columns: columns.into() }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.columns.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes of all rows on a rank.
    pub fn bytes(&self) -> f64 {
        self.rows as f64 * self.row_bytes() as f64
    }

    pub(crate) fn key_bytes(&self) -> u64 {
        self.columns.first().copied().unwrap_or(0)
    }
}

impl RepartitionedJoin {
    /// A join of these sides on `ranks` ranks of `nodes` nodes. Every probe row has a match; how much smaller its columns
    /// become compressed is unknown.
    pub fn new(build: RankSide, probe: RankSide, ranks: u32, nodes: u32) -> Self {
        Self { build, probe, ranks, nodes, match_share: 1.0, compression_ratio: None }
    }

    /// Rows of both sides on all ranks.
    pub fn rows(&self) -> f64 {
        (self.build.rows as f64 + self.probe.rows as f64) * f64::from(self.ranks)
    }

    /// Bytes of both sides on one rank.
    pub fn rank_bytes(&self) -> f64 {
        self.build.bytes() + self.probe.bytes()
    }

    pub(crate) fn ranks_on_node(&self) -> u32 {
        self.ranks / self.nodes.max(1)
    }

    pub(crate) fn columns(&self) -> usize {
        self.build.columns.len() + self.probe.columns.len()
    }

    /// Rows of the result on a rank.
    pub(crate) fn matches(&self) -> f64 {
        self.probe.rows as f64 * self.match_share.clamp(0.0, 1.0)
    }

    /// Bytes of a row of the result: the key once, and the payloads of both sides.
    pub(crate) fn result_row(&self) -> f64 {
        self.build.row_bytes() as f64 + self.probe.row_bytes() as f64 - self.build.key_bytes() as f64
    }
}
