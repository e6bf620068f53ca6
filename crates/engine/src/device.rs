//! Opens the GPUs that joins use.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use datafusion::prelude::SessionConfig;
use overspill_gpu_join::{DeviceProblem, DeviceShare, Gpu};
use overspill_kernels::{Kernels, check_mapping};
use overspill_machine::DeviceKind;
use overspill_machine::Error;
use overspill_machine::driver::{Device, Driver, DriverKind};
use overspill_machine::memory::{Mapping, probe_mapping};
use overspill_machine::topology::Topology;
use parking_lot::Mutex;

use crate::config::OverspillConfig;

/// The environment variable with the path of the emulated device's library, if the library is not next to the program.
pub const EMULATED_DRIVER: &str = "OVERSPILL_EMULATED_DRIVER";

const EMULATED_LIBRARY: &str = "liboverspill_emulated_driver.so";

/// How long a lost GPU is not opened again after it was.
const PAUSE: Duration = Duration::from_secs(60);

/// A process that maps memory should be finished by then, or it never will be.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes the command that calls [`check_driver`].
pub(crate) type MappingProbe = fn() -> Command;

/// The GPUs that the sessions of a runtime share.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    probe: Option<MappingProbe>,
    opened: Mutex<Opened>,
}

/// The last opened GPU, with the GPUs that join with it, and the previous ones that are still in use.
#[derive(Debug, Default)]
struct Opened {
    last: Option<Arc<Gpu>>,
    all: Vec<InUse>,
    loss: Option<Loss>,
}

/// A GPU that joins may use. Its device lives longer: pages that the driver has registered keep it.
#[derive(Debug)]
struct InUse {
    asked: Asked,
    gpu: Weak<Gpu>,
    device: Weak<Device>,
}

/// The last loss of a GPU.
#[derive(Debug)]
struct Loss {
    asked: Asked,
    /// Why it cannot be used; `None` once it has been opened again.
    reason: Option<Error>,
    /// When it was last tried to open it again.
    tried: Option<Instant>,
}

/// The relevant settings: sessions with the same settings share the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    kind: DriverKind,
    memory_limit: usize,
    gpus: usize,
}

impl Asked {
    fn by(config: &OverspillConfig) -> Self {
        let is_emulated = config.device.0 == Some(DeviceKind::Emulated);
        let kind = if is_emulated { DriverKind::Emulated } else { DriverKind::Nvidia };
        Self { kind, memory_limit: config.gpu_memory_limit, gpus: config.gpus }
    }
}

impl Gpus {
    /// GPUs whose mappings the command tests in a separate process. It calls [`check_driver`].
    pub fn with_mapping_probe(probe: MappingProbe) -> Self {
        Self { probe: Some(probe), opened: Mutex::default() }
    }

    /// The GPU that a session's settings ask for, with those that join with it. The first call opens it, and it stays open. A lost one is
    /// opened again as soon as no query uses it, at most once a minute.
    ///
    /// # Errors
    /// Fails if there is no GPU or not enough of them, or if the memory limit is too small. If the GPU is lost, the error is
    /// [`Error::DeviceLost`] ([`lost`] finds it).
    pub fn open(&self, config: &OverspillConfig) -> Result<Arc<Gpu>> {
        let asked = Asked::by(config);
        let mut opened = self.opened.lock();
        opened.all.retain(|used| used.device.strong_count() > 0);
        let found = opened.all.iter().filter(|used| used.asked == asked).find_map(|used| used.gpu.upgrade());
        let gpu = match found {
            Some(gpu) if gpu.lost_because().is_none() => gpu,
            found => {
                if let Some(gpu) = found {
                    opened.lose(asked, gpu);
                }
                opened.check_loss(asked)?;
                let gpu = self.open_with(asked.kind, config).map_err(|error| opened.not_opened(asked, error))?;
                let (device, gpu_in_use) = (Arc::downgrade(gpu.device()), Arc::downgrade(&gpu));
                opened.all.push(InUse { asked, gpu: gpu_in_use, device });
                if let Some(loss) = opened.loss.as_mut().filter(|loss| loss.asked == asked) {
                    loss.reason = None;
                }
                gpu
            }
        };
        gpu.keep_pinned_memory(match config.gpu_pinned_memory {
            0 => default_pinned_memory(),
            bytes => bytes,
        });
        opened.last = Some(Arc::clone(&gpu));
        Ok(gpu)
    }

