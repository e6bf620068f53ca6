//! Distributes work over several threads.

use std::sync::{Mutex, PoisonError};

use tracing::Span;

/// Runs each task once, on at most `threads` threads at a time, and returns the results in the order of the tasks.
///
/// Threads take tasks one by one, so that a few large ones do not hold up the rest.
pub fn in_parallel<T: Send, R: Send>(threads: usize, tasks: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    if threads.min(tasks.len()) <= 1 {
        return tasks.into_iter().map(work).collect();
    }
    let mut results: Vec<Option<R>> = tasks.iter().map(|_| None).collect();
    let helpers = threads.min(tasks.len()) - 1;
    let queue = Mutex::new(tasks.into_iter().zip(&mut results));
    let run = || {
        loop {
            // A panic in another thread ends this one when the scope ends, not here.
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((task, place)) = next else { break };
            *place = Some(work(task));
        }
    };
    let doing = Span::current();
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|| doing.in_scope(run));
        }
        run();
    });
    drop(queue);
    results.into_iter().flatten().collect()
}

/// Consecutive ranges that cover `rows`, about one per thread.
pub fn ranges(rows: usize, threads: usize) -> Vec<std::ops::Range<usize>> {
    let length = rows.div_ceil(threads.max(1)).max(1);
    (0..rows).step_by(length).map(|start| start..(start + length).min(rows)).collect()
}

/// Splits a slice into consecutive pieces of these lengths, for threads that fill one each.
///
/// # Panics
/// Panics if the slice is shorter than its pieces together.
pub fn split<T>(slice: &mut [T], lengths: impl IntoIterator<Item = usize>) -> Vec<&mut [T]> {
    let mut rest = slice;
    lengths
        .into_iter()
        .map(|length| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            piece
        })
        .collect()
}
