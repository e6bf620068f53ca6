//! The settings of Overspill, `SET overspill.… = …`.

use std::any::Any;
use std::fmt;
use std::str::FromStr;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigField, ExtensionOptions, Visit};
use datafusion::common::config_namespace;
use datafusion::common::{DataFusionError, Result};
use overspill_join::selection::Evaluation;
use overspill_machine::transfer::TransferMethod;

use crate::size::{Size, is_size, setting_in_bytes};

/// How joins run in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// By the estimated size of the build side, by what the plan does with partitions, and by what was measured of the machine.
    #[default]
    Auto,
    /// One hash table, built and probed by all threads.
    NoPartition,
    /// The same, but probe rows are partitioned before they look into a table that is larger than a cache.
    Radix,
    /// Both sides are partitioned, and each thread joins partitions of its own.
    Hybrid,
    /// A GPU builds one hash table, and probe rows are streamed past it.
    GpuNoPartition,
    /// A GPU partitions both sides until their partitions fit its scratchpad memory.
    Triton,
    /// The CPU partitions both sides, and a GPU partitions them further and joins them.
    CpuPartitioned,
    /// One hash table in CPU memory, which CPU and GPU probe together.
    Het,
    /// A GPU builds one hash table in its memory, the CPU gets a copy, and both probe.
    GpuHet,
}

/// Where joins run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// On the CPU, unless the strategy asks for a GPU, or one was measured that the cost model prefers.
    #[default]
    Auto,
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Gpu,
    /// On a stand-in for a GPU, which runs its kernels on the CPU: for tests, as it is slow.
    Emulated,
}

/// How probe rows reach the GPU; without a method, by the one that suits its link.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Transfer(pub Option<TransferMethod>);

/// Which processor counts keys before the first pass of `triton`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum PrefixSumChoice {
    /// The one that reads them sooner.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU, to which keys come twice.
    Gpu,
}

/// Makes an enum a setting, whose values have names.
macro_rules! named_values {
    ($setting:literal, $type:ty, [$(($value:expr, $name:literal)),+ $(,)?]) => {
        impl $type {
            const NAMED: &[(Self, &str)] = &[$(($value, $name)),+];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Self::NAMED.iter().find(|(value, _)| value == self).map_or("", |(_, name)| name))
            }
        }

        impl FromStr for $type {
            type Err = DataFusionError;

            fn from_str(text: &str) -> Result<Self> {
                let found = Self::NAMED.iter().find(|(_, name)| text.eq_ignore_ascii_case(name));
                found.map(|(value, _)| *value).ok_or_else(|| {
                    let names = [$($name),+].join(", ");
                    DataFusionError::Configuration(format!("{} = '{text}' is none of: {names}", $setting))
                })
            }
        }

        impl ConfigField for $type {
            fn visit<V: Visit>(&self, visit: &mut V, key: &str, description: &'static str) {
                visit.some(key, self, description);
            }

            fn set(&mut self, _: &str, value: &str) -> Result<()> {
                *self = value.parse()?;
                Ok(())
            }
        }
    };
}

named_values!(
    "overspill.strategy",
    Strategy,
    [
        (Strategy::Auto, "auto"),
        (Strategy::NoPartition, "no_partition"),
        (Strategy::Radix, "radix"),
        (Strategy::Hybrid, "hybrid"),
        (Strategy::GpuNoPartition, "gpu_no_partition"),
        (Strategy::Triton, "triton"),
        (Strategy::CpuPartitioned, "cpu_partitioned"),
        (Strategy::Het, "het"),
        (Strategy::GpuHet, "gpu_het"),
    ]
);

named_values!(
    "overspill.device",
    DeviceChoice,
    [
        (DeviceChoice::Auto, "auto"),
        (DeviceChoice::Cpu, "cpu"),
        (DeviceChoice::Gpu, "gpu"),
        (DeviceChoice::Emulated, "emulated"),
    ]
);

