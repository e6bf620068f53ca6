//! Parallel steps on a table in CPU memory before and between inserting its tuples. For a table of gigabytes, one thread
//! would take as long for such a step as all threads take for the tuples.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Memory below this size is not worth another thread. Parts are a multiple of it, so that no two threads touch the same huge
/// page first.
const PART: usize = 4 << 20;

/// 8-byte numbers that fit into a core's cache beside other data.
const BLOCK: usize = 1 << 15;

/// Spins before a waiting thread yields. A thread usually waits this long only at the end.
const SPINS: u32 = 1 << 10;

/// Runs each task on its own thread, the first on the caller's thread.
fn on_threads<T: Send>(mut tasks: impl Iterator<Item = T>, work: impl Fn(T) + Sync) {
    let work = &work;
    // The scope waits for all threads, and passes the panic of any thread on to the caller.
    std::thread::scope(|scope| {
        let own = tasks.next();
        for task in tasks {
            scope.spawn(move || work(task));
        }
        if let Some(task) = own {
            work(task);
        }
    });
}

/// Sets every byte to `byte`, on at most `threads` threads.
pub(super) fn fill(memory: &mut [u8], byte: u8, threads: usize) {
    let part = memory.len().div_ceil(threads.max(1)).next_multiple_of(PART).max(PART);
    on_threads(memory.chunks_mut(part), |part| part.fill(byte));
}

/// Replaces each number by the sum of the numbers before it, on at most `threads` threads.
///
/// Threads take blocks in order. A thread sums its block, waits for the sum of all earlier blocks, and passes over its block
/// again, which is then in its cache. Memory is read once and written once, as with one thread.
pub(super) fn prefix_sum(numbers: &[AtomicU64], threads: usize) {
    let threads = threads.min(numbers.len() / BLOCK).max(1);
    let (taken, done, sum) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    on_threads(0..threads, |_| {
        loop {
            let number = taken.fetch_add(1, Ordering::Relaxed);
            let Some(block) = numbers.chunks(BLOCK).nth(number) else { break };
            let of_block = block.iter().map(|number| number.load(Ordering::Relaxed)).sum::<u64>();
            // Another thread is working on the preceding block.
            let mut waited = 0u32;
            while done.load(Ordering::Acquire) != number {
                waited += 1;
                if waited < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
            let mut next = sum.load(Ordering::Relaxed);
            sum.store(next + of_block, Ordering::Relaxed);
            done.store(number + 1, Ordering::Release);
            for number in block {
                let count = number.load(Ordering::Relaxed);
                number.store(next, Ordering::Relaxed);
                next += count;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of no part, one part, and several parts with an incomplete one.
    const LENGTHS: [usize; 5] = [0, 1, PART, 2 * PART + 1, 5 * PART - 3];

    #[test]
    fn every_byte_is_set() {
        for (length, threads) in LENGTHS.into_iter().flat_map(|length| [0, 1, 2, 3, 7].map(|threads| (length, threads)))
        {
            let mut memory = vec![1; length + 2];
            fill(&mut memory[1..=length], 0xA5, threads);
            assert!(memory[1..=length].iter().all(|byte| *byte == 0xA5), "{length}, {threads}");
            assert_eq!((memory[0], memory[length + 1]), (1, 1), "{length}, {threads}");
        }
    }

    #[test]
    fn every_number_becomes_the_sum_of_those_before() {
        for (length, threads) in LENGTHS.into_iter().flat_map(|length| [0, 1, 2, 3, 7].map(|threads| (length, threads)))
        {
            let values: Vec<u64> = (0..length as u64 / 8).map(|number| number * 2_654_435_761 % 97).collect();
            let numbers: Vec<_> = values.iter().copied().map(AtomicU64::new).collect();
            prefix_sum(&numbers, threads);
            let mut sum = 0;
            for (number, value) in numbers.iter().zip(&values) {
                assert_eq!(number.load(Ordering::Relaxed), sum, "{length}, {threads}");
                sum += value;
            }
        }
    }
}
