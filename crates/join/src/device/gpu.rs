//! A GPU that the joins of a process share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use overspill_kernels::Kernels;
use overspill_machine::driver::{Device, Stream};
use overspill_machine::memory::Mapping;
use overspill_machine::transfer::{PipelineShape, TransferMethod, TransferPipeline};
use overspill_machine::{Error, Result};
use tracing::debug_span;

use super::host_pool::HostPool;
use super::peers::Peers;

/// Of the limit, the part that hash tables and cached partitions may hold for as long as their join lives; the other part is for
/// whoever's turn it is (paper 1, section 5.1: partitioning takes half of GPU memory, and the results of the next pass the
/// other).
const RESIDENT_SHARE: u64 = 2;

/// A GPU with its kernels, its budget and who uses it.
///
/// One join at a time has its turn on the GPU: a launch fills it anyway, and the memory that a launch works in is then there for
/// each of them in turn, however many joins a query has.
#[derive(Debug)]
pub struct Gpu {
    kernels: Kernels,
    half: Kernels,
    mapping: Mapping,
    node: u32,
    host: HostPool,
    resident: AtomicU64,
    turn: Mutex<Workbench>,
    lost: OnceLock<String>,
    /// Chunks of the probe side that it is at work on.
    chunks: AtomicUsize,
    /// The GPUs that join with this one.
    peers: Peers,
}

/// What whoever has the turn works with.
#[derive(Debug)]
pub(crate) struct Workbench {
    pub(crate) stream: Stream,
    /// For what is done at the same time.
    pub(crate) second_stream: Stream,
    pipeline: Option<TransferPipeline>,
}

impl Gpu {
    /// The least GPU memory that joins run with, in bytes. With less every one of them is refused.
    pub const MIN_MEMORY: u64 = 16 << 20;

    /// For a device with its kernels. `mapping` says whether its driver maps CPU pages, as a process of its own has found out, and
    /// `node` is the NUMA node nearest to it.
    ///
    /// # Errors
    /// If the memory limit of the device is less than [`Gpu::MIN_MEMORY`], or the device gives no stream.
    pub fn new(kernels: Kernels, mapping: Mapping, node: u32) -> Result<Arc<Self>> {
        Self::with_peers(kernels, Vec::new(), mapping, node)
    }

    /// The same with others that hold the hash tables of `gpu_no_partition` together with it and probe them (paper 2,
    /// section 6.3); whatever else joins do, it does alone. Where GPUs do not reach each other's memory, or do not map
    /// its pages, it does that alone as well, and each join is told why.
    ///
    /// # Errors
    /// As [`Gpu::new`], for any of the GPUs.
    pub fn with_peers(kernels: Kernels, others: Vec<Kernels>, mapping: Mapping, node: u32) -> Result<Arc<Self>> {
        let others = others.into_iter().map(|kernels| Self::new(kernels, mapping, node)).collect::<Result<Vec<_>>>()?;
        let peers = if others.is_empty() { Peers::default() } else { Peers::of(kernels.device(), others)? };
        let available = kernels.device().memory_limit();
        if available < Self::MIN_MEMORY {
            return Err(Error::TooSmall {
                what: "a join on a GPU",
                needed: Self::MIN_MEMORY,
                of: "GPU memory (overspill.gpu_memory_limit)",
                available,
            });
        }
        // Memory is asked for and given back with every pair of partitions.
        kernels.device().keep_freed_memory(available / RESIDENT_SHARE);
        let multiprocessors = kernels.device().properties().multiprocessors;
        Self::with_multiprocessors(kernels, multiprocessors, mapping, node, peers)
    }

    /// The same GPU, alone, for joins whose kernels occupy at most so many multiprocessors. It is not to be used beside
    /// this one: each counts the memory of its joins alone.
    ///
    /// # Errors
    /// If the GPU has fewer, 0 are asked for, or kernels cannot be confined on it.
    pub fn confined_to(&self, multiprocessors: u32) -> Result<Arc<Self>> {
        let kernels = self.kernels.confined_to(multiprocessors)?;
        Self::with_multiprocessors(kernels, multiprocessors, self.mapping, self.node, Peers::default())
    }

    fn with_multiprocessors(
        kernels: Kernels,
        multiprocessors: u32,
        mapping: Mapping,
        node: u32,
        peers: Peers,
    ) -> Result<Arc<Self>> {
        let (stream, second_stream) = (Stream::new(kernels.device())?, Stream::new(kernels.device())?);
        let half = (multiprocessors / 2).max(1);
        Ok(Arc::new(Self {
            host: HostPool::new(kernels.device()),
            // Where kernels cannot be confined they take turns.
            half: kernels.confined_to(half).unwrap_or_else(|_| kernels.clone()),
            kernels,
            mapping,
            node,
            resident: AtomicU64::new(0),
            turn: Mutex::new(Workbench { stream, second_stream, pipeline: None }),
            lost: OnceLock::new(),
            chunks: AtomicUsize::new(0),
            peers,
        }))
    }

