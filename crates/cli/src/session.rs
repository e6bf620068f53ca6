//! The DataFusion session of the command line, with Overspill's joins, the memory and disk budgets, and files as tables.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::catalog::{DynamicFileCatalog, UrlTableFactory};
use datafusion::common::config::{ConfigNonZeroUsize, ConfigOptions};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::cancellation::interruptible;
use overspill::memory::HeadroomPool;
use overspill::size::setting_in_bytes;
use overspill::spill::SpillDirectory;
use overspill::{OverspillConfig, OverspillRuntime, OverspillSessionExt};

use crate::budget::Budget;
use crate::failure::{Failure, Outcome, plain, tell};
use crate::files::{ExternalTables, FileTables, LocalFilesOnly};
use crate::settings;

/// The maximum nesting depth of parentheses, functions and subqueries; DataFusion's own limit is 50.
const NESTING: usize = 300;

/// The resource limits of queries.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes in the temporary directory at a time; `None` for DataFusion's limit.
    pub temp: Option<usize>,
    /// The temporary directory that the user specified.
    pub temp_dir: Option<PathBuf>,
    pub threads: usize,
}

/// A session and its spill directory, which must outlive it.
pub struct Session {
    pub context: SessionContext,
    /// Declared last and thus dropped last: the session's disk manager first removes its own files in it.
    _spill: Option<SpillDirectory>,
}

impl Session {
    pub fn open(limits: &Limits, settings: &[(String, String)], shared: OverspillRuntime) -> Outcome<Self> {
        let budget = Budget::of(limits.memory, limits.threads);
        let mut config = SessionConfig::new()
            .with_information_schema(true)
            .with_target_partitions(limits.threads)
            .with_extension(Arc::new(shared));
        budget.apply(config.options_mut()).map_err(failed)?;
        let parser = &mut config.options_mut().sql_parser;
        // Record spans, so that errors point to their place.
        parser.collect_spans = true;
        parser.recursion_limit = ConfigNonZeroUsize::try_new(NESTING).map_err(failed)?;
        let spill = spill_directory(limits)?;
        let runtime = runtime(limits, &budget, spill.as_ref())?;
        let mut builder = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_runtime_env(Arc::clone(&runtime))
            .with_overspill(OverspillConfig::default())
            .with_analyzer_rule(Arc::new(settings::ExactLimits { runtime }));
        for (key, value) in settings {
            set(builder.config().get_or_insert_default().options_mut(), key, value)?;
        }
        let mut state = interruptible(builder).build();
        overspill::files::register(&mut state).map_err(failed)?;
        for factory in state.table_factories_mut().values_mut() {
            *factory = Arc::new(ExternalTables::default());
        }
        let context = with_files_as_tables(SessionContext::new_with_state(state));
        Ok(Self { context, _spill: spill })
    }
}

fn failed(error: DataFusionError) -> Failure {
    Failure::Message(plain(&error))
}

/// The directory for this process's spill files. If none was specified, a machine without a place for temporary files can
/// still run queries that fit in memory.
fn spill_directory(limits: &Limits) -> Outcome<Option<SpillDirectory>> {
    let Some(root) = &limits.temp_dir else {
        let opened = SpillDirectory::open(&std::env::temp_dir());
        let told = opened.inspect_err(|error| tell(&format!("warning: nothing can be spilled: {}", plain(error))));
        return Ok(told.ok());
    };
    SpillDirectory::open(root).map(Some).map_err(failed)
}

fn runtime(limits: &Limits, budget: &Budget, spill: Option<&SpillDirectory>) -> Outcome<Arc<RuntimeEnv>> {
    let disk = DiskManagerBuilder::default().with_max_spill_merge_fan_in(budget.merged_runs);
    let mut disk = disk.with_mode(match spill {
        Some(directory) => DiskManagerMode::Directories(vec![directory.path().to_path_buf()]),
        None => DiskManagerMode::Disabled,
    });
    if let Some(bytes) = limits.temp {
        disk.set_max_temp_directory_size(bytes as u64);
    }
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(HeadroomPool::new(limits.memory)))
        .with_disk_manager_builder(disk)
        .with_object_store_registry(Arc::new(LocalFilesOnly::default()))
        .with_metadata_cache_limit(budget.metadata_cache)
        // A cached listing would hide files that other programs, or COPY, add to a folder.
        .with_object_list_cache_limit(0)
        .build_arc()
        .map_err(failed)
}

/// Applies one `--set`. Errors name the key.
fn set(options: &mut ConfigOptions, key: &str, value: &str) -> Outcome<()> {
    if key.starts_with("datafusion.runtime.") {
        return Err(Failure::message(format!(
            "--set {key}: the budgets of the command line are set with --memory-limit, --temp-dir and --temp-limit"
        )));
    }
    let change = settings::Change { key: key.to_string(), value: value.to_string() };
    let made = setting_in_bytes(key, value).and_then(|value| options.set(key, &value));
    made.map_err(|error| Failure::message(format!("--set {key}={value}: {}", plain(&change.refused(&error, options)))))
}

fn with_files_as_tables(context: SessionContext) -> SessionContext {
    let files = Arc::new(FileTables::default());
    let catalogs = DynamicFileCatalog::new(
        Arc::clone(context.state().catalog_list()),
        Arc::clone(&files) as Arc<dyn UrlTableFactory>,
    );
    context.register_catalog_list(Arc::new(catalogs));
    files.serve(&context);
    context
}
