//! One address range over GPU memory and CPU memory.
//!
//! A hash table larger than GPU memory (paper 2, section 5.3) and a partitioned relation that is partly cached on the GPU
//! (paper 1, section 5.3) remain plain arrays for their kernels: the page tables determine which memory holds which byte. If
//! the driver does not support that, two arrays are used instead.

mod layout;
mod mapped;
mod probe;

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;

pub use layout::{Layout, Place, SpanningLayout};
pub use probe::{Mapping, check_mapping, probe_mapping};

use crate::driver::{Device, MappedRun, Stream};
use crate::memory::device::{FILL, TO_CPU, TO_GPU};
use crate::memory::{DeviceBuffer, HostBuffer, PageSize, Plain, Readable, View, ViewMut};
use crate::{Error, Result};
use mapped::MappedRange;

/// An address range over GPU and CPU memory. The GPU part counts against the limits of the devices.
#[derive(Debug)]
pub struct SpanningBuffer {
    device: Arc<Device>,
    bytes: u64,
    segments: Vec<Segment>,
    memory: Memory,
}

/// A contiguous part of the range in one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the range.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The memory that holds the segment.
    pub place: Place,
    address: CUdeviceptr,
}

#[derive(Debug)]
enum Memory {
    /// A mapped range, and the offset where the buffer starts. Buffers that were split share one range.
    Contiguous(Arc<MappedRange>, u64),
    /// GPU memory, then CPU memory. The segments hold the addresses; these fields own the memory.
    Split { _near: DeviceBuffer, _far: HostBuffer },
}

impl Readable for SpanningBuffer {
    fn readable(&self) -> Result<View<'_>> {
        self.view()
    }
}

impl SpanningBuffer {
    /// Creates a range over the memory of `devices` and of the CPU, for kernels that run on any of these devices. Its contents
    /// are unspecified. The allocated memory is rounded up to whole stripes.
    ///
    /// With [`Mapping::TwoArrays`], the GPU's part comes first with any layout, and only one device may have a part.
    ///
    /// # Errors
    /// If a limit or a memory has no room, the stripe size is not allowed, there is no device, the number of devices differs
    /// from that of their shares, or the driver cannot map CPU pages.
    pub fn new(devices: &[Arc<Device>], layout: &SpanningLayout, mapping: Mapping) -> Result<Self> {
        if devices.is_empty() || devices.len() != layout.device_bytes.len() {
            return Err(Error::Invalid(format!(
                "a buffer over {} GPUs with shares for {}",
                devices.len(),
                layout.device_bytes.len()
            )));
        }
        let device = Arc::clone(&devices[0]);
        match mapping {
            Mapping::Contiguous => {
                // An empty range needs no mapping, so any driver supports it.
                let stripe_bytes =
                    if layout.bytes == 0 { layout.stripe_bytes } else { mapped::stripe_bytes(devices, layout)? };
                let rounded = SpanningLayout { stripe_bytes, ..layout.clone() };
                // The caller requested no CPU pages, so their support was not checked and their memory was not accounted for.
                if layout.host_bytes() == 0 && rounded.host_bytes() > 0 {
                    let what = "pages as small as the parts of a buffer that lies on GPUs alone";
                    return Err(Error::Unsupported { device: device.ordinal(), what });
                }
                let layout = rounded;
                let places = layout.places()?;
                let range = MappedRange::new(devices, &places, &layout)?;
                let segments = segments(range.runs(), layout.bytes, range.address());
                Ok(Self { device, bytes: layout.bytes, segments, memory: Memory::Contiguous(Arc::new(range), 0) })
            }
            Mapping::TwoArrays => Self::split(device, layout),
        }
    }

