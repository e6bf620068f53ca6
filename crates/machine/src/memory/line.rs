//! Cache lines, and stores that go past the cache.

use std::marker::PhantomData;

use super::host::{Plain, plain};
use crate::vectors::Vectors;

/// What a processor moves between memory and cache at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u64; CacheLine::WORDS]);

impl plain::Sealed for CacheLine {}
impl Plain for CacheLine {}

impl CacheLine {
    /// 64-bit words of a line.
    pub const WORDS: usize = 8;

    /// The words of lines that follow one another.
    #[inline(always)]
    pub fn words(lines: &[Self]) -> &[u64] {
        // SAFETY: a line is as large as its words, and aligned to more than they ask for.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * Self::WORDS) }
    }

    /// The words of lines that follow one another, to be written.
    #[inline(always)]
    pub fn words_mut(lines: &mut [Self]) -> &mut [u64] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * Self::WORDS) }
    }
}

/// Has the processor bring the line where an item starts into its cache, where it can, while it goes on.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which changes nothing, about memory that is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// Writes whole lines without reading them first and without keeping them in the cache (non-temporal stores), where the
/// processor can; see [`write_past_cache`].
#[derive(Debug)]
pub struct LineWriter<'a> {
    lines: &'a mut [CacheLine],
    /// It stays with its thread, which waits for its own stores alone.
    _thread: PhantomData<*mut ()>,
}

impl LineWriter<'_> {
    /// Writes the line at a place.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline(always)]
    pub fn write(&mut self, place: usize, line: &CacheLine, vectors: impl Vectors) {
        let to = &mut self.lines[place];
        // SAFETY: the line is borrowed until `write_past_cache`, which has handed it out on this thread, has waited for the store.
        // A line that is written again meanwhile has what either store wrote, from this thread, which no processor reorders.
        unsafe { vectors.store_past_cache(to, line) };
    }
}

/// Waits for the stores of this thread that went past the cache, also when `write` panics.
struct Fence;

impl Drop for Fence {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this architecture has it.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// Lets `write` fill lines past the cache: for more than a cache holds, which will not be read soon. When this returns,
/// what was written is there for all threads.
#[inline(always)]
pub fn write_past_cache<R>(lines: &mut [CacheLine], write: impl FnOnce(&mut LineWriter<'_>) -> R) -> R {
    let _fence = Fence;
    write(&mut LineWriter { lines, _thread: PhantomData })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{Baseline, VectorLoop, with_widest_vectors};

    /// Writes a line to places.
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
