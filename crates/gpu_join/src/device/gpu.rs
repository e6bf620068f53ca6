//! A GPU shared by all joins of a process.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use overspill_codec::DeviceCascade;
use overspill_kernels::Kernels;
use overspill_machine::driver::{Device, Stream};
use overspill_machine::memory::Mapping;
use overspill_machine::transfer::{HostPool, PipelineShape, TransferMethod, TransferPipeline};
use overspill_machine::{Error, Result};
use tracing::debug_span;

use super::link::device_error;
use super::turns::{DeviceShare, Taken, Turns};

/// Hash tables and cached partitions, which stay allocated as long as their join, may take `1 / RESIDENT_SHARE` of the limit.
/// The join whose turn it is may take the rest (paper 1, section 5.1: partitioning takes half of GPU memory, and the results of
/// the next pass the other half).
const RESIDENT_SHARE: u64 = 2;

/// Something with a copy of data that a GPU reads, kept for later queries.
pub trait KeptCopy: Debug + Send + Sync {
    /// Drops the copy, which is of no use any more.
    fn drop_copy(&self);
}

/// A GPU with its kernels, its memory budget and its turns.
///
/// Only one join at a time runs on the GPU. One launch fills the GPU anyway, and joins can reuse the same working memory one
/// after another, however many joins a query has. Threads that do other work must not wait for a turn: it may take long to come.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) kernels: Kernels,
    /// The kernels confined to half of the multiprocessors, for two that run side by side (paper 1, section 5.2).
    pub(crate) half: Kernels,
    /// Decompresses what has crossed the link.
    pub(crate) cascade: DeviceCascade,
    pub(crate) mapping: Mapping,
    pub(crate) node: u32,
    /// CPU memory that kernels read and write.
    pub(crate) host: HostPool,
    resident: AtomicU64,
    turns: Turns,
    /// Of the join whose turn it is.
    bench: Mutex<Workbench>,
    /// The stream that copies pairs to CPU memory while the next join has its turn.
    copying: Mutex<Stream>,
    lost: OnceLock<Error>,
    copies: Mutex<Vec<Weak<dyn KeptCopy>>>,
    /// Number of probe chunks assigned to this GPU.
    pub(super) chunks: AtomicUsize,
    /// The GPUs that join with this one.
    pub(crate) peers: Peers,
}

/// The turn on a GPU, with its streams and working memory, until dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    /// Dropped before the turn ends.
    bench: MutexGuard<'a, Workbench>,
    _taken: Taken<'a>,
}

impl Deref for Turn<'_> {
    type Target = Workbench;

    fn deref(&self) -> &Workbench {
        &self.bench
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Workbench {
        &mut self.bench
    }
}

/// Streams and memory of the join whose turn it is.
#[derive(Debug)]
pub(crate) struct Workbench {
    pub(crate) stream: Stream,
    /// For work that overlaps with work on `stream`.
    pub(crate) second_stream: Stream,
    pipeline: Option<TransferPipeline>,
}

impl Gpu {
    /// Minimum GPU memory for joins, in bytes. With less, every join is refused.
    pub const MIN_MEMORY: u64 = 16 << 20;

    /// Creates the GPU for a device with its kernels. `mapping` says whether the driver maps CPU pages, as found by a separate
    /// probe process. `node` is the NUMA node nearest to the device.
    ///
    /// # Errors
    /// If the memory limit of the device is less than [`Gpu::MIN_MEMORY`], or a stream cannot be created.
    pub fn new(kernels: Kernels, mapping: Mapping, node: u32) -> Result<Arc<Self>> {
        Self::with_peers(kernels, Vec::new(), mapping, node)
    }