    /// Keeps so many bytes of CPU memory registered with the driver at most when joins are done with it, for those that come: a
    /// few GB are registered a second. GPUs that join together keep an even part each.
    pub fn keep_pinned_memory(&self, most: usize) {
        let others = self.peers.others();
        let share = most / (1 + others.len());
        self.host.keep(share);
        others.iter().for_each(|gpu| gpu.host.keep(share));
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.kernels.device()
    }

    /// Why the GPU is of no more use to this process, if it is lost.
    pub fn lost_because(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// The GPUs that hold tables together and probe them: this one and those of the others that are not lost.
    pub(crate) fn together(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let living = self.peers.others().iter().filter(|gpu| gpu.lost_because().is_none());
        std::iter::once(self).chain(living).cloned().collect()
    }

    /// How many GPUs these are.
    pub fn joining(self: &Arc<Self>) -> usize {
        self.together().len()
    }

    /// What is known of the others.
    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(super) fn chunks(&self) -> &AtomicUsize {
        &self.chunks
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// The same kernels on half of the multiprocessors, for two that run side by side (paper 1, section 5.2).
    pub(crate) fn half(&self) -> &Kernels {
        &self.half
    }

    pub(crate) fn mapping(&self) -> Mapping {
        self.mapping
    }

    pub(crate) fn node(&self) -> u32 {
        self.node
    }

    /// CPU memory that kernels read and write.
    pub(crate) fn host(&self) -> &HostPool {
        &self.host
    }

    /// Takes note of an error of this GPU or one that joins with it: after some the GPU is not asked again.
    pub(crate) fn note(&self, error: &Error) {
        if let Error::DeviceLost { device, .. } = error {
            let lost = self.peers.others().iter().find(|gpu| gpu.device().ordinal() == *device);
            // The first reason stays.
            let _ = lost.map_or(self, Arc::as_ref).lost.set(error.to_string());
        }
    }

    /// Bytes of GPU memory that whoever has the turn may take, at least.
    pub(crate) fn workspace(&self) -> u64 {
        let limit = self.device().memory_limit();
        limit - limit / RESIDENT_SHARE
    }

    /// Bytes of GPU memory that could stay with one more join.
    pub(crate) fn resident_left(&self) -> u64 {
        (self.device().memory_limit() / RESIDENT_SHARE).saturating_sub(self.resident.load(Ordering::Relaxed))
    }

    /// Sets so many bytes aside for a join that keeps them.
    pub(crate) fn reserve_resident(self: &Arc<Self>, bytes: u64) -> Result<Resident> {
        let limit = self.device().memory_limit() / RESIDENT_SHARE;
        self.resident
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .map_err(|held| Error::OverBudget { bytes, held, limit })?;
        Ok(Resident { gpu: Arc::clone(self), bytes })
    }

    /// Waits for the turn. Whoever has it gives it back before it hands anything on: a join may wait for another.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Workbench> {
        let _waiting = debug_span!("wait for the turn on the GPU").entered();
        // Whatever a panic left half done was the panicking join's own.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way from CPU memory that is fastest on links of this kind (paper 2, section 7.2.1).
    pub(crate) fn fastest_method(&self) -> TransferMethod {
        if self.device().properties().coherent { TransferMethod::Coherence } else { TransferMethod::ZeroCopy }
    }
}

impl Workbench {
    /// A pipeline of a method, in at most `budget` bytes of GPU memory or, if that is less, the fewest it can do with; the one
    /// used last if it is such.
    pub(crate) fn pipeline(&mut self, method: TransferMethod, budget: u64) -> Result<&mut TransferPipeline> {
        let shape = Self::shape(budget);
        if self.pipeline.as_ref().is_some_and(|there| there.method() != method || there.shape() != shape) {
            self.pipeline = None;
        }
        match &mut self.pipeline {
            Some(pipeline) => Ok(pipeline),
            place => Ok(place.insert(TransferPipeline::new(self.stream.device(), method, shape)?)),
        }
    }
}

impl Workbench {
    /// Bytes of GPU memory that such a pipeline takes.
    pub(crate) fn pipeline_bytes(method: TransferMethod, budget: u64) -> u64 {
        let shape = Self::shape(budget);
        if method.copies() { shape.chunk_bytes * shape.chunks as u64 } else { 0 }
    }

    /// Bytes of each chunk that such a pipeline hands to kernels.
    pub(crate) fn chunk_bytes(budget: u64) -> u64 {
        Self::shape(budget).chunk_bytes
    }

    fn shape(budget: u64) -> PipelineShape {
        const STEP: u64 = 2 << 20;
        let standard = PipelineShape::default();
        let chunk_bytes = (budget / standard.chunks as u64 / STEP * STEP).clamp(STEP, standard.chunk_bytes);
        PipelineShape { chunk_bytes, ..standard }
    }

    /// Frees what a pipeline has taken.
    pub(crate) fn drop_pipeline(&mut self) {
        self.pipeline = None;
    }
}

/// GPU memory that is set aside for a join, until dropped.
#[derive(Debug)]
pub(crate) struct Resident {
    gpu: Arc<Gpu>,
    bytes: u64,
}

impl Resident {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whose memory it is.
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.gpu.resident.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
