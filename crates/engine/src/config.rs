//! The settings of Overspill, `SET overspill.… = …`.

use std::any::Any;
use std::fmt;
use std::str::FromStr;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigField, ExtensionOptions, Visit};
use datafusion::common::config_namespace;
use datafusion::common::{DataFusionError, Result};
use overspill_advisor::{Levels, PrefixSumProcessor, Strategy};
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

/// In which order joins run: `auto`, `as_written` or `random:SEED`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JoinOrder {
    /// The cheapest, if it is clearly cheaper than the order as written.
    #[default]
    Auto,
    /// As the query has them, with the build sides that DataFusion chooses.
    AsWritten,
    /// Drawn by a number, of all orders that give the same rows.
    Random(u64),
}

impl From<JoinOrder> for overspill_planner::Mode {
    fn from(order: JoinOrder) -> Self {
        match order {
            JoinOrder::Auto => Self::Auto,
            JoinOrder::AsWritten => Self::AsWritten,
            JoinOrder::Random(seed) => Self::Random(seed),
        }
    }
}

impl fmt::Display for JoinOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::AsWritten => f.write_str("as_written"),
            Self::Random(seed) => write!(f, "random:{seed}"),
        }
    }
}

impl FromStr for JoinOrder {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let lower = text.trim().to_ascii_lowercase();
        let seed = lower.strip_prefix("random:").and_then(|seed| seed.parse().ok());
        match (lower.as_str(), seed) {
            ("auto", _) => Ok(Self::Auto),
            ("as_written", _) => Ok(Self::AsWritten),
            (_, Some(seed)) => Ok(Self::Random(seed)),
            _ => Err(DataFusionError::Configuration(format!(
                "overspill.join_order = '{text}' is none of: auto, as_written, random:SEED, where SEED is a whole number from 0 to {}",
                u64::MAX
            ))),
        }
    }
}

impl ConfigField for JoinOrder {
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
named!(Levels, "overspill.shuffle_levels");

/// Makes a type whose values are those of a setting.
macro_rules! values {
    ($(#[$about:meta])* $type:ident, $setting:literal { $($(#[$meaning:meta])* $value:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$meaning])* $value,)+ }

        impl Named for $type {
            const SETTING: &'static str = $setting;
            const VALUES: &'static [Self] = &[$(Self::$value),+];

            fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)+ }
            }
        }
    };
}

values! {
    /// Whether joins look rows up in indexes, where `auto` decides by the number of keys.
    IndexUse, "overspill.indexes" {
        /// Wherever there is an index.
        Always = "always",
        /// Nowhere.
        Never = "never",
    }
}

values! {
    /// Whether joins compress what they write to spill files, where `auto` measures which is faster.
    BlockCompression, "overspill.spill_compression" {
        /// By cascades of layers (`docs/codec.md`).
        Cascaded = "cascaded",
        /// As DataFusion's setting says.
        Off = "off",
    }
}

values! {
    /// How rows are compressed on their way between the tasks of a cluster.
    ShuffleCompression, "overspill.shuffle_compression" {
        /// By cascades of layers (`docs/codec.md`).
        Cascaded = "cascaded",
        /// As Ballista's setting says.
        Off = "off",
    }
}

values! {
    /// Whether rows cross the link to a GPU compressed, where `auto` asks the cost model.
    GpuLinkCompression, "overspill.gpu_link_compression" {
        /// By cascades of layers (`docs/codec.md`).
        Cascaded = "cascaded",
        /// As they are.
        Off = "off",
    }
}

values! {
    /// In which order a filter evaluates its conjuncts, where `auto` measures their costs and pass rates.
    FilterOrder, "overspill.filter_order" {
        /// As the query has them.
        AsWritten = "as_written",
    }
}

values! {
    /// Which side of a join is its build side, where `auto` lets the sides change roles if the planned one turns out much larger than estimated.
    BuildSide, "overspill.build_side" {
        /// The one that was planned.
        Planned = "planned",
        /// The other one, wherever it can be.
        Exchanged = "exchanged",
    }
}