named_values!(
    "overspill.transfer_method",
    Transfer,
    [
        (Transfer(None), "auto"),
        (Transfer(Some(TransferMethod::PageableCopy)), "pageable-copy"),
        (Transfer(Some(TransferMethod::StagedCopy)), "staged-copy"),
        (Transfer(Some(TransferMethod::DynamicPinning)), "dynamic-pinning"),
        (Transfer(Some(TransferMethod::PinnedCopy)), "pinned-copy"),
        (Transfer(Some(TransferMethod::UnifiedPrefetch)), "unified-prefetch"),
        (Transfer(Some(TransferMethod::UnifiedMigration)), "unified-migration"),
        (Transfer(Some(TransferMethod::ZeroCopy)), "zero-copy"),
        (Transfer(Some(TransferMethod::Coherence)), "coherence"),
    ]
);

named_values!(
    "overspill.gpu_prefix_sum",
    PrefixSumChoice,
    [(PrefixSumChoice::Auto, "auto"), (PrefixSumChoice::Cpu, "cpu"), (PrefixSumChoice::Gpu, "gpu")]
);

/// Which hash table joins make, where keys allow it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum HashTable {
    /// The first of the others that keys allow.
    #[default]
    Auto,
    /// A slot for each key of a range.
    Perfect,
    /// Linear probing over cache lines.
    LinearProbing,
    /// Entries ordered by bucket, and a directory of buckets.
    Unchained,
}

named_values!(
    "overspill.hash_table",
    HashTable,
    [
        (HashTable::Auto, "auto"),
        (HashTable::Perfect, "perfect"),
        (HashTable::LinearProbing, "linear_probing"),
        (HashTable::Unchained, "unchained"),
    ]
);

/// How filters below aggregates run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum SelectionChoice {
    /// Together, the way that suits the rows that pass.
    #[default]
    Auto,
    /// Each for itself, as DataFusion's operators.
    Off,
    /// Together: a row's next column is looked at only if the row is still in.
    Branching,
    /// Together: all columns are looked at, and what does not count is masked.
    Predicated,
}

impl SelectionChoice {
    /// The way; of what runs together already `Off` leaves it open.
    pub(crate) fn evaluation(self) -> Evaluation {
        match self {
            Self::Auto | Self::Off => Evaluation::Auto,
            Self::Branching => Evaluation::Branching,
            Self::Predicated => Evaluation::Predicated,
        }
    }
}

named_values!(
    "overspill.selection",
    SelectionChoice,
    [
        (SelectionChoice::Auto, "auto"),
        (SelectionChoice::Off, "off"),
        (SelectionChoice::Branching, "branching"),
        (SelectionChoice::Predicated, "predicated"),
    ]
);

