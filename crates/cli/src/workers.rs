//! The threads that statements run on.

use std::time::Duration;

use overspill::cancellation::Cancellation;
use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::time::{Instant, sleep};

use crate::failure::{Failure, Outcome};

/// Stack of a thread: deep expressions are evaluated, and deep plans dropped, by recursion. Pages that are not touched
/// are never there.
const STACK_BYTES: usize = 64 << 20;

/// How long what a statement has left running may take to end before it loses its claim on the threads.
const PATIENCE: Duration = Duration::from_millis(300);

const GLANCE: Duration = Duration::from_millis(2);

/// How long the end waits for work that cannot be stopped at once. What is dropped meanwhile removes its files.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The threads of the statement that runs.
///
/// A task can only be stopped where it gives way. An operator that computes on without doing so keeps its thread when its
/// statement has been cancelled, and with as many of them as there are threads nothing else would ever run. So once a
/// statement has ended, what is left of it gets a moment; if it runs on, it keeps those threads until it ends, and
/// the next statement gets others.
pub struct Workers {
    count: usize,
    runtime: Option<Runtime>,
    /// Of what runs on these threads.
    cancellation: Cancellation,
    /// Threads that cancelled statements have kept.
    lost: Vec<Runtime>,
}

/// What a statement has left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Nothing,
    /// Work that goes on by itself, on threads that no statement gets again.
    Work,
}

impl Workers {
    pub fn start(count: usize) -> Outcome<Self> {
        let cancellation = Cancellation::default();
        Ok(Self { count, runtime: Some(start(count, &cancellation)?), cancellation, lost: vec![] })
    }

    /// Makes these the threads that tasks are spawned on, while the guard is there.
    pub fn enter(&self) -> Option<EnterGuard<'_>> {
        self.runtime.as_ref().map(Runtime::enter)
    }

    /// Waits for the end of what a statement has left running, a moment only, and sees to it that the next statement
    /// finds threads.
    pub async fn settle(&mut self) -> Outcome<Left> {
        let start_of_wait = Instant::now();
        while let Some(runtime) = &self.runtime
            && runtime.metrics().num_alive_tasks() > 0
        {
            // The statement has ended. Work that checks its cancellation stops at once.
            self.cancellation.cancel();
            if start_of_wait.elapsed() > PATIENCE {
                self.replace()?;
                return Ok(Left::Work);
            }
            sleep(GLANCE).await;
        }
        self.cancellation.resume();
        Ok(Left::Nothing)
    }

    /// Takes other threads. Those that are lost keep their cancellation.
    fn replace(&mut self) -> Outcome<()> {
        let cancellation = Cancellation::default();
        let busy = self.runtime.replace(start(self.count, &cancellation)?);
        self.cancellation = cancellation;
        let (lost, done): (Vec<_>, Vec<_>) =
            self.lost.drain(..).partition(|runtime| runtime.metrics().num_alive_tasks() > 0);
        done.into_iter().for_each(Runtime::shutdown_background);
        self.lost = lost.into_iter().chain(busy).collect();
        Ok(())
    }

    /// Ends the threads, lost ones too. Not to be called by one of them, nor within a task.
    pub fn end(mut self) {
        let end = Instant::now() + END_PATIENCE;
        for runtime in self.lost.drain(..).chain(self.runtime.take()) {
            runtime.shutdown_timeout(end.saturating_duration_since(Instant::now()));
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which may be busy for ever.
        self.lost.drain(..).chain(self.runtime.take()).for_each(Runtime::shutdown_background);
    }
}

fn start(count: usize, cancellation: &Cancellation) -> Outcome<Runtime> {
    let cancellation = cancellation.clone();
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(count).thread_stack_size(STACK_BYTES).enable_all();
    let runtime = builder.on_thread_start(move || cancellation.apply_to_thread()).build();
    runtime.map_err(|error| Failure::message(format!("cannot start {count} threads: {error}")))
}
