//! Vector instructions that not every processor of an architecture has, selected at run time.

use crate::cache_line::CacheLine;

/// Vector instructions that a loop is compiled for. A value of the type proves that this processor has them.
pub trait Vectors: Copy {
    /// Compares the first four words of a line with `word`. Returns one bit for each equal word, from the lowest bit on.
    fn equal_to(self, line: &CacheLine, word: u64) -> u32;
    /// Number of words of a line that are smaller than `word`.
    fn count_smaller(self, line: &CacheLine, word: u64) -> usize;
    /// Stores a line without reading it first and without keeping it in the cache (non-temporal), if the processor supports
    /// that.
    ///
    /// # Safety
    /// Before any thread reads or writes the line again, this thread must wait for its stores, as
    /// [`write_past_cache`](crate::memory::write_past_cache) does.
    unsafe fn store_past_cache(self, to: &mut CacheLine, line: &CacheLine);
}

/// A loop that is compiled for each kind of [`Vectors`].
///
/// `run` and the functions it calls must always be inlined; otherwise they are compiled without the vector instructions.
pub trait VectorLoop {
    /// The result of the loop.
    type Output;
    /// Runs the loop with the instructions of `vectors`.
    fn run(self, vectors: impl Vectors) -> Self::Output;
}

/// Runs a loop with the widest vectors of this processor.
#[inline]
pub fn with_widest_vectors<L: VectorLoop>(work: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = avx2::Avx2::of_this_processor() {
        return vectors.run(work);
    }
    work.run(Baseline)
}

/// The instructions that every processor of the architecture has.
#[derive(Debug, Clone, Copy)]
pub struct Baseline;

