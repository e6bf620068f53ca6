//! How a join runs.

use std::sync::Arc;

use super::accelerator::Accelerator;
use crate::hash_table::TableChoice;
use crate::radix::ProbeRegions;
use crate::spec::JoinSpec;

/// A join, and how to run it.
#[derive(Debug)]
pub struct JoinPlan {
    /// What is joined.
    pub spec: Arc<JoinSpec>,
    /// The hash table to build.
    pub table_choice: TableChoice,
    /// The number of threads that build a hash table.
    pub build_threads: usize,
    /// How probe rows are partitioned, so that they probe one region of the hash table at a time; `None` if they probe the
    /// whole table in their original order.
    pub probe_regions: Option<ProbeRegions>,
    /// The processor that may join instead of the CPU; `None` to join on the CPU.
    pub accelerator: Option<Arc<dyn Accelerator>>,
    /// Maximum rows of an output batch.
    pub batch_size: usize,
}
