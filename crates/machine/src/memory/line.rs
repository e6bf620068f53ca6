//! Cache lines, and stores that go past the cache.

use super::host::{Plain, plain};

/// What a processor moves between memory and cache at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u64; CacheLine::WORDS]);

impl plain::Sealed for CacheLine {}
impl Plain for CacheLine {}

impl CacheLine {
    /// 64-bit words of a line.
    pub const WORDS: usize = 8;

    /// Which of the first four words are equal to `word`: a bit for each, from the lowest on.
    #[inline(always)]
    pub fn equal_to(&self, word: u64) -> u32 {
        let [a, b, c, d, ..] = self.0;
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{
                __m128i, _mm_and_si128, _mm_castsi128_pd, _mm_cmpeq_epi32, _mm_movemask_pd, _mm_set_epi64x,
                _mm_set1_epi64x, _mm_shuffle_epi32,
            };
            // SAFETY: every processor of this architecture has SSE2, and no memory is touched.
            unsafe {
                let word = _mm_set1_epi64x(word as i64);
                let equal = |low: u64, high: u64| {
                    let halves: __m128i = _mm_cmpeq_epi32(_mm_set_epi64x(high as i64, low as i64), word);
                    // Both halves of a word must be.
                    let swapped = _mm_shuffle_epi32::<0b10_11_00_01>(halves);
                    _mm_movemask_pd(_mm_castsi128_pd(_mm_and_si128(halves, swapped))) as u32
                };
                equal(a, b) | equal(c, d) << 2
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let bits = [a, b, c, d].map(|other| u32::from(other == word));
            bits[0] | bits[1] << 1 | bits[2] << 2 | bits[3] << 3
        }
    }

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
}

impl LineWriter<'_> {
    /// Writes the line at a place.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline(always)]
    pub fn write(&mut self, place: usize, line: &CacheLine) {
        let to = &mut self.lines[place];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_stream_si128};
            let (to, from): (*mut __m128i, *const __m128i) =
                (std::ptr::from_mut(to).cast(), std::ptr::from_ref(line).cast());
            for part in 0..size_of::<CacheLine>() / size_of::<__m128i>() {
                // SAFETY: within lines that are borrowed, and aligned as they are. Nobody else sees the line before
                // `write_past_cache`, which has handed it out, has waited for the store.
                unsafe { _mm_stream_si128(to.add(part), _mm_load_si128(from.add(part))) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            *to = *line;
        }
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
pub fn write_past_cache<R>(lines: &mut [CacheLine], write: impl FnOnce(&mut LineWriter<'_>) -> R) -> R {
    let _fence = Fence;
    write(&mut LineWriter { lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_where_they_belong() {
        let mut lines = vec![CacheLine::default(); 5];
        let line = CacheLine(std::array::from_fn(|word| word as u64 + 1));
        write_past_cache(&mut lines, |writer| {
            writer.write(3, &line);
            writer.write(0, &line);
        });
        let expected = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(lines.iter().map(|line| line.0 == expected).collect::<Vec<_>>(), [true, false, false, true, false]);
        assert_eq!(CacheLine::words(&lines)[24..32], expected);
        CacheLine::words_mut(&mut lines)[39] = 9;
        assert_eq!(lines[4].0, [0, 0, 0, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn equal_words_of_the_first_half_are_told_by_bits() {
        let line = CacheLine([7, 1 << 32, 7, 7 << 32 | 7, 7, 0, 0, 0]);
        for (word, bits) in [(7, 0b101), (1 << 32, 0b10), (7 << 32 | 7, 0b1000), (7 << 32, 0), (0, 0), (1, 0)] {
            assert_eq!(line.equal_to(word), bits, "{word:x}");
        }
        assert_eq!(CacheLine::default().equal_to(0), 0b1111);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn a_line_that_is_not_there_is_not_written() {
        write_past_cache(&mut [CacheLine::default()], |writer| writer.write(1, &CacheLine::default()));
    }
}
