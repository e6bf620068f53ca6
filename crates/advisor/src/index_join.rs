//! Joins that look up the keys of one side in an index over the other (paper 3: Schmeißer, Lutz and Markl, *Efficiently Indexing Large
//! Data on GPUs with Fast Interconnects*, EDBT 2025).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::prediction::{LinkBytes, Phase, Refusal};

/// The kind of an index over sorted keys (section 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexKind {
    /// The sorted keys alone.
    BinarySearch,
    /// A B+tree with nodes of a page, 4 KiB, as in the paper.
    #[serde(rename = "btree")]
    BTree,
    /// A B+tree with nodes of a line, 64 bytes.
    #[serde(rename = "line_btree")]
    LineBTree,
    /// Harmonia: a B+tree of 32 keys a node, with the children of nodes in an array of their own.
    Harmonia,
    /// RadixSpline: a spline through the keys, and a table that finds its points.
    RadixSpline,
}

impl IndexKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::BinarySearch, Self::BTree, Self::LineBTree, Self::Harmonia, Self::RadixSpline];

    /// The name, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::BinarySearch => "binary_search",
            Self::BTree => "btree",
            Self::LineBTree => "line_btree",
            Self::Harmonia => "harmonia",
            Self::RadixSpline => "radix_spline",
        }
    }
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IndexKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no index of the kind {name:?}; known are {names}")
        })
    }
}

/// Who looks keys up, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupWay {
    /// The CPU's threads, as keys come.
    Cpu,
    /// The GPU, as keys come.
    Gpu,
    /// The GPU, in windows that it partitions first (section 5).
    GpuWindows,
}

impl LookupWay {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Gpu, Self::GpuWindows];

    /// What is done, in a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Gpu => "GPU, as keys come",
            Self::GpuWindows => "GPU, in windows",
        }
    }
}

/// The join to predict. The sorted keys and the index over them, which is there before, lie in CPU memory, as do the keys to look up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IndexJoin {
    /// The number of indexed keys, of 8 bytes.
    pub indexed_rows: u64,
    /// The number of keys that are looked up.
    pub lookups: u64,
    /// The keys that windows partition at a time.
    pub window: u64,
    /// CPU threads that the join may use; `None` for all.
    pub threads: Option<usize>,
}

impl IndexJoin {
    /// Keys of a window unless otherwise said: 32 MiB of them (section 5.2.2).
    pub const WINDOW: u64 = 1 << 22;

    /// Looks up `lookups` keys among `indexed_rows`.
    pub fn new(indexed_rows: u64, lookups: u64) -> Self {
        Self { indexed_rows, lookups, window: Self::WINDOW, threads: None }
    }
}

/// The predicted cost of an index join.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IndexPrediction {
    /// The kind of the index.
    pub kind: IndexKind,
    /// Who looks keys up, and how.
    pub way: LookupWay,
    /// Seconds of the whole join; infinite, and null in JSON, if it is refused.
    pub seconds: f64,
    /// Reads of memory that a lookup waits for, as caches do not have what it needs.
    pub reads: f64,
    /// Translations that a lookup of the GPU requests from the CPU.
    pub translations: f64,
    /// The sequential phases.
    pub phases: Vec<Phase>,
    /// Bytes over the link.
    pub link_bytes: LinkBytes,
    /// Why it is not possible, or `None` if it is.
    pub refusal: Option<Refusal>,
}
