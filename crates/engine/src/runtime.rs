//! The state that sessions share.

use std::process::Command;
use std::sync::{Arc, LazyLock};

use datafusion::common::Result;
use datafusion::prelude::SessionConfig;
use overspill_gpu_join::Gpu;

use crate::advisor::MeasuredMachine;
use crate::config::OverspillConfig;
use crate::device::Gpus;
use crate::table_samples::Samples;

/// What sessions share: the opened GPUs, with the pinned memory that they keep for the next join, what was measured of
/// the machine, and samples of tables. Two runtimes share nothing but the loaded drivers. Clones are the same runtime.
///
/// A session has the runtime that its configuration has as an extension when
/// [`with_overspill`](crate::OverspillSessionExt::with_overspill) is called. Without one it has
/// [that of the process](Self::of_process), as sessions that do not know of each other also share the machine's GPUs.
///
/// ```
/// use std::sync::Arc;
///
/// use datafusion::execution::SessionStateBuilder;
/// use datafusion::prelude::SessionConfig;
/// use overspill::{OverspillConfig, OverspillRuntime, OverspillSessionExt};
///
/// let runtime = OverspillRuntime::default();
/// let state = SessionStateBuilder::new_with_default_features()
///     .with_config(SessionConfig::new().with_extension(Arc::new(runtime.clone())))
///     .with_overspill(OverspillConfig::default())
///     .build();
/// // Queries of `state`, and of other sessions with this runtime, use the same GPU.
/// runtime.release();
/// # drop(state);
/// ```
#[derive(Debug, Clone, Default)]
pub struct OverspillRuntime {
    gpus: Arc<Gpus>,
    machine: Arc<MeasuredMachine>,
    samples: Arc<Samples>,
}

impl OverspillRuntime {
    /// A runtime that tests in a separate process whether the GPU's driver maps pages of CPU memory next to those of the GPU.
    /// Triton and large hash tables gain by such mappings, and some drivers crash when they are asked for one; without a test
    /// they are not used. The command must call [`check_driver`](crate::device::check_driver) and exit successfully if it
    /// does.
    pub fn with_mapping_probe(command: fn() -> Command) -> Self {
        Self { gpus: Arc::new(Gpus::with_mapping_probe(command)), ..Self::default() }
    }

    /// The runtime of all sessions of this process that were given no other.
    pub fn of_process() -> Self {
        static OF_PROCESS: LazyLock<OverspillRuntime> = LazyLock::new(OverspillRuntime::default);
        OF_PROCESS.clone()
    }

    /// The runtime of a session.
    pub(crate) fn of(config: &SessionConfig) -> Self {
        config.get_extension::<Self>().map_or_else(Self::of_process, |runtime| runtime.as_ref().clone())
    }

    /// The samples of tables by which queries were planned.
    pub(crate) fn samples(&self) -> Arc<Samples> {
        Arc::clone(&self.samples)
    }

    /// The GPU that a session's settings ask for, with those that join with it. The first call opens it, and it stays open
    /// until [`release`](Self::release). A GPU that was lost is opened again as soon as no query uses it, at most once a minute.
    ///
    /// # Errors
    /// Fails if there is no GPU or not enough of them, if the memory limit is too small, or if the GPU is lost.
    pub fn gpu(&self, config: &OverspillConfig) -> Result<Arc<Gpu>> {
        self.gpus.open(config)
    }

    /// Whether the GPU that a session's settings ask for can be used, as far as is known: it is not lost, or was opened again.
    pub(crate) fn has_gpu(&self, config: &OverspillConfig) -> bool {
        self.gpus.is_there(config)
    }

    /// Releases the GPU, with the memory that was kept for the next join, as soon as no join uses it. The next join opens it
    /// again.
    pub fn release(&self) {
        self.gpus.release();
    }

    /// What was measured of the machine.
    pub fn machine(&self) -> &MeasuredMachine {
        &self.machine
    }
}
