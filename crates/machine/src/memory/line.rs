//! Stores that bypass the cache.

use std::marker::PhantomData;

use super::host::{Plain, plain};
use crate::cache_line::CacheLine;
use crate::vectors::Vectors;

impl plain::Sealed for CacheLine {}
impl Plain for CacheLine {}

/// Writes whole lines without reading them first and without keeping them in the cache (non-temporal stores), if the processor
/// supports that; see [`write_past_cache`].
#[derive(Debug)]
pub struct LineWriter<'a> {
    lines: &'a mut [CacheLine],
    /// Keeps the writer on its thread, because a thread waits only for its own stores.
    _thread: PhantomData<*mut ()>,
}

impl LineWriter<'_> {
    /// Writes `line` at index `place`.
    ///
    /// # Panics
    /// If `place` is out of bounds.
    #[inline(always)]
    pub fn write(&mut self, place: usize, line: &CacheLine, vectors: impl Vectors) {
        let to = &mut self.lines[place];
        // SAFETY: the line is borrowed until `write_past_cache`, which created the writer on this thread, has waited for the
        // store. A line that is written again before that holds what one of the stores wrote: both are from this thread, and no
        // processor reorders them.
        unsafe { vectors.store_past_cache(to, line) };
    }
}

/// Waits for this thread's stores that bypassed the cache, also if `write` panics.
struct Fence;

impl Drop for Fence {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this architecture has this instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// Lets `write` fill lines with stores that bypass the cache, for data that exceeds the cache and will not be read soon. The
/// data is visible to all threads when this returns.
#[inline(always)]
pub fn write_past_cache<R>(lines: &mut [CacheLine], write: impl FnOnce(&mut LineWriter<'_>) -> R) -> R {
    let _fence = Fence;
    write(&mut LineWriter { lines, _thread: PhantomData })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{Baseline, VectorLoop, with_widest_vectors};

    /// Writes a line at several indices.
    struct Written<'a>(&'a mut [CacheLine], &'a [usize], CacheLine);

    impl VectorLoop for Written<'_> {
        type Output = ();
        #[inline(always)]
        fn run(self, vectors: impl Vectors) {
            write_past_cache(self.0, |writer| self.1.iter().for_each(|place| writer.write(*place, &self.2, vectors)));
        }
    }

    #[test]
    fn lines_are_written_where_they_belong() {
        let line = CacheLine(std::array::from_fn(|word| word as u64 + 1));
        let write = [|work: Written<'_>| work.run(Baseline), |work: Written<'_>| with_widest_vectors(work)];
        for write in write {
            let mut lines = vec![CacheLine::default(); 5];
            write(Written(&mut lines, &[3, 0], line));
            let expected = [1, 2, 3, 4, 5, 6, 7, 8];
            let written: Vec<_> = lines.iter().map(|line| line.0 == expected).collect();
            assert_eq!(written, [true, false, false, true, false]);
            assert_eq!(CacheLine::words(&lines)[24..32], expected);
            CacheLine::words_mut(&mut lines)[39] = 9;
            assert_eq!(lines[4].0, [0, 0, 0, 0, 0, 0, 0, 9]);
        }
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn a_line_that_is_not_there_is_not_written() {
        with_widest_vectors(Written(&mut [CacheLine::default()], &[1], CacheLine::default()));
    }
}