values! {
    /// How a filter and the aggregate above it run, where `auto` decides by the share of rows that pass.
    Selection, "overspill.selection" {
        /// As two operators.
        Off = "off",
        /// In one operator, which reads a row's next column only if the row has passed so far.
        Branching = "branching",
        /// In one operator, which evaluates all columns and masks rows that do not pass.
        Predicated = "predicated",
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
        /// Whether joins and filters, also with aggregates above them, run on Overspill's operators. When false, DataFusion's own are used.
        pub enabled: bool, default = true

        /// How joins run in memory: no_partition: all threads build one hash table and probe it; radix: the same, with probe rows partitioned by the region of the table that they look into, so that it fits a cache; hybrid: both sides are partitioned and each thread joins partitions of its own; gpu_no_partition: a GPU builds one hash table and probe rows are streamed past it; triton: a GPU partitions both sides until partitions fit its scratchpad memory; cpu_partitioned: the same, with the first pass on the CPU; het: CPU and GPU probe one hash table in CPU memory; gpu_het: CPU and GPU each probe a copy in their own memory; auto: chosen by the estimated size of the build side, by whether the plan uses the partitions, and by the measurements of the machine.
        pub strategy: Choice<Strategy>, default = Choice::AUTO

        /// Whether a join or a filter looks rows of an indexed table up (CREATE INDEX) in place of scanning it: auto, if they are few beside its rows; always, wherever there is an index; never.
        pub indexes: Choice<IndexUse>, default = Choice::AUTO

        /// The folder for indexes of files. Empty: the folder .overspill beside the files.
        pub index_dir: String, default = String::new()

        /// The layout of hash tables: perfect, for keys of up to 64 bits from a narrow range; linear_probing, for unique keys of up to 64 bits; unchained, for all keys; auto, the first of these that the keys allow. A layout that the keys do not allow is replaced in the same way.
        pub hash_table: Choice<TableChoice>, default = Choice::AUTO

        /// Where joins and selections run: cpu, gpu, emulated (a stand-in for a GPU that runs its kernels on the CPU, for tests), or auto: the CPU, unless the strategy is one of a GPU or the cost model prefers a measured GPU, which it never does for selections. Joins that a GPU cannot run, or in which it fails, continue on the CPU; EXPLAIN ANALYZE VERBOSE shows the reason.
        pub device: Choice<DeviceKind>, default = Choice::AUTO

        /// The number of GPUs that hold the hash tables of gpu_no_partition together, page by page, and probe them; 0 is all GPUs. If they cannot access each other's memory, the first joins alone, and EXPLAIN ANALYZE VERBOSE shows the reason. Everything else runs on the first.
        pub gpus: usize, default = 1

        /// The limit, in bytes, on the memory of each GPU that joins and selections with this limit and the same overspill.gpus use together; at least 16 MiB. 0 is nine tenths of the GPU's memory.
        pub gpu_memory_limit: usize, default = 0

        /// CPU memory, in bytes, that stays registered with the GPU's driver after a join, for later joins, as registering a few GB takes a second. It counts against no other limit while no join uses it. 0 is a sixteenth of the machine's memory.
        pub gpu_pinned_memory: usize, default = 0

        /// How probe rows reach a hash table on the GPU, and columns a selection: pageable-copy, staged-copy, dynamic-pinning, pinned-copy, unified-prefetch, unified-migration, zero-copy, coherence, or auto: coherence on links that support it, else zero-copy.
        pub transfer_method: Choice<TransferMethod>, default = Choice::AUTO

        /// How probe rows of gpu_no_partition, and partitions of cpu_partitioned, cross the link: cascaded: compressed by layers of run-length and delta encoding and bit packing, if that makes them smaller; off: as they are; auto: compressed if they then arrive sooner, by the link's rate among the measurements of the machine and a sample of the rows, and without measurements as they are. With a transfer method other than the fastest, probe rows are not compressed.
        pub gpu_link_compression: Choice<GpuLinkCompression>, default = Choice::AUTO

        /// The share of a relation, from 0 to 1, that triton caches in GPU memory if all of it would fit.
        pub gpu_cached_share: f64, default = 0.79

        /// Whether kernels aggregate the pairs of a join themselves (count, sum, min and max of columns of up to 8 bytes, without groups) if the query needs nothing else of them, so that no pairs are written or cross the link. When false, the CPU receives the pairs.
        pub gpu_aggregates: bool, default = true

        /// Which processor counts the keys of each partition before the first pass of triton: cpu, while the GPU serves other joins; gpu, which then reads the keys twice; or auto: the one that reads them sooner by the measurements of the machine, or, without measurements, the CPU, unless a single thread would count for a GPU on a coherent link.
        pub gpu_prefix_sum: Choice<PrefixSumProcessor>, default = Choice::AUTO

        /// How a filter that compares columns with constants runs with an aggregate without groups above it. In one pass: branching reads a row's next column only if the row has passed so far, predicated evaluates all columns and masks rows that fail, auto chooses by the share of rows that pass. off leaves both to operators of their own. With overspill.device = gpu the GPU does it.
        pub selection: Choice<Selection>, default = Choice::AUTO

        /// In which order a filter evaluates the conditions that AND joins: auto: as their measured costs and pass rates say; no condition is evaluated on a row for which it may fail if the written order would have dropped the row before; as_written.
        pub filter_order: Choice<FilterOrder>, default = Choice::AUTO

        /// Whether a join that has read its build side lets nodes below its probe side drop rows with other keys, before further joins, aggregates and sorts see them. Tests of a scan pause while more than two of three rows pass.
        pub membership_filters: bool, default = true

        /// Whether aggregates with groups have tables that fit a cache, for the rows of a stream and then for those of a partition. When false, DataFusion's nodes do, by one table a stream.
        pub hybrid_aggregates: bool, default = true

        /// In which order the joins of a query run: auto: the one that is estimated to be cheapest, if it is clearly cheaper than the order as written; as_written; random:SEED: any order that gives the same rows, drawn by this number, for tests.
        pub join_order: JoinOrder, default = JoinOrder::Auto

        /// Which side of a join its hash table stores. auto: the side that the planner chose; but if it has more than 4 times its estimated rows, the join reads both sides and stores the one that ends first. planned: always the side that the planner chose. exchanged: the other side, for tests. Joins on a GPU, joins with an index and NOT IN always store the planned side.
        pub build_side: Choice<BuildSide>, default = Choice::AUTO

        /// How many rows of a filtered table are read while a query with joins is planned, to count those that pass. More take longer, and tell rarer rows. A table with up to 4 times as many is read as a whole. They are read from Parquet files on this machine, and kept for later queries. 0: none are read.
        pub sampled_rows: usize, default = 32768

        /// Whether equal parts of a query with an aggregate, DISTINCT, a window or the first rows of a sort, such as a WITH that is read several times, run once. Rows that are yet to be read again stay in memory, or move to disk.
        pub shared_subplans: bool, default = true

        /// Whether a join may move its state to disk. When false, a join that outgrows its memory fails.
        pub spill: bool, default = true

        /// How joins compress their spill files: cascaded: integers, dates, decimals and codes by layers of run-length and delta encoding and bit packing, texts by lz4; off: as datafusion.execution.spill_compression says; auto: writes a few batches both ways and goes on with the one that takes less time.
        pub spill_compression: Choice<BlockCompression>, default = Choice::AUTO

        /// How rows are compressed on their way between tasks of a cluster: cascaded: as blocks, like those of spill_compression; off: by Arrow, as ballista.shuffle.compression.codec says; auto: cascaded.
        pub shuffle_compression: Choice<ShuffleCompression>, default = Choice::AUTO

        /// How rows go from rank to rank under mpirun: one: to each directly; two: to other nodes by the ranks of the same number there, in fewer and larger messages; auto: two if there are several nodes with several ranks.
        pub shuffle_levels: Choice<Levels>, default = Choice::AUTO

        /// The limit, in bytes, on the state of one join before it spills. 0: only the memory pool limits it.
        pub join_memory_limit: usize, default = 0

        /// The maximum number of partitions of one partitioning pass of a spilling join, a power of two from 2 to 256. With little memory a pass makes fewer.
        pub max_fanout: usize, default = 64

        /// How often a partition that is still too large is partitioned again, before it is joined in passes over chunks of its build side.
        pub max_recursion_depth: usize, default = 8
    }
}

impl ConfigExtension for OverspillConfig {
    const PREFIX: &'static str = "overspill";
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
        // DataFusion takes the prefix away before it asks for a change.
        ConfigField::set(self, key, &setting_in_bytes(&format!("{}.{key}", Self::PREFIX), value)?)
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
