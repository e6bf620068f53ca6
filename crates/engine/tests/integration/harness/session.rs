//! Sessions to run a query in: stock DataFusion or Overspill, over a memory pool and a directory of their own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::common::config::SpillCompression;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::{
    BlockCompression, BuildSide, Choice, DeviceKind, GpuLinkCompression, OverspillConfig, OverspillSessionExt,
    PrefixSumProcessor, Strategy, TableChoice, TransferMethod,
};
use rand::Rng;
use rand::seq::IndexedRandom;
use tempfile::TempDir;

use super::pool::RecordingPool;

/// The settings of a session that both engines share.
#[derive(Clone, Debug)]
pub struct Settings {
    pub target_partitions: usize,
    pub batch_size: usize,
    /// Whether build sides are partitioned (`Partitioned`) or collected (`CollectLeft`), where both are possible.
    pub partitioned: bool,
    pub strategy: Choice<Strategy>,
    pub hash_table: Choice<TableChoice>,
    pub prefer_hash_join: bool,
    pub repartition_joins: bool,
    pub join_reordering: bool,
    pub dynamic_filters: bool,
    pub pushdown_filters: bool,
    pub spill_compression: SpillCompression,
    pub spill_blocks: Choice<BlockCompression>,
    pub max_fanout: usize,
    pub max_recursion_depth: usize,
    pub build_side: Choice<BuildSide>,
    /// The emulated device, if joins run there.
    pub device: Option<Device>,
}

/// How joins use the emulated device.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Of each of the devices.
    pub memory_limit: usize,
    /// How many of them.
    pub gpus: usize,
    pub transfer: Choice<TransferMethod>,
    pub cached_share: f64,
    pub aggregates: bool,
    pub prefix_sum: Choice<PrefixSumProcessor>,
    pub link_compression: Choice<GpuLinkCompression>,
}

impl Device {
    /// With this much memory; kernels hand all pairs on.
    pub fn with(memory_limit: usize) -> Self {
        let (transfer, prefix_sum, link_compression) = (Choice::AUTO, Choice::AUTO, Choice::AUTO);
        Self { memory_limit, gpus: 1, transfer, cached_share: 0.79, aggregates: false, prefix_sum, link_compression }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            target_partitions: 2,
            batch_size: 1024,
            partitioned: false,
            strategy: Choice::AUTO,
            hash_table: Choice::AUTO,
            prefer_hash_join: true,
            repartition_joins: true,
            join_reordering: true,
            dynamic_filters: true,
            pushdown_filters: false,
            spill_compression: SpillCompression::Uncompressed,
            spill_blocks: Choice::AUTO,
            max_fanout: 64,
            max_recursion_depth: 8,
            build_side: Choice::AUTO,
            device: None,
        }
    }
}

impl Settings {
    /// `rows` is the size of the largest table: tiny batches are for small tables only, or a case takes minutes.
    pub fn random(rng: &mut impl Rng, rows: usize) -> Self {
        let batch_sizes: &[usize] = if rows <= 200 { &[1, 7, 64, 8192] } else { &[100, 1000, 1024, 8192] };
        Self {
            target_partitions: *[1, 1, 2, 2, 3, 8].choose(rng).unwrap(),
            batch_size: *batch_sizes.choose(rng).unwrap(),
            partitioned: rng.random_bool(0.5),
            strategy: Choice(
                *[None, Some(Strategy::NoPartition), Some(Strategy::Radix), Some(Strategy::Hybrid)]
                    .choose(rng)
                    .unwrap(),
            ),
            hash_table: Choice(
                *[None, None, Some(TableChoice::LinearProbing), Some(TableChoice::Unchained)].choose(rng).unwrap(),
            ),
            prefer_hash_join: rng.random_bool(0.85),
            repartition_joins: rng.random_bool(0.9),
            join_reordering: rng.random_bool(0.7),
            dynamic_filters: rng.random_bool(0.6),
            pushdown_filters: rng.random_bool(0.5),
            spill_compression: *[SpillCompression::Uncompressed, SpillCompression::Lz4Frame, SpillCompression::Zstd]
                .choose(rng)
                .unwrap(),
            spill_blocks: Choice(
                *[None, Some(BlockCompression::Cascaded), Some(BlockCompression::Off)].choose(rng).unwrap(),
            ),
            max_fanout: *[2, 4, 16, 64, 256].choose(rng).unwrap(),
            max_recursion_depth: *[0, 1, 2, 8, 8, 8].choose(rng).unwrap(),
            build_side: Choice(*[None, Some(BuildSide::Exchanged), Some(BuildSide::Planned)].choose(rng).unwrap()),
            device: None,
        }
    }

    pub fn session_config(&self) -> SessionConfig {
        let mut config = SessionConfig::new()
            .with_target_partitions(self.target_partitions)
            .with_batch_size(self.batch_size)
            .with_repartition_joins(self.repartition_joins);
        let options = config.options_mut();
        options.optimizer.prefer_hash_join = self.prefer_hash_join;
        options.optimizer.join_reordering = self.join_reordering;
        options.optimizer.enable_dynamic_filter_pushdown = self.dynamic_filters;
        options.optimizer.enable_join_dynamic_filter_pushdown = self.dynamic_filters;
        options.execution.parquet.pushdown_filters = self.pushdown_filters;
        options.execution.spill_compression = self.spill_compression;
        // DataFusion's own thresholds would collect only build sides that are too small to spill.
        let threshold = if self.partitioned { 0 } else { usize::MAX };
        options.optimizer.hash_join_single_partition_threshold = threshold;
        options.optimizer.hash_join_single_partition_threshold_rows = threshold;
        config
    }
}

