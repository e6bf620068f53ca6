//! The settings of Overspill, `SET overspill.… = …`.

use datafusion::common::config::ConfigExtension;
use datafusion::common::extensions_options;

extensions_options! {
    /// Settings of the joins, read when a query is planned and when it runs.
    ///
    /// In SQL they are spelled `overspill.NAME`, as in `SET overspill.spill = false`.
    pub struct OverspillConfig {
        /// Whether equi-joins run on Overspill's operator. When false, DataFusion's own join operators are used.
        pub enabled: bool, default = true

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
