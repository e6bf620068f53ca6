//! The settings of Overspill, `SET overspill.… = …`.

use std::any::Any;
use std::fmt;
use std::str::FromStr;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigField, ExtensionOptions, Visit};
use datafusion::common::config_namespace;
use datafusion::common::{DataFusionError, Result};
use overspill_advisor::{PrefixSumProcessor, Strategy};
use overspill_join::hash_table::TableChoice;
use overspill_join::selection::Evaluation;
use overspill_machine::DeviceKind;
use overspill_machine::transfer::TransferMethod;

use crate::size::{Size, is_size, setting_in_bytes};

/// A value of a setting that has a name.
pub trait Named: fmt::Debug + Copy + PartialEq + 'static {
    /// The setting, with the prefix.
    const SETTING: &'static str;
    /// All values.
    const VALUES: &'static [Self];

    /// The name, in lower case.
    fn name(self) -> &'static str;
}

/// A setting that is one of the values of `T`, or `auto`, which is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<T>(pub Option<T>);

impl<T> Choice<T> {
    /// Overspill chooses.
    pub const AUTO: Self = Self(None);
}

impl<T> Default for Choice<T> {
    fn default() -> Self {
        Self::AUTO
    }
}

impl<T> From<T> for Choice<T> {
    fn from(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Named> fmt::Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or("auto", T::name))
    }
}

impl<T: Named> FromStr for Choice<T> {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let mut known = std::iter::once(Self::AUTO).chain(T::VALUES.iter().map(|value| Self(Some(*value))));
        known.find(|choice| choice.to_string().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let names = T::VALUES.iter().map(|value| value.name()).collect::<Vec<_>>().join(", ");
            DataFusionError::Configuration(format!("{} = '{text}' is none of: auto, {names}", T::SETTING))
        })
    }
}

impl<T: Named> ConfigField for Choice<T> {
    fn visit<V: Visit>(&self, visit: &mut V, key: &str, description: &'static str) {
        visit.some(key, self, description);
    }

    fn set(&mut self, _: &str, value: &str) -> Result<()> {
        *self = value.parse()?;
        Ok(())
    }
}

/// Makes a type with `ALL` and `name` the values of a setting.
macro_rules! named {
    ($type:ty, $setting:literal) => {
        impl Named for $type {
            const SETTING: &'static str = $setting;
            const VALUES: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                <$type>::name(self)
            }
        }
    };
}

named!(Strategy, "overspill.strategy");
named!(DeviceKind, "overspill.device");
named!(TableChoice, "overspill.hash_table");
named!(TransferMethod, "overspill.transfer_method");
named!(PrefixSumProcessor, "overspill.gpu_prefix_sum");
named!(Selection, "overspill.selection");

/// How a filter and the aggregate above it run, where `auto` decides by the share of rows that pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// As two operators of DataFusion.
    Off,
    /// In one operator, which reads a row's next column only if the row has passed so far.
    Branching,
    /// In one operator, which evaluates all columns and masks rows that do not pass.
    Predicated,
}

impl Selection {
    const ALL: [Self; 3] = [Self::Off, Self::Branching, Self::Predicated];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Branching => "branching",
            Self::Predicated => "predicated",
        }
    }
}

impl Choice<Selection> {
    /// The evaluation of operators that are already fused. `off` does not separate them.
    pub(crate) fn evaluation(self) -> Evaluation {
        match self.0 {
            None | Some(Selection::Off) => Evaluation::Auto,
            Some(Selection::Branching) => Evaluation::Branching,
            Some(Selection::Predicated) => Evaluation::Predicated,
        }
    }
}

config_namespace! {
    /// Settings of the joins, read when a query is planned and when it runs.
    ///
    /// In SQL they are spelled `overspill.NAME`, as in `SET overspill.spill = false`.
    pub struct OverspillConfig {
        /// Whether joins, and filters with aggregates above them, run on Overspill's operators. When false, DataFusion's own are used.
        pub enabled: bool, default = true

        /// How joins run in memory: no_partition lets all threads build one hash table and probe it, radix does the same but partitions probe rows by the part of the table that they look into, so that it fits a cache, hybrid partitions both sides and gives each thread partitions of its own, gpu_no_partition lets a GPU build one hash table and streams probe rows past it, triton lets a GPU partition both sides until partitions fit its scratchpad memory, cpu_partitioned does the same but lets the CPU begin, het lets CPU and GPU probe one hash table in CPU memory together, gpu_het gives each of them a copy in memory of its own, and auto decides by the estimated size of the build side, by what the plan does with partitions, and by what was measured of the machine.
        pub strategy: Choice<Strategy>, default = Choice::AUTO

        /// Which hash table joins make: perfect takes keys of up to 64 bits that lie close together, linear_probing those of up to 64 bits that are there once, unchained any; auto takes the first of these that keys allow, and so does each of them where they do not allow it.
        pub hash_table: Choice<TableChoice>, default = Choice::AUTO

        /// Where joins and selections run: cpu, gpu, emulated (a stand-in for a GPU that runs its kernels on the CPU, for tests), or auto, which is the CPU unless the strategy is one of a GPU, or a GPU was measured that the cost model prefers, and for selections always. Joins that a GPU cannot take, or in which it fails, go on on the CPU; EXPLAIN ANALYZE VERBOSE says why.
        pub device: Choice<DeviceKind>, default = Choice::AUTO

        /// How many GPUs hold the hash tables of gpu_no_partition together, page by page, and probe them; 0 is all that there are. They must reach each other's memory, or the first joins alone, and EXPLAIN ANALYZE VERBOSE says why. Everything else is done by the first.
        pub gpus: usize, default = 1

        /// The most GPU memory, in bytes, of each GPU, that joins and selections with this limit and the same overspill.gpus use together, 16 MiB at least. 0 is nine tenths of what the GPU has.
        pub gpu_memory_limit: usize, default = 0

        /// CPU memory, in bytes, that stays registered with the GPU's driver when a join is done with it, for those that come; registering a few GB takes a second. It counts against no other limit while no join has it.
        pub gpu_pinned_memory: usize, default = 64 << 20

        /// How probe rows reach a hash table on the GPU, and columns a selection: pageable-copy, staged-copy, dynamic-pinning, pinned-copy, unified-prefetch, unified-migration, zero-copy, coherence, or auto, which is coherence on links that have it and zero-copy on others.
        pub transfer_method: Choice<TransferMethod>, default = Choice::AUTO

        /// The share of a relation partitioned by triton that is cached in GPU memory where there is room for all of it, from 0 to 1.
        pub gpu_cached_share: f64, default = 0.79

        /// Whether kernels aggregate the pairs of a join themselves (count, sum, min and max of columns of up to 8 bytes, without groups) where a query wants nothing else of them, so that no pairs are written or cross the link. When false, the CPU gets the pairs.
        pub gpu_aggregates: bool, default = true

        /// Which processor counts the keys of each partition before the first pass of triton: cpu, while the GPU works for others; gpu, to which keys come twice; or auto, which is the one that reads them sooner by what was measured of the machine, and if nothing was the CPU, unless one thread would have to count for a GPU on a coherent link.
        pub gpu_prefix_sum: Choice<PrefixSumProcessor>, default = Choice::AUTO

        /// How a filter runs with the aggregate above it, where there are no groups and the filter compares columns with constants: in one pass, which looks at a row's next column only if the row is still in (branching) or computes everything and masks what does not count (predicated), or auto, which decides by the share of rows that pass; off leaves both to DataFusion. overspill.device = gpu lets the GPU do it.
        pub selection: Choice<Selection>, default = Choice::AUTO

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
