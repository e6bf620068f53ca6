//! Runs work on newly started threads.

use datafusion::common::Result;

/// Runs each item of work on its own thread.
pub(crate) fn on_each<T: Send, R: Send>(work: Vec<T>, run: impl Fn(T) -> Result<R> + Sync) -> Result<Vec<R>> {
    std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = work.into_iter().map(|work| scope.spawn(move || run(work))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