impl Vectors for Baseline {
    #[inline(always)]
    fn equal_to(self, line: &CacheLine, word: u64) -> u32 {
        let [a, b, c, d, ..] = line.0;
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
                    // Both halves of a word must be equal.
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

    #[inline(always)]
    fn count_smaller(self, line: &CacheLine, word: u64) -> usize {
        line.0.iter().map(|other| usize::from(*other < word)).sum()
    }

    #[inline(always)]
    unsafe fn store_past_cache(self, to: &mut CacheLine, line: &CacheLine) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_stream_si128};
            let (to, from): (*mut __m128i, *const __m128i) =
                (std::ptr::from_mut(to).cast(), std::ptr::from_ref(line).cast());
            for part in 0..size_of::<CacheLine>() / size_of::<__m128i>() {
                // SAFETY: within borrowed lines, and aligned like them. Every processor of this architecture has SSE2.
                unsafe { _mm_stream_si128(to.add(part), _mm_load_si128(from.add(part))) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            *to = *line;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_cmpgt_epi64, _mm256_load_si256, _mm256_movemask_pd,
        _mm256_set1_epi64x, _mm256_stream_si256, _mm256_xor_si256,
    };

    use super::{CacheLine, VectorLoop, Vectors};

    /// Four words at a time, and bit instructions that do not set flags: the part of x86-64-v3 that loops over keys use.
    #[derive(Debug, Clone, Copy)]
    pub(super) struct Avx2(());

    impl Avx2 {
        pub(super) fn of_this_processor() -> Option<Self> {
            let has_all = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            has_all.then_some(Self(()))
        }

        pub(super) fn run<L: VectorLoop>(self, work: L) -> L::Output {
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn run<L: VectorLoop>(vectors: Avx2, work: L) -> L::Output {
                work.run(vectors)
            }
            // SAFETY: `self` is created only if the processor has all of these features.
            unsafe { run(self, work) }
        }
    }

    impl Vectors for Avx2 {
        #[inline(always)]
        fn equal_to(self, line: &CacheLine, word: u64) -> u32 {
            #[target_feature(enable = "avx2")]
            #[inline]
            fn equal_to(line: &CacheLine, word: u64) -> u32 {
                // SAFETY: a line has 64 bytes and is aligned to 64 bytes.
                let words = unsafe { _mm256_load_si256(std::ptr::from_ref(line).cast()) };
                let equal = _mm256_cmpeq_epi64(words, _mm256_set1_epi64x(word as i64));
                _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
            }
            // SAFETY: `self` is created only if the processor has AVX2.
            unsafe { equal_to(line, word) }
        }

        #[inline(always)]
        fn count_smaller(self, line: &CacheLine, word: u64) -> usize {
            #[target_feature(enable = "avx2,popcnt")]
            #[inline]
            fn count_smaller(line: &CacheLine, word: u64) -> usize {
                // Vectors compare signed numbers, which have the order of unsigned ones once the highest bit is flipped.
                let flip = _mm256_set1_epi64x(i64::MIN);
                let word = _mm256_set1_epi64x(word as i64 ^ i64::MIN);
                let smaller = |half: usize| {
                    // SAFETY: a line has 64 bytes and is aligned to 64 bytes; each half of it has 32.
                    let words = unsafe { _mm256_load_si256(std::ptr::from_ref(line).cast::<__m256i>().add(half)) };
                    let smaller = _mm256_cmpgt_epi64(word, _mm256_xor_si256(words, flip));
                    _mm256_movemask_pd(_mm256_castsi256_pd(smaller)) as u32
                };
                (smaller(0) | smaller(1) << 4).count_ones() as usize
            }
            // SAFETY: `self` is created only if the processor has these features.
            unsafe { count_smaller(line, word) }
        }

        #[inline(always)]
        unsafe fn store_past_cache(self, to: &mut CacheLine, line: &CacheLine) {
            #[target_feature(enable = "avx2")]
            #[inline]
            fn store(to: &mut CacheLine, line: &CacheLine) {
                let (to, from): (*mut __m256i, *const __m256i) =
                    (std::ptr::from_mut(to).cast(), std::ptr::from_ref(line).cast());
                for part in 0..size_of::<CacheLine>() / size_of::<__m256i>() {
                    // SAFETY: within borrowed lines, and aligned like them.
                    unsafe { _mm256_stream_si256(to.add(part), _mm256_load_si256(from.add(part))) };
                }
            }
            // SAFETY: `self` is created only if the processor has AVX2.
            unsafe { store(to, line) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a line with each word of a slice.
    struct Compared<'a>(&'a CacheLine, &'a [u64]);

    impl VectorLoop for Compared<'_> {
        type Output = Vec<u32>;
        #[inline(always)]
        fn run(self, vectors: impl Vectors) -> Vec<u32> {
            self.1.iter().map(|word| vectors.equal_to(self.0, *word)).collect()
        }
    }

    /// Counts the words of a line that are smaller than each word of a slice.
    struct Counted<'a>(&'a CacheLine, &'a [u64]);

    impl VectorLoop for Counted<'_> {
        type Output = Vec<usize>;
        #[inline(always)]
        fn run(self, vectors: impl Vectors) -> Vec<usize> {
            self.1.iter().map(|word| vectors.count_smaller(self.0, *word)).collect()
        }
    }

    #[test]
    fn smaller_words_are_counted_with_all_vectors() {
        let top = 1 << 63;
        let line = CacheLine([0, 5, 5, top - 1, top, top + 1, u64::MAX, u64::MAX]);
        let words = [0, 1, 5, 6, top - 1, top, top + 1, top + 2, u64::MAX];
        let counted = || Counted(&line, &words);
        let expected = [0, 1, 1, 3, 3, 4, 5, 6, 6];
        assert_eq!(counted().run(Baseline), expected);
        assert_eq!(with_widest_vectors(counted()), expected);
    }

    #[test]
    fn equal_words_of_the_first_half_are_told_by_bits_with_all_vectors() {
        let line = CacheLine([7, 1 << 32, 7, 7 << 32 | 7, 7, 0, 0, 0]);
        let compared = || Compared(&line, &[7, 1 << 32, 7 << 32 | 7, 7 << 32, 0, 1]);
        let expected = [0b101, 0b10, 0b1000, 0, 0, 0];
        assert_eq!(compared().run(Baseline), expected);
        assert_eq!(with_widest_vectors(compared()), expected);
        let empty = || Compared(&CacheLine([0; 8]), &[0]);
        assert_eq!((empty().run(Baseline), with_widest_vectors(empty())), (vec![0b1111], vec![0b1111]));
    }
}
