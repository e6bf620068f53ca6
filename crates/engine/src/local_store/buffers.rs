//! Buffers that are used again.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

/// The most bytes of buffers that wait for their next use.
const MOST_KEPT: usize = 32 << 20;

/// Bytes of the smallest buffer that is kept.
const LEAST: usize = 64 << 10;

/// Memory that is read into. What was used last is used first: it may still be in a cache.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A buffer of some length, which goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    length: usize,
    from: Arc<Buffers>,
}

impl Buffers {
    /// A buffer of this length, with any bytes.
    pub fn take(self: &Arc<Self>, length: usize) -> Buffer {
        let size = size_for(length);
        let kept = if size < LEAST {
            None
        } else {
            let mut kept = self.0.lock();
            let last = kept.iter().rposition(|bytes| bytes.len() == size);
            last.map(|number| kept.remove(number))
        };
        Buffer { bytes: kept.unwrap_or_else(|| vec![0; size]), length, from: Arc::clone(self) }
    }
}

/// The length of the memory of a buffer: at most a quarter more, so that buffers of similar lengths are of one size.
fn size_for(length: usize) -> usize {
    let step = (length.next_power_of_two() / 8).max(1);
    if length < LEAST { length } else { length.next_multiple_of(step) }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if !(LEAST..=MOST_KEPT / 4).contains(&bytes.len()) {
            return;
        }
        let mut kept = self.from.0.lock();
        kept.push(bytes);
        let mut total: usize = kept.iter().map(Vec::len).sum();
        // The oldest buffers go first: readers no longer ask for their sizes.
        let mut oldest = 0;
        while total > MOST_KEPT {
            total -= kept[oldest].len();
            oldest += 1;
        }
        let freed: Vec<Vec<u8>> = kept.drain(..oldest).collect();
        drop(kept);
        drop(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again() {
        let buffers = Arc::new(Buffers::default());
        let mut first = buffers.take(1_000_000);
        assert_eq!((first.len(), first.as_ref().len()), (1_000_000, 1_000_000));
        first.fill(7);
        let place = first.as_ptr();
        drop(first);
        // One of a similar length, which is cut.
        let again = buffers.take(1_010_000);
        assert_eq!((again.as_ptr(), again.len(), again[999_999]), (place, 1_010_000, 7));
        let other = buffers.take(1_010_000);
        assert_ne!(other.as_ptr(), place);
        assert_eq!(other.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 0);
        drop((again, other));
        assert_eq!(buffers.0.lock().len(), 2);
        assert_eq!(buffers.take(100).len(), 100);
        assert_eq!(buffers.take(0).len(), 0);
        assert_eq!(buffers.0.lock().len(), 2, "small buffers are not kept");
    }

    #[test]
    fn few_bytes_are_kept() {
        let buffers = Arc::new(Buffers::default());
        let all: Vec<Buffer> = (0..100).map(|number| buffers.take((1 << 20) + (number << 14))).collect();
        drop(all);
        drop(buffers.take(MOST_KEPT));
        let kept: usize = buffers.0.lock().iter().map(Vec::len).sum();
        assert!(kept <= MOST_KEPT && kept > MOST_KEPT / 2, "{kept}");
    }

    #[test]
    fn sizes_waste_little() {
        for length in [1, LEAST - 1, LEAST, LEAST + 1, 100_000, 1 << 20, (1 << 20) + 1, 3_333_333] {
            let size = size_for(length);
            assert!(size >= length && size <= length + length / 4, "{length}: {size}");
        }
    }
}
