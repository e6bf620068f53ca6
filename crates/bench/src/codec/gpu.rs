//! Compression on a GPU.

use datafusion::common::Result;
use overspill_codec::{Cascade, DeviceCascade, DeviceColumn, DeviceIntegers, Stack};
use overspill_experiments::Gpu;
use overspill_kernels::{MemoryAccess, Timed};
use overspill_machine::memory::{DeviceBuffer, Plain};

use super::Measured;
use super::codecs::{Codec, Value};
use crate::report::{failed, median};

/// Bytes that are copied to measure the GPU's memory, at most, and bytes of integers that are compressed at once, at least: what is
/// smaller than a GPU's caches says nothing of its memory.
const COPIED: u64 = 1 << 30;

/// A GPU that compresses.
pub(super) struct CodecGpu {
    gpu: Gpu,
    cascade: DeviceCascade,
    /// Bytes a second that its memory copies, each counted once.
    pub copy: f64,
}

impl CodecGpu {
    /// # Errors
    /// If the kernels cannot be loaded, or there is no memory.
    pub fn new(gpu: Gpu) -> Result<Self> {
        let cascade = DeviceCascade::new(&gpu.kernels).map_err(failed)?;
        let copy = copy_rate(&gpu).map_err(failed)?;
        Ok(Self { gpu, cascade, copy })
    }

    /// Compresses and decompresses all partitions, each way in one call, which begins and ends in GPU memory; a GPU gets them several
    /// times, as columns of their own. What the kernels take counts.
    ///
    /// # Errors
    /// If the bytes are not those of the CPU, the partitions do not come back, there is no memory, or the device fails.
    pub fn measure<T: Value + Plain>(
        &self,
        stack: Stack,
        parts: &[Vec<T>],
        bytes: usize,
        runs: usize,
    ) -> Result<Measured> {
        let (stream, device) = (&self.gpu.stream, self.gpu.device());
        let times = if self.gpu.emulated { 1 } else { (COPIED as usize).div_ceil(bytes.max(1)) };
        let copies = || (0..times).flat_map(|_| parts);
        let buffers = copies().map(|part| DeviceBuffer::from_slice(stream, part));
        let buffers = buffers.collect::<std::result::Result<Vec<_>, _>>().map_err(failed)?;
        let inputs: Vec<_> = buffers.iter().map(|buffer| DeviceIntegers::new::<T>(buffer.view(), stack)).collect();
        let (mut compress, mut decompress, mut sent) = (vec![], vec![], 0);
        for run in 0..runs {
            let Timed { made: compressed, seconds } = self.cascade.compress(stream, &inputs).map_err(failed)?;
            compress.push(seconds);
            sent = compressed.iter().map(|column| column.bytes).sum();
            let mut columns = vec![];
            let rooms = copies().map(|part| DeviceBuffer::new(device, size_of_val(&part[..]) as u64));
            let mut rooms = rooms.collect::<std::result::Result<Vec<_>, _>>().map_err(failed)?;
            let (mut cascade, mut expected) = (Cascade::new(), vec![]);
            for ((column, part), room) in compressed.iter().zip(copies()).zip(&mut rooms) {
                let written: Vec<u8> = column.buffer.read(stream, column.bytes as usize).map_err(failed)?;
                if run == 0 {
                    Codec::Cascaded(stack).compress(&mut cascade, part, &mut expected)?;
                    if written != expected {
                        return Err(failed("the GPU writes other bytes than the CPU"));
                    }
                }
                let view = column.buffer.view().slice(0, column.bytes).map_err(failed)?;
                columns.push(DeviceColumn::new(&written, view, room.view_mut()).map_err(failed)?);
            }
            decompress.push(self.cascade.decompress(stream, columns).map_err(failed)?.seconds);
            for (part, room) in copies().zip(&rooms).take(if run == 0 { usize::MAX } else { parts.len() }) {
                if room.read::<T>(stream, part.len()).map_err(failed)? != *part {
                    return Err(failed("the GPU does not give back what it took"));
                }
            }
        }
        let rate = |seconds| (bytes * times) as f64 / median(seconds).unwrap_or(f64::NAN);
        Ok(Measured {
            codec: Codec::Device(stack),
            ratio: (bytes * times) as f64 / sent.max(1) as f64,
            compress: rate(compress),
            decompress: rate(decompress),
        })
    }
}

/// Bytes a second that the GPU copies in its memory.
fn copy_rate(gpu: &Gpu) -> overspill_machine::Result<f64> {
    let bytes = (gpu.device().memory_limit() / 4).min(COPIED) / 16 * 16;
    let bytes = if gpu.emulated { bytes.min(1 << 16) } else { bytes };
    let (mut from, mut to) = (DeviceBuffer::new(gpu.device(), bytes)?, DeviceBuffer::new(gpu.device(), bytes)?);
    from.fill(&gpu.stream, 1)?;
    let mut access = MemoryAccess::new(&gpu.kernels)?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        best = best.min(access.copy(&gpu.stream, from.view(), &mut to.view_mut())?);
    }
    Ok(bytes as f64 / best)
}
