//! Predictions of the cost of strategies.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::join::{Join, Strategy};

/// Predictions of all strategies, and the chosen strategy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The chosen strategy.
    pub choice: Strategy,
    /// All strategies, in the order of [`Strategy::ALL`].
    pub strategies: Vec<Prediction>,
}

impl Advice {
    /// The prediction of a strategy.
    ///
    /// # Panics
    /// Never: every strategy is there.
    pub fn of(&self, strategy: Strategy) -> &Prediction {
        self.strategies.iter().find(|prediction| prediction.strategy == strategy).expect("all strategies are predicted")
    }
}

/// The predicted cost of a strategy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The strategy.
    pub strategy: Strategy,
    /// Seconds of the whole join; infinite, and null in JSON, if the strategy is refused.
    pub seconds: f64,
    /// Rows of both sides per second, as the papers count them; 0 if the strategy is refused.
    pub tuples_per_second: f64,
    /// The sequential phases of the join.
    pub phases: Vec<Phase>,
    /// Bytes over the link.
    pub link_bytes: LinkBytes,
    /// Why the strategy is not possible, or `None` if it is.
    pub refusal: Option<Refusal>,
}

/// A part of a join that ends before the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// The duration in seconds.
    pub seconds: f64,
    /// The longest of the concurrent parts of the phase.
    pub bound: Bound,
}

/// The resource that limits a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Transfers over the link.
    Transfer,
    /// Random access to GPU memory.
    GpuRandomAccess,
    /// The GPU's random access to CPU memory.
    LinkRandomAccess,
    /// The multiprocessors, and sequential access to GPU memory.
    GpuWork,
    /// Sequential access to CPU memory.
    CpuMemory,
    /// The CPU's random access to CPU memory.
    CpuRandomAccess,
    /// The CPU's instructions.
    CpuWork,
    /// All processors working together.
    BothProcessors,
    /// Kernel launches.
    Launches,
    /// Bytes over a network.
    Network,
    /// Messages over a network, whatever their bytes.
    Messages,
    /// Compression.
    Codec,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Transfer => "transfer",
            Self::GpuRandomAccess => "random access to GPU memory",
            Self::LinkRandomAccess => "random access over the link",
            Self::GpuWork => "the GPU's work",
            Self::CpuMemory => "CPU memory",
            Self::CpuRandomAccess => "random access to CPU memory",
            Self::CpuWork => "the CPU's work",
            Self::BothProcessors => "both processors",
            Self::Launches => "launches",
            Self::Network => "the network",
            Self::Messages => "messages",
            Self::Codec => "compression",
        })
    }
}

/// Bytes that cross the link.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LinkBytes {
    /// From CPU memory.
    pub to_gpu: f64,
    /// To CPU memory.
    pub to_cpu: f64,
}

impl LinkBytes {
    /// Both directions.
    pub fn total(&self) -> f64 {
        self.to_gpu + self.to_cpu
    }
}

