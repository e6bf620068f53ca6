//! The cost of the link, and of the GPU's random accesses over it.

use crate::machine::{Gpu, Link, Translation};
use crate::prediction::{Bound, LinkBytes, Refusal};

/// Bytes of keys per memory request of a GPU. The threads that load these keys together wait for the slowest of their
/// accesses. A table that is half cached is then as slow as an uncached one, and 4 % outside halve the gain, as in paper 1,
/// section 6.2.7.
const REQUEST_BYTES: f64 = 128.0;

/// Bytes that a small read transfers over a link or from GPU memory (paper 1, sections 2.1 and 3.4.1).
pub(crate) const SECTOR_BYTES: f64 = 32.0;

/// Seconds to transfer `to_gpu` bytes to the GPU and `to_cpu` bytes to the CPU at the same time. CPU memory reads and writes
/// `memory` bytes per second.
pub(crate) fn seconds(link: &Link, memory: f64, to_gpu: f64, to_cpu: f64) -> f64 {
    let both = to_gpu + to_cpu;
    super::longest(&[to_gpu / link.read, to_cpu / link.write, both / link.both, both / memory])
}

/// Seconds to transfer the bytes of both directions at the same time, if CPU memory keeps up with the link.
pub fn transfer_seconds(link: &Link, bytes: &LinkBytes) -> f64 {
    seconds(link, f64::INFINITY, bytes.to_gpu, bytes.to_cpu)
}

/// How many times as fast rows reach a GPU if they cross the link compressed: `ratio` times smaller, by threads that together compress
/// `rate` bytes of rows per second while others are transferred. Less than 1 if the threads are slower than a link of `read` bytes per second.
pub fn compression_gain(read: f64, ratio: f64, rate: f64) -> f64 {
    (read * ratio).min(rate) / read
}

/// A kind of random access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A hash table in GPU memory up to a limit, and in CPU memory beyond it: the greedy layout of paper 2, section 5.3.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HybridTable {
    pub(crate) bytes: f64,
    /// Bytes of the table in GPU memory.
    pub(crate) cached: f64,
    pub(crate) key_bytes: f64,
}

impl HybridTable {
    pub(crate) fn new(bytes: f64, gpu_memory: f64, key_bytes: u64) -> Self {
        Self { bytes, cached: bytes.min(gpu_memory), key_bytes: key_bytes.max(1) as f64 }
    }

    pub(crate) fn spilled(&self) -> f64 {
        self.bytes - self.cached
    }

    /// The share of slots in GPU memory.
    pub(crate) fn cached_share(&self) -> f64 {
        if self.bytes > 0.0 { self.cached / self.bytes } else { 1.0 }
    }

    /// The share of memory requests with all slots in GPU memory.
    ///
    /// Times are weighted by this share. Paper 2 (section 5.3) instead averages the throughputs of GPU and CPU memory,
    /// weighted by the share of slots, and so predicts half the speed if half of the table is outside. Neither that paper's
    /// figure 17 nor figure 19 of paper 1 shows this.
    pub(crate) fn cached_requests(&self) -> f64 {
        self.cached_share().powf((REQUEST_BYTES / self.key_bytes).max(1.0))
    }

    /// Seconds per row of accesses to GPU memory and to CPU memory, with `times` accesses per row.
    pub(crate) fn access(&self, gpu: &Gpu, access: Access, times: f64) -> Result<[(Bound, f64); 2], Refusal> {
        let requests = self.cached_requests();
        let near = if requests > 0.0 { times * requests / gpu_rate(gpu, access, self.bytes)? } else { 0.0 };
        let far =
            if requests < 1.0 { times * (1.0 - requests) * over_link(&gpu.link, access, self.spilled())? } else { 0.0 };
        Ok([(Bound::GpuRandomAccess, near), (Bound::LinkRandomAccess, far)])
    }
}

/// Accesses per second to GPU memory, or to the L2 cache if the table fits it.
fn gpu_rate(gpu: &Gpu, access: Access, table_bytes: f64) -> Result<f64, Refusal> {
    match access {
        Access::Read if table_bytes <= gpu.l2_bytes as f64 => Ok(gpu.l2_random_reads.unwrap_or(gpu.random_reads)),
        Access::Read => Ok(gpu.random_reads),
        Access::Write => gpu
            .random_writes
            .ok_or(Refusal::NotMeasured { figure: "how fast the GPU writes at random places of its memory" }),
    }
}

/// Seconds per access of the GPU to a range of `range` bytes of CPU memory.
pub(crate) fn over_link(link: &Link, access: Access, range: f64) -> Result<f64, Refusal> {
    let rate = match access {
        Access::Read => link.random_reads,
        Access::Write => link
            .random_writes
            .ok_or(Refusal::NotMeasured { figure: "how fast the GPU writes at random places of CPU memory" })?,
    };
    let Some(Translation { near_bytes, far_slowdown, far_bytes, misses, .. }) = link.translation else {
        return Ok(1.0 / rate);
    };
    let far_share = if range > near_bytes { 1.0 - near_bytes / range } else { 0.0 };
    let translated = (1.0 + far_share * (far_slowdown - 1.0)) / rate;
    if range <= far_bytes {
        return Ok(translated);
    }
    // Pages of such a range evict each other from the translation buffers, so that nearly every access misses.
    let misses = misses.ok_or(Refusal::RandomRange { needed: range, known: far_bytes })?;
    Ok(translated.max(1.0 / misses))
}

/// Bytes read of the probe side: all keys, and the transactions of payload columns with at least one matching row (paper 2,
/// section 7.2.9).
pub(crate) fn probe_bytes(link: &Link, rows: f64, tuple_bytes: u64, key_bytes: u64, match_rate: f64) -> f64 {
    let payload = tuple_bytes.saturating_sub(key_bytes) as f64;
    let rows_of_transaction = (link.transaction_bytes as f64 / payload.max(1.0)).max(1.0);
    let touched = 1.0 - (1.0 - match_rate).powf(rows_of_transaction);
    rows * (key_bytes as f64 + payload * touched)
}