    fn split(device: Arc<Device>, layout: &SpanningLayout) -> Result<Self> {
        let [wanted] = layout.device_bytes[..] else {
            return Err(Error::Unsupported {
                device: device.ordinal(),
                what: "virtual memory management that maps CPU pages, which a buffer over several GPUs needs",
            });
        };
        let near = wanted.min(layout.bytes);
        let far = layout.bytes - near;
        let near_buffer = DeviceBuffer::new(&device, near)?;
        let far_buffer = if far == 0 {
            HostBuffer::new(0, PageSize::Small)?
        } else {
            HostBuffer::pinned(&device, usize::try_from(far).map_err(Error::invalid)?, PageSize::Huge)?
        };
        let mut segments = Vec::new();
        if near > 0 {
            let address = near_buffer.view().address();
            segments.push(Segment { offset: 0, bytes: near, place: Place::Device(0), address });
        }
        if far > 0 {
            let address = far_buffer.view(&device)?.address();
            segments.push(Segment { offset: near, bytes: far, place: Place::Host, address });
        }
        Ok(Self {
            device,
            bytes: layout.bytes,
            segments,
            memory: Memory::Split { _near: near_buffer, _far: far_buffer },
        })
    }

    /// Splits the buffer in two, the first with `bytes` bytes: arrays that share stripes. The pages of both are freed when the
    /// last of them is dropped.
    ///
    /// # Errors
    /// If the buffer is shorter, or is in two arrays.
    pub fn split_at(self, bytes: u64) -> Result<(Self, Self)> {
        let Memory::Contiguous(range, offset) = self.memory else {
            return Err(Error::Invalid("a buffer in two arrays is not split further".to_owned()));
        };
        View::new(0, self.bytes).slice(0, bytes)?;
        let part = |from: u64, to: u64| {
            let cut = |segment: &Segment| {
                let (start, end) = (segment.offset.max(from), segment.end().min(to));
                (start < end).then(|| {
                    let address = segment.address + (start - segment.offset);
                    Segment { offset: start - from, bytes: end - start, address, ..*segment }
                })
            };
            Self {
                device: Arc::clone(&self.device),
                bytes: to - from,
                segments: self.segments.iter().filter_map(cut).collect(),
                memory: Memory::Contiguous(Arc::clone(&range), offset + from),
            }
        };
        Ok((part(0, bytes), part(bytes, self.bytes)))
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How the buffer is mapped.
    pub fn mapping(&self) -> Mapping {
        match self.memory {
            Memory::Contiguous(..) => Mapping::Contiguous,
            Memory::Split { .. } => Mapping::TwoArrays,
        }
    }

    /// The buffer's segments in order. Each is in one memory and as long as possible.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Bytes of the buffer in GPU memory.
    pub fn device_bytes(&self) -> u64 {
        self.segments.iter().filter(|segment| segment.place != Place::Host).map(|segment| segment.bytes).sum()
    }

    /// A view of the range for kernels that read it.
    ///
    /// # Errors
    /// If the buffer is in two arrays; then each of its [`segments`](Self::segments) has its own address.
    pub fn view(&self) -> Result<View<'_>> {
        self.address().map(|address| View::new(address, self.bytes))
    }

    /// A view of the range for kernels that write it.
    ///
    /// # Errors
    /// As [`SpanningBuffer::view`].
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>> {
        self.address().map(|address| ViewMut::new(address, self.bytes))
    }

    fn address(&self) -> Result<CUdeviceptr> {
        match (&self.memory, self.segments.as_slice()) {
            (Memory::Contiguous(range, offset), _) => Ok(range.address() + offset),
            (Memory::Split { .. }, []) => Ok(0),
            (Memory::Split { .. }, [segment]) => Ok(segment.address),
            (Memory::Split { .. }, _) => Err(Error::Unsupported {
                device: self.device.ordinal(),
                what: "one range of addresses for its memory and the CPU's",
            }),
        }
    }