    /// Like [`Gpu::new`], with other GPUs that hold and probe the hash tables of `gpu_no_partition` together with this one
    /// (paper 2, section 6.3). All other joins run on this GPU alone. If the GPUs cannot access each other's memory, or cannot
    /// map its pages, this GPU runs those joins alone as well, and every join reports the reason to its observer.
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
                of: "GPU memory",
                available,
            });
        }
        // Every pair of partitions allocates and frees memory.
        kernels.device().keep_freed_memory(available / RESIDENT_SHARE);
        let multiprocessors = kernels.device().properties().multiprocessors;
        Self::with_multiprocessors(kernels, multiprocessors, mapping, node, peers)
    }

    /// Returns the same GPU, without peers, for joins whose kernels occupy at most `multiprocessors` multiprocessors. Do not
    /// use it beside this one: each counts only the memory of its own joins.
    ///
    /// # Errors
    /// If the GPU has fewer, if `multiprocessors` is 0, or if kernels cannot be confined on this GPU.
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
        let new_stream = || Stream::new(kernels.device());
        let (stream, second_stream, copying) = (new_stream()?, new_stream()?, new_stream()?);
        let half = (multiprocessors / 2).max(1);
        let cascade = DeviceCascade::new(&kernels).map_err(device_error)?;
        Ok(Arc::new(Self {
            host: HostPool::new(kernels.device()),
            // If kernels cannot be confined, they run one after another.
            half: kernels.confined_to(half).unwrap_or_else(|_| kernels.clone()),
            kernels,
            cascade,
            mapping,
            node,
            resident: AtomicU64::new(0),
            copying: Mutex::new(copying),
            turns: Turns::default(),
            bench: Mutex::new(Workbench { stream, second_stream, pipeline: None }),
            lost: OnceLock::new(),
            copies: Mutex::default(),
            chunks: AtomicUsize::new(0),
            peers,
        }))
    }

    /// Keeps at most `most` bytes of CPU memory registered with the driver after joins free it, for reuse by later joins:
    /// registering runs at only a few GB/s. GPUs that join together keep an equal share each.
    pub fn keep_pinned_memory(&self, most: usize) {
        let others = &self.peers.others;
        let share = most / (1 + others.len());
        self.host.keep(share);
        others.iter().for_each(|gpu| gpu.host.keep(share));
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.kernels.device()
    }

    /// The reason why the GPU is of no use any more, if it is lost. Another [`Gpu`] can be made for its device once this one is dropped.
    pub fn lost_because(&self) -> Option<&Error> {
        self.lost.get()
    }

    /// Something keeps a copy for this GPU, and with it the GPU itself.
    pub fn keeps(&self, copy: Weak<dyn KeptCopy>) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.retain(|copy| copy.strong_count() > 0);
        copies.push(copy);
    }

    /// Drops the copies that are kept for this GPU.
    pub fn drop_copies(&self) {
        let copies = std::mem::take(&mut *self.copies.lock().unwrap_or_else(PoisonError::into_inner));
        copies.iter().filter_map(Weak::upgrade).for_each(|copy| copy.drop_copy());
    }

    /// The GPUs that hold and probe tables together: this one and the peers that are not lost.
    pub(crate) fn together(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let living = self.peers.others.iter().filter(|gpu| gpu.lost_because().is_none());
        std::iter::once(self).chain(living).cloned().collect()
    }

    /// Number of GPUs that currently join together.
    pub fn joining(self: &Arc<Self>) -> usize {
        self.together().len()
    }

    /// Records an error of this GPU or of a peer, which a query with this share has met. A GPU that is lost is not used again.
    pub(crate) fn note(&self, error: &Error, share: &DeviceShare) {
        if let Error::DeviceLost { device, .. } = error {
            let lost = self.peers.others.iter().find(|gpu| gpu.device().ordinal() == *device);
            // The first reason is kept.
            let _ = lost.map_or(self, Arc::as_ref).lost.set(error.clone());
            if lost.is_none() {
                share.gpu_lost();
            }
        }
    }

    /// Minimum bytes of GPU memory available to the join whose turn it is.
    pub(crate) fn workspace(&self) -> u64 {
        let limit = self.device().memory_limit();
        limit - limit / RESIDENT_SHARE
    }

    /// Bytes of GPU memory that one more join could keep for its lifetime.
    pub(crate) fn resident_left(&self) -> u64 {
        (self.device().memory_limit() / RESIDENT_SHARE).saturating_sub(self.resident.load(Ordering::Relaxed))
    }

    /// Reserves `bytes` bytes of GPU memory for the lifetime of a join.
    pub(crate) fn reserve_resident(self: &Arc<Self>, bytes: u64) -> Result<Resident> {
        let limit = self.device().memory_limit() / RESIDENT_SHARE;
        self.resident
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .map_err(|held| Error::OverBudget { bytes, held, limit })?;
        Ok(Resident { gpu: Arc::clone(self), bytes })
    }

    /// Waits for a query's turn on the GPU, with all the memory that joins work in. Blocks the thread. The holder must end its turn
    /// before it hands on results: a join may wait for another join.
    ///
    /// # Errors
    /// If the query's share was taken back.
    pub(crate) fn turn(&self, share: &Arc<DeviceShare>) -> Result<Turn<'_>> {
        let turn = self.turn_beside_copies(share)?;
        // Wait until the pairs of an earlier join are copied. A join takes this lock only in its turn, so no other copy begins.
        drop(self.copying());
        Ok(turn)
    }

    /// As [`Gpu::turn`], for joins that leave half of the memory for pairs to the pairs that another join still copies.
    ///
    /// # Errors
    /// As [`Gpu::turn`].
    pub(crate) fn turn_beside_copies(&self, share: &Arc<DeviceShare>) -> Result<Turn<'_>> {
        let _waiting = debug_span!("wait for the turn on the GPU").entered();
        let taken = self.turns.take(share)?;
        // State that a panic left incomplete belongs to the panicking join alone.
        let bench = self.bench.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Turn { bench, _taken: taken })
    }

    /// Waits for the stream that copies pairs, in the caller's turn. Who has it may end that turn before it copies.
    pub(crate) fn copying(&self) -> MutexGuard<'_, Stream> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fastest transfer method from CPU memory for this kind of link (paper 2, section 7.2.1).
    pub(crate) fn fastest_method(&self) -> TransferMethod {
        if self.device().properties().coherent { TransferMethod::Coherence } else { TransferMethod::ZeroCopy }
    }
}

