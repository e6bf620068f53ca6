//! The threads that statements run on.

use std::time::Duration;

use overspill::cancellation::Cancellation;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// The stack size of a thread. Deep expressions are evaluated, and deep plans dropped, by recursion. Untouched pages take no
/// memory.
const STACK_BYTES: usize = 64 << 20;

/// How long the remaining work of a statement may take to end before it loses its claim on the threads.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long to wait before the remaining work is looked at again.
pub const GLANCE: Duration = Duration::from_millis(2);

/// How long the end waits for work that cannot be stopped at once. Work that is dropped meanwhile removes its files.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The threads of the running statement.
///
/// A task can only be stopped where it yields. An operator that computes without yielding keeps its thread after its
/// statement was cancelled; with as many such operators as threads, nothing else could run. After a statement has ended, its
/// remaining work therefore gets a moment. If it continues, it keeps those threads until it ends, and the next statement gets
/// new threads.
pub struct Workers {
    count: usize,
    runtime: Option<Runtime>,
    /// The cancellation of the work on these threads.
    cancellation: Cancellation,
    /// Threads kept by cancelled statements.
    lost: Vec<Runtime>,
}

/// What a statement has left running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Its threads are idle.
    Nothing,
    /// Work that continues on threads that no later statement gets.
    Work,
}

impl Workers {
    pub fn start(count: usize) -> Result<Self> {
        let cancellation = Cancellation::default();
        Ok(Self { count, runtime: Some(start(count, &cancellation)?), cancellation, lost: vec![] })
    }

    /// Starts a task of `tasks` on these threads. Returns `None` after [`Workers::end`].
    pub fn spawn<T: Send + 'static>(
        &self,
        tasks: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<AbortHandle> {
        self.runtime.as_ref().map(|runtime| tasks.spawn_on(task, runtime.handle()))
    }

    /// Whether a statement that ended at `end` has left work, once that is known; then the next statement has threads.
    pub fn settled(&mut self, end: Instant) -> Result<Option<Left>> {
        if self.runtime.as_ref().is_none_or(|runtime| runtime.metrics().num_alive_tasks() == 0) {
            self.cancellation.resume();
            return Ok(Some(Left::Nothing));
        }
        // The statement has ended. Work that checks its cancellation stops at once.
        self.cancellation.cancel();
        if end.elapsed() <= PATIENCE {
            return Ok(None);
        }
        self.replace()?;
        Ok(Some(Left::Work))
    }

    /// Starts new threads. Lost threads keep their cancellation.
    fn replace(&mut self) -> Result<()> {
        let cancellation = Cancellation::default();
        let busy = self.runtime.replace(start(self.count, &cancellation)?);
        self.cancellation = cancellation;
        let (lost, done): (Vec<_>, Vec<_>) =
            self.lost.drain(..).partition(|runtime| runtime.metrics().num_alive_tasks() > 0);
        done.into_iter().for_each(Runtime::shutdown_background);
        self.lost = lost.into_iter().chain(busy).collect();
        Ok(())
    }

    /// Ends all threads, including lost ones. Must not be called from one of them or from a task.
    pub fn end(&mut self) {
        let end = Instant::now() + END_PATIENCE;
        for runtime in self.lost.drain(..).chain(self.runtime.take()) {
            runtime.shutdown_timeout(end.saturating_duration_since(Instant::now()));
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which may be busy forever.
        self.lost.drain(..).chain(self.runtime.take()).for_each(Runtime::shutdown_background);
    }
}

fn start(count: usize, cancellation: &Cancellation) -> Result<Runtime> {
    let cancellation = cancellation.clone();
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(count).thread_stack_size(STACK_BYTES).enable_all();
    let runtime = builder.on_thread_start(move || cancellation.apply_to_thread()).build();
    runtime.map_err(|error| Error::new(format!("cannot start {count} threads: {error}")))
}