    /// A view of one segment for kernels that read it.
    ///
    /// # Errors
    /// If there is no segment with this number.
    pub fn segment_view(&self, number: usize) -> Result<View<'_>> {
        let segment = self.segments.get(number).ok_or_else(|| {
            Error::Invalid(format!("there is no stretch {number} in a buffer of {}", self.segments.len()))
        })?;
        Ok(View::new(segment.address, segment.bytes))
    }

    /// Copies values to the range from byte `offset` on, and waits for the copy.
    ///
    /// # Errors
    /// If they do not fit, or a copy fails.
    pub fn write<T: Copy + Plain>(&mut self, stream: &Stream, offset: u64, values: &[T]) -> Result<()> {
        let bytes = as_bytes(values);
        let pieces = self.pieces(offset, bytes.len() as u64)?;
        stream.device().bind()?;
        let failed = stream.device().failed("copying to it");
        let copied = pieces.into_iter().try_for_each(|(address, from, to)| {
            stream.ask(TO_GPU, Some((to - from) as u64), |stream| {
                // SAFETY: the piece lies within the buffer, and the stream is done with both before this returns.
                unsafe { result::memcpy_htod_async(address, &bytes[from..to], stream) }.map_err(failed)
            })
        });
        stream.synchronize().and(copied)
    }

    /// Returns `count` values from byte `offset` on, after the stream's queued work.
    ///
    /// # Errors
    /// If the values are outside the buffer, or a copy fails.
    pub fn read<T: Copy + Default + Plain>(&self, stream: &Stream, offset: u64, count: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); count];
        let pieces = self.pieces(offset, size_of_val(values.as_slice()) as u64)?;
        let bytes = as_bytes_mut(&mut values);
        stream.device().bind()?;
        let failed = stream.device().failed("copying from it");
        let copied = pieces.into_iter().try_for_each(|(address, from, to)| {
            stream.ask(TO_CPU, Some((to - from) as u64), |stream| {
                // SAFETY: the piece lies within the buffer, and the stream is done with both before this returns.
                unsafe { result::memcpy_dtoh_async(&mut bytes[from..to], address, stream) }.map_err(failed)
            })
        });
        stream.synchronize().and(copied)?;
        Ok(values)
    }

    /// Fills the buffer with a byte, in stream order.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn fill(&mut self, stream: &Stream, byte: u8) -> Result<()> {
        stream.device().bind()?;
        let failed = stream.device().failed("filling memory");
        self.segments.iter().try_for_each(|segment| {
            let size = usize::try_from(segment.bytes).map_err(Error::invalid)?;
            stream.ask(FILL, Some(segment.bytes), |stream| {
                // SAFETY: the whole segment, which is freed only after the device is done with it.
                unsafe { result::memset_d8_async(segment.address, byte, size, stream) }.map_err(failed)
            })
        })
    }

    /// Splits a range at segment boundaries. Returns the address of each piece, and its start and end relative to `offset`. One
    /// copy never spans two memories.
    fn pieces(&self, offset: u64, bytes: u64) -> Result<Vec<(CUdeviceptr, usize, usize)>> {
        View::new(0, self.bytes).slice(offset, bytes)?;
        let end = offset + bytes;
        let overlapping = self.segments.iter().filter(|segment| segment.offset < end && segment.end() > offset);
        overlapping
            .map(|segment| {
                let (from, to) = (segment.offset.max(offset), segment.end().min(end));
                let within = |at: u64| usize::try_from(at - offset).map_err(Error::invalid);
                Ok((segment.address + (from - segment.offset), within(from)?, within(to)?))
            })
            .collect()
    }
}

impl Segment {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// The segments of the first `bytes` bytes of a mapped range.
fn segments(runs: &[MappedRun], bytes: u64, address: CUdeviceptr) -> Vec<Segment> {
    let mut offset = 0;
    let cut = |run: &MappedRun| {
        let length = (run.bytes as u64).min(bytes - offset);
        let place = run.device.map_or(Place::Host, Place::Device);
        let segment = Segment { offset, bytes: length, place, address: address + offset };
        offset += length;
        segment
    };
    runs.iter().map(cut).filter(|segment| segment.bytes > 0).collect()
}

fn as_bytes<T: Copy + Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain values have no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn as_bytes_mut<T: Copy + Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every bit pattern is a valid value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