/// Why a strategy is not possible. `Display` and JSON show it as a sentence.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// There is no GPU.
    NoGpu {
        /// Why there is no GPU.
        because: String,
    },
    /// A required figure is missing.
    NotMeasured {
        /// What was not measured.
        figure: &'static str,
    },
    /// CPU and GPU cannot share a table that both modify.
    NoSystemAtomics {
        /// The kind of link.
        link: String,
    },
    /// The strategy needs more GPU memory than it may use.
    GpuMemory {
        /// What needs the memory.
        what: &'static str,
        /// Bytes needed at least.
        needed: f64,
        /// Bytes allowed.
        limit: f64,
    },
    /// The strategy needs more CPU memory than there is.
    CpuMemory {
        /// What needs the memory.
        what: &'static str,
        /// Bytes needed.
        needed: f64,
        /// Bytes available.
        limit: f64,
    },
    /// The GPU would access CPU memory at random over a range without a known rate.
    RandomRange {
        /// Bytes of the range.
        needed: f64,
        /// Bytes up to which rates are known.
        known: f64,
    },
    /// The machine has no network.
    NoNetwork {
        /// The machine's name.
        machine: String,
    },
    /// The network does not lead to other nodes.
    OneNode {
        /// The number of nodes asked for.
        nodes: u32,
    },
    /// The ranks do not fill their nodes.
    UnevenNodes {
        /// The number of ranks.
        ranks: u32,
        /// The number of ranks that a node has.
        ranks_per_node: u32,
    },
    /// Two levels would do the same as one.
    OneLevel,
    /// Nothing crosses nodes.
    NothingToCompress,
    /// How much smaller columns become is unknown.
    NoCompressionRatio,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGpu { because } => write!(f, "there is no GPU: {because}"),
            Self::NotMeasured { figure } => write!(f, "{figure} was not measured: run overspill machine --measure"),
            Self::NoSystemAtomics { link } => write!(
                f,
                "{link} has no system-wide atomics, without which CPU and GPU cannot build one table together"
            ),
            Self::GpuMemory { what, needed, limit } => write!(
                f,
                "{what} need at least {} of GPU memory, and the limit is {}",
                Gibibytes(*needed),
                Gibibytes(*limit)
            ),
            Self::CpuMemory { what, needed, limit } => {
                write!(f, "{what} need {} of CPU memory, and there are {}", Gibibytes(*needed), Gibibytes(*limit))
            }
            Self::RandomRange { needed, known } => write!(
                f,
                "the GPU would access {} of CPU memory at random, and its rate is known up to {} only",
                Gibibytes(*needed),
                Gibibytes(*known)
            ),
            Self::NoNetwork { machine } => {
                write!(f, "the figures of {machine} are those of one machine, without a network")
            }
            Self::OneNode { nodes } => {
                write!(f, "the network connects the ranks of one node, and the join would be on {nodes} nodes")
            }
            Self::UnevenNodes { ranks: 0, .. } => f.write_str("a join needs at least one rank"),
            Self::UnevenNodes { ranks, ranks_per_node } => {
                write!(
                    f,
                    "{ranks} ranks do not fill nodes of {ranks_per_node}: some nodes would have more work than others"
                )
            }
            Self::OneLevel => f.write_str("two levels need several nodes with several ranks each"),
            Self::NothingToCompress => {
                f.write_str("all ranks are on one node, and only what crosses nodes is compressed")
            }
            Self::NoCompressionRatio => f.write_str("how much smaller the columns become compressed was not said"),
        }
    }
}

impl std::error::Error for Refusal {}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A size in bytes, displayed in words.
struct Gibibytes(f64);

impl fmt::Display for Gibibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) = if self.0 >= 1e9 { ("GiB", 1u64 << 30) } else { ("MiB", 1 << 20) };
        write!(f, "{:.1} {unit}", self.0 / bytes as f64)
    }
}

/// The cost of a strategy, from which its [`Prediction`] is made.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    pub(crate) phases: Vec<Phase>,
    pub(crate) link_bytes: LinkBytes,
}

impl Cost {
    /// Adds a phase that takes as long as the longest of its concurrent parts.
    pub(crate) fn phase(&mut self, name: &'static str, parts: &[(Bound, f64)]) {
        let longest = parts.iter().max_by(|one, other| one.1.total_cmp(&other.1));
        if let Some(&(bound, seconds)) = longest {
            self.phases.push(Phase { name, seconds, bound });
        }
    }

    /// Seconds of all phases.
    pub(crate) fn seconds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }

    /// Adds a phase of `count` kernel launches of `launch` seconds each.
    pub(crate) fn launches(&mut self, count: f64, launch: f64) {
        self.phase("launches", &[(Bound::Launches, count * launch)]);
    }
}

impl Prediction {
    pub(crate) fn new(strategy: Strategy, join: &Join, cost: Result<Cost, Refusal>) -> Self {
        match cost {
            Ok(cost) => {
                let seconds = cost.seconds();
                let Cost { phases, link_bytes } = cost;
                let tuples_per_second = if seconds > 0.0 { join.rows() / seconds } else { 0.0 };
                Self { strategy, seconds, tuples_per_second, phases, link_bytes, refusal: None }
            }
            Err(refusal) => Self {
                strategy,
                seconds: f64::INFINITY,
                tuples_per_second: 0.0,
                phases: Vec::new(),
                link_bytes: LinkBytes::default(),
                refusal: Some(refusal),
            },
        }
    }
}