impl Workbench {
    /// Returns a pipeline for `method` that takes at most `budget` bytes of GPU memory, or the minimum size if `budget` is less
    /// than that. Reuses the last pipeline if it has the same method and shape.
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

    /// Bytes of GPU memory that such a pipeline allocates.
    pub(crate) fn pipeline_bytes(method: TransferMethod, budget: u64) -> u64 {
        let shape = Self::shape(budget);
        if method.copies() { shape.chunk_bytes * shape.chunks as u64 } else { 0 }
    }

    /// Bytes per chunk that such a pipeline passes to kernels.
    pub(crate) fn chunk_bytes(budget: u64) -> u64 {
        Self::shape(budget).chunk_bytes
    }

    fn shape(budget: u64) -> PipelineShape {
        const STEP: u64 = 2 << 20;
        let standard = PipelineShape::default();
        let chunk_bytes = (budget / standard.chunks as u64 / STEP * STEP).clamp(STEP, standard.chunk_bytes);
        PipelineShape { chunk_bytes, ..standard }
    }

    pub(crate) fn drop_pipeline(&mut self) {
        self.pipeline = None;
    }
}

/// GPU memory that is reserved for a join, until dropped.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) bytes: u64,
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.gpu.resident.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The GPUs that hold and probe a hash table together with another GPU (paper 2, section 6.3).
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// The GPUs other than the first.
    others: Vec<Arc<Gpu>>,
    /// Whether atomic operations on the memory of any GPU are atomic for all GPUs, so that all of them can fill a table at
    /// the same time.
    pub(crate) has_atomics: bool,
    /// The reason why the first GPU joins alone, if other GPUs were requested.
    pub(crate) refused: Option<Error>,
}

impl Peers {
    /// Returns the peers of `first` if every GPU can access the memory of every other and map its pages. Otherwise returns no
    /// peers, and the reason.
    fn of(first: &Arc<Device>, others: Vec<Arc<Gpu>>) -> Result<Self> {
        let devices: Vec<_> = std::iter::once(first).chain(others.iter().map(|gpu| gpu.device())).collect();
        let mut has_atomics = true;
        for device in &devices {
            if !device.properties().virtual_memory_management {
                return Ok(Self::refused_by(Error::Unsupported {
                    device: device.ordinal(),
                    what: "virtual memory management, by which a hash table lies in the memory of several GPUs",
                }));
            }
            for peer in devices.iter().filter(|peer| peer.ordinal() != device.ordinal()) {
                let access = device.access_to(peer)?;
                if !access.reads_and_writes {
                    return Ok(Self::refused_by(Error::NoPeerAccess {
                        device: device.ordinal(),
                        peer: peer.ordinal(),
                    }));
                }
                has_atomics &= access.native_atomics;
            }
        }
        Ok(Self { others, has_atomics, refused: None })
    }

    fn refused_by(error: Error) -> Self {
        Self { refused: Some(error), ..Self::default() }
    }
}