config_namespace! {
    /// Settings of the joins, read when a query is planned and when it runs.
    ///
    /// In SQL they are spelled `overspill.NAME`, as in `SET overspill.spill = false`.
    pub struct OverspillConfig {
        /// Whether joins, and filters with aggregates above them, run on Overspill's operators. When false, DataFusion's own are used.
        pub enabled: bool, default = true

        /// How joins run in memory: no_partition lets all threads build one hash table and probe it, radix does the same but partitions probe rows by the part of the table that they look into, so that it fits a cache, hybrid partitions both sides and gives each thread partitions of its own, gpu_no_partition lets a GPU build one hash table and streams probe rows past it, triton lets a GPU partition both sides until partitions fit its scratchpad memory, cpu_partitioned does the same but lets the CPU begin, het lets CPU and GPU probe one hash table in CPU memory together, gpu_het gives each of them a copy in memory of its own, and auto decides by the estimated size of the build side, by what the plan does with partitions, and by what was measured of the machine.
        pub strategy: Strategy, default = Strategy::Auto

        /// Which hash table joins make: perfect takes keys of up to 64 bits that lie close together, linear_probing those of up to 64 bits that are there once, unchained any; auto takes the first of these that keys allow, and so does each of them where they do not allow it.
        pub hash_table: HashTable, default = HashTable::Auto

        /// Where joins and selections run: cpu, gpu, emulated (a stand-in for a GPU that runs its kernels on the CPU, for tests), or auto, which is the CPU unless the strategy is one of a GPU, or a GPU was measured that the cost model prefers, and for selections always. Joins that a GPU cannot take, or in which it fails, go on on the CPU; EXPLAIN ANALYZE VERBOSE says why.
        pub device: DeviceChoice, default = DeviceChoice::Auto

        /// How many GPUs hold the hash tables of gpu_no_partition together, page by page, and probe them; 0 is all that there are. They must reach each other's memory, or the first joins alone, and EXPLAIN ANALYZE VERBOSE says why. Everything else is done by the first.
        pub gpus: usize, default = 1

        /// The most GPU memory, in bytes, of each GPU, that joins and selections with this limit and the same overspill.gpus use together, 16 MiB at least. 0 is nine tenths of what the GPU has.
        pub gpu_memory_limit: usize, default = 0

        /// CPU memory, in bytes, that stays registered with the GPU's driver when a join is done with it, for those that come; registering a few GB takes a second. It counts against no other limit while no join has it.
        pub gpu_pinned_memory: usize, default = 64 << 20

        /// How probe rows reach a hash table on the GPU, and columns a selection: pageable-copy, staged-copy, dynamic-pinning, pinned-copy, unified-prefetch, unified-migration, zero-copy, coherence, or auto, which is coherence on links that have it and zero-copy on others.
        pub transfer_method: Transfer, default = Transfer(None)

        /// The share of a relation partitioned by triton that is cached in GPU memory where there is room for all of it, from 0 to 1.
        pub gpu_cached_share: f64, default = 0.79

        /// Whether kernels aggregate the pairs of a join themselves (count, sum, min and max of columns of up to 8 bytes, without groups) where a query wants nothing else of them, so that no pairs are written or cross the link. When false, the CPU gets the pairs.
        pub gpu_aggregates: bool, default = true

        /// Which processor counts the keys of each partition before the first pass of triton: cpu, while the GPU works for others; gpu, to which keys come twice; or auto, which is the one that reads them sooner by what was measured of the machine, and if nothing was the CPU, unless one thread would have to count for a GPU on a coherent link.
        pub gpu_prefix_sum: PrefixSumChoice, default = PrefixSumChoice::Auto

        /// How a filter runs with the aggregate above it, where there are no groups and the filter compares columns with constants: in one pass, which looks at a row's next column only if the row is still in (branching) or computes everything and masks what does not count (predicated), or auto, which decides by the share of rows that pass; off leaves both to DataFusion. overspill.device = gpu lets the GPU do it.
        pub selection: SelectionChoice, default = SelectionChoice::Auto

        /// Whether a join may move its state to disk. When false, a join that outgrows its memory fails.
        pub spill: bool, default = true

        /// The most memory, in bytes, that the state of one join may hold before it spills, whatever the memory pool would still give. 0 leaves the decision to the memory pool.
        pub join_memory_limit: usize, default = 0

        /// The most partitions that one partitioning pass of a spilling join may make (a power of two from 2 to 256). The actual number also depends on the memory at hand.
        pub max_fanout: usize, default = 64

        /// How often a partition that is still too large may be partitioned again before it is joined in passes over chunks of its build side.
        pub max_recursion_depth: usize, default = 8
    }
}

impl ConfigExtension for OverspillConfig {
    const PREFIX: &'static str = "overspill";
}

/// A setting's name with the prefix, which DataFusion takes away before it asks for a change.
fn setting_name(key: &str) -> String {
    format!("{}.{key}", OverspillConfig::PREFIX)
}

/// By hand, because DataFusion's `extensions_options!` lists settings without their prefix, and `SHOW` then does not find
/// them.
impl ExtensionOptions for OverspillConfig {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        ConfigField::set(self, key, &setting_in_bytes(&setting_name(key), value)?)
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        struct Entries(Vec<ConfigEntry>);
        impl Visit for Entries {
            fn some<V: std::fmt::Display>(&mut self, key: &str, value: V, description: &'static str) {
                let value = value.to_string();
                let value = match value.parse() {
                    Ok(bytes) if is_size(key) => Size(bytes).exact(),
                    _ => value,
                };
                self.0.push(ConfigEntry { key: key.to_owned(), value: Some(value), description });
            }
            fn none(&mut self, key: &str, description: &'static str) {
                self.0.push(ConfigEntry { key: key.to_owned(), value: None, description });
            }
        }
        let mut entries = Entries(Vec::new());
        self.visit(&mut entries, Self::PREFIX, "");
        entries.0
    }
}