    /// Whether the GPU that a session's settings ask for can be used, as far as is known. Only a lost one is opened for that.
    pub fn is_there(&self, config: &OverspillConfig) -> bool {
        let is_lost = {
            let (asked, opened) = (Asked::by(config), self.opened.lock());
            let mut same = opened.all.iter().filter(|used| used.asked == asked).filter_map(|used| used.gpu.upgrade());
            let is_lost = |loss: &Loss| loss.asked == asked && loss.reason.is_some();
            opened.loss.as_ref().is_some_and(is_lost) || same.any(|gpu| gpu.lost_because().is_some())
        };
        !is_lost || self.open(config).is_ok()
    }

    /// Releases the GPU, with the memory that was kept for the next join, as soon as no join uses it.
    pub fn release(&self) {
        self.opened.lock().last = None;
    }

    fn open_with(&self, kind: DriverKind, config: &OverspillConfig) -> overspill_machine::Result<Arc<Gpu>> {
        let driver = match kind {
            DriverKind::Nvidia => Driver::nvidia()?,
            DriverKind::Emulated => Driver::emulated(&emulated_library())?,
        };
        let there = driver.device_count();
        let number = if config.gpus == 0 { there } else { config.gpus };
        if number > there {
            return Err(Error::Invalid(format!("overspill.gpus = {number}, and the machine has {there}")));
        }
        let devices = (0..number)
            .map(|ordinal| {
                let limit = match config.gpu_memory_limit {
                    0 => driver.device_memory(ordinal)? / 10 * 9,
                    limit => limit as u64,
                };
                driver.device(ordinal, limit)
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let node = match kind {
            // Not earlier, as looking for GPUs selects the driver.
            DriverKind::Nvidia => Topology::of_this_machine().gpus.first().and_then(|gpu| gpu.node).unwrap_or(0) as u32,
            DriverKind::Emulated => 0,
        };
        let maps =
            |device: &Arc<Device>| device.properties().virtual_memory_management && device.properties().host_pages;
        let can_map = devices.iter().all(maps);
        let mapping = match (kind, self.probe) {
            _ if !can_map => Mapping::TwoArrays,
            (DriverKind::Emulated, _) => Mapping::Contiguous,
            (DriverKind::Nvidia, Some(probe)) => match probe_mapping(&mut probe(), PATIENCE) {
                Ok(()) => Mapping::Contiguous,
                Err(reason) => {
                    tracing::warn!("Pages of CPU memory are not mapped for the GPU: {reason}");
                    Mapping::TwoArrays
                }
            },
            // Some drivers crash when they are asked for it: without a separate process to test it, it is not tried.
            (DriverKind::Nvidia, None) => Mapping::TwoArrays,
        };
        let mut kernels = devices.iter().map(Kernels::load).collect::<Result<Vec<_>, Error>>()?;
        let first = kernels.remove(0);
        Gpu::with_peers(first, kernels, mapping, node).map_err(|error| match error {
            Error::TooSmall { what, needed, available, .. } => {
                Error::TooSmall { what, needed, of: "GPU memory (overspill.gpu_memory_limit)", available }
            }
            other => other,
        })
    }
}

impl Opened {
    /// Lets go a lost GPU, with the copies of indexes that are kept on it. The context of its device ends with the last user of it.
    fn lose(&mut self, asked: Asked, gpu: Arc<Gpu>) {
        let reason = gpu.lost_because().cloned();
        gpu.drop_copies();
        // With other settings it is another GPU of the same device, which is lost as well.
        self.last = None;
        drop(gpu);
        let tried = self.loss.as_ref().filter(|loss| loss.asked == asked).and_then(|loss| loss.tried);
        self.loss = Some(Loss { asked, reason, tried });
    }

    /// # Errors
    /// If the GPU is lost, and it is not the time to open it again.
    fn check_loss(&mut self, asked: Asked) -> Result<()> {
        let is_used = self.all.iter().any(|used| used.asked.kind == asked.kind && used.device.strong_count() > 0);
        let Some(loss) = self.loss.as_mut().filter(|loss| loss.asked == asked) else { return Ok(()) };
        let Some(reason) = &loss.reason else { return Ok(()) };
        if is_used || loss.tried.is_some_and(|tried| tried.elapsed() < PAUSE) {
            return Err(DataFusionError::External(Box::new(reason.clone())));
        }
        loss.tried = Some(Instant::now());
        Ok(())
    }

    /// The error if a GPU cannot be opened.
    fn not_opened(&mut self, asked: Asked, error: Error) -> DataFusionError {
        // With other settings it is another GPU of the same device, unless the settings themselves cannot be.
        let is_setting = matches!(error, Error::TooSmall { .. } | Error::Invalid(_));
        let of_device = |loss: &&mut Loss| loss.asked.kind == asked.kind && loss.reason.is_some() && !is_setting;
        if let Some(loss) = self.loss.as_mut().filter(of_device) {
            let device = 0;
            let lost = Error::DeviceLost { device, reason: format!("it cannot be opened again: {error}") };
            loss.reason = Some(lost.clone());
            return DataFusionError::External(Box::new(lost));
        }
        let setting = match asked.kind {
            DriverKind::Emulated => {
                format!("the emulated device cannot be used: {error}. Set {EMULATED_DRIVER} to its library, or")
            }
            DriverKind::Nvidia => {
                format!("a GPU was asked for and cannot be used: {error}. To run joins on the CPU,")
            }
        };
        DataFusionError::Configuration(format!("{setting} SET overspill.device = cpu"))
    }
}

/// The loss of a GPU that is an error's reason.
pub(crate) fn lost(error: &DataFusionError) -> Option<&Error> {
    match error.find_root() {
        DataFusionError::External(error) => {
            error.downcast_ref::<Error>().filter(|error| matches!(error, Error::DeviceLost { .. }))
        }
        _ => None,
    }
}

/// A sixteenth of the machine's memory in bytes: the chunks of a join's streams, without those of its relations.
fn default_pinned_memory() -> usize {
    static BYTES: LazyLock<u64> = LazyLock::new(|| Topology::without_gpus().memory.bytes.unwrap_or(0) / 16);
    usize::try_from(*BYTES).unwrap_or(usize::MAX)
}

/// The share of GPUs that a query has. Without a scheduler no one takes it back.
pub(crate) fn share_of(config: &SessionConfig) -> Arc<DeviceShare> {
    config.get_extension().unwrap_or_else(DeviceShare::kept)
}

/// The text of an error that occurs while a GPU works, with the setting that avoids it.
pub(crate) fn with_advice(error: &Error) -> String {
    match error {
        Error::OverBudget { .. } => format!("{error}; raise overspill.gpu_memory_limit, or run on the CPU"),
        Error::OutOfDeviceMemory { .. } => format!("{error}; lower overspill.gpu_memory_limit"),
        _ => error.to_string(),
    }
}

/// The name of the metric that counts a problem, and its reason.
pub(crate) fn problem_metric(problem: &DeviceProblem) -> (&'static str, String) {
    let name = match problem {
        DeviceProblem::Refused(_) => "gpu_refusals",
        DeviceProblem::Failed(_) => "gpu_failures",
        DeviceProblem::TakenBack => "gpu_moves",
    };
    (name, with_advice(problem.error()))
}

/// The problem of `bytes` bytes of CPU memory for work of a GPU, which a memory pool has refused.
pub(crate) fn no_memory(bytes: usize, refusal: &DataFusionError) -> DeviceProblem {
    DeviceProblem::Refused(Error::OutOfHostMemory { bytes: bytes as u64, reason: refusal.strip_backtrace() })
}

/// The path of the emulated device's library: next to the program, unless the environment variable is set.
fn emulated_library() -> PathBuf {
    std::env::var_os(EMULATED_DRIVER)
        .map_or_else(|| std::env::current_exe().unwrap_or_default().with_file_name(EMULATED_LIBRARY), PathBuf::from)
}

/// Maps memory as joins do, and checks it. A faulty driver may end the process.
///
/// # Errors
/// Fails if there is no GPU, or if the driver refuses.
pub fn check_driver() -> overspill_machine::Result<()> {
    check_mapping(&Kernels::load(&Driver::nvidia()?.device(0, 64 << 20)?)?, 0)
}