/// How much memory a run gets, and who enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Ample,
    Greedy(usize),
    Fair(usize),
    /// An unbounded pool with `overspill.join_memory_limit`.
    JoinLimit(usize),
}

impl Memory {
    /// Bytes.
    pub fn limit(self) -> usize {
        match self {
            Memory::Ample => usize::MAX,
            Memory::Greedy(limit) | Memory::Fair(limit) | Memory::JoinLimit(limit) => limit,
        }
    }
}

/// The engine that runs a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Stock,
    Overspill,
    /// Overspill with `overspill.spill = false`.
    OverspillInMemory,
}

/// One session, its pool and its temporary directory.
pub struct Session {
    pub ctx: SessionContext,
    pub pool: Arc<RecordingPool>,
    temp: TempDir,
}

impl Session {
    pub fn open(engine: Engine, settings: &Settings, memory: Memory) -> Result<Self> {
        let pool: Arc<dyn MemoryPool> = match memory {
            Memory::Ample | Memory::JoinLimit(_) => Arc::new(UnboundedMemoryPool::default()),
            Memory::Greedy(limit) => Arc::new(GreedyMemoryPool::new(limit)),
            Memory::Fair(limit) => Arc::new(FairSpillPool::new(limit)),
        };
        let join_memory_limit = if let Memory::JoinLimit(limit) = memory { limit } else { 0 };
        Self::open_over(engine, settings, pool, join_memory_limit)
    }

    pub fn open_over(
        engine: Engine,
        settings: &Settings,
        pool: Arc<dyn MemoryPool>,
        join_memory_limit: usize,
    ) -> Result<Self> {
        let temp = TempDir::new()?;
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![temp.path().into()]));
        Self::open_with(engine, settings, pool, join_memory_limit, disk, temp)
    }

    /// `temp` is the directory in which [`Self::files_left`] looks; `disk` says what the session writes to.
    pub fn open_with(
        engine: Engine,
        settings: &Settings,
        pool: Arc<dyn MemoryPool>,
        join_memory_limit: usize,
        disk: DiskManagerBuilder,
        temp: TempDir,
    ) -> Result<Self> {
        let pool = Arc::new(RecordingPool::new(pool));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(&pool) as _)
            .with_disk_manager_builder(disk)
            .build_arc()?;
        let mut session_config = settings.session_config();
        if engine == Engine::Stock {
            // DataFusion's sort-merge join takes -0.0 and 0.0 for different, and panics for some residual filters; the
            // bounds of its dynamic filters leave out one zero where the other is the bound. A column that is one value by the
            // statistics of a file and a filter it takes for one behind outer joins, too.
            session_config.options_mut().execution.collect_statistics = false;
            let optimizer = &mut session_config.options_mut().optimizer;
            optimizer.prefer_hash_join = true;
            optimizer.enable_dynamic_filter_pushdown = false;
            optimizer.enable_join_dynamic_filter_pushdown = false;
        }
        let builder =
            SessionStateBuilder::new_with_default_features().with_config(session_config).with_runtime_env(runtime);
        let builder = match engine {
            Engine::Stock => builder,
            Engine::Overspill | Engine::OverspillInMemory => builder.with_overspill(OverspillConfig {
                device: Choice(settings.device.map(|_| DeviceKind::Emulated)),
                gpus: settings.device.map_or(1, |device| device.gpus),
                gpu_memory_limit: settings.device.map_or(0, |device| device.memory_limit),
                transfer_method: settings.device.map_or(Choice::AUTO, |device| device.transfer),
                gpu_cached_share: settings.device.map_or(0.79, |device| device.cached_share),
                gpu_aggregates: settings.device.is_none_or(|device| device.aggregates),
                gpu_link_compression: settings.device.map_or(Choice::AUTO, |device| device.link_compression),
                gpu_prefix_sum: settings.device.map_or(Choice::AUTO, |device| device.prefix_sum),
                spill: engine == Engine::Overspill,
                join_memory_limit,
                strategy: settings.strategy,
                hash_table: settings.hash_table,
                spill_compression: settings.spill_blocks,
                max_fanout: settings.max_fanout,
                max_recursion_depth: settings.max_recursion_depth,
                build_side: settings.build_side,
                ..OverspillConfig::default()
            }),
        };
        let ctx = SessionContext::new_with_state(builder.build());
        Ok(Self { ctx, pool, temp })
    }

    /// Every file below the temporary directory.
    pub fn files_left(&self) -> Vec<String> {
        let mut found = vec![];
        files_below(self.temp.path(), &mut found);
        found
    }

    /// Says what is still held once a query is over: reserved memory and files. Tasks that were aborted may need a
    /// moment to let go, so it looks again for a while before it complains.
    pub async fn leftovers(&self) -> Option<String> {
        self.left_by(|| self.pool.reserved()).await
    }

    /// The same for what joins hold, while the plan is still there: other nodes let go only when it goes.
    pub async fn leftovers_of_joins(&self) -> Option<String> {
        self.left_by(|| self.pool.join_held()).await
    }

    async fn left_by(&self, reserved: impl Fn() -> usize) -> Option<String> {
        let mut complaint = None;
        for _ in 0..200 {
            let (reserved, files) = (reserved(), self.files_left());
            if reserved == 0 && files.is_empty() {
                return None;
            }
            let holders = self.pool.holders();
            complaint = Some(format!("left behind: {reserved} bytes reserved by {holders:?}, files {files:?}"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        complaint
    }
}

fn files_below(directory: &Path, found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path.display().to_string());
        }
    }
}
