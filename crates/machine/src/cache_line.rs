//! Cache lines.

/// The unit that a processor moves between memory and cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u64; CacheLine::WORDS]);

impl CacheLine {
    /// Number of 64-bit words in a line.
    pub const WORDS: usize = 8;

    /// The words of consecutive lines.
    #[inline(always)]
    pub fn words(lines: &[Self]) -> &[u64] {
        // SAFETY: a line is as large as its words, and has a larger alignment.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * Self::WORDS) }
    }

    /// The words of consecutive lines, mutable.
    #[inline(always)]
    pub fn words_mut(lines: &mut [Self]) -> &mut [u64] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * Self::WORDS) }
    }
}

/// Prefetches the cache line in which an item starts, if the processor supports that. Does not wait for the line.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: only a hint, which changes nothing, for valid memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
