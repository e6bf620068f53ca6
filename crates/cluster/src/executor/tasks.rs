//! The tasks that run, so that they can be stopped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long tasks may take to stop.
const PATIENCE: Duration = Duration::from_secs(3);

/// The tasks of an executor, by the name of their job.
#[derive(Debug, Default)]
pub struct Tasks {
    running: Mutex<HashMap<String, OfJob>>,
}

/// The tasks of a job that run here.
#[derive(Debug)]
struct OfJob {
    tasks: usize,
    /// Whether they are to stop.
    stop: watch::Sender<bool>,
}

impl Tasks {
    /// Notes a task of a job until the value is dropped.
    pub fn enter(self: &Arc<Self>, job: &str) -> Running {
        let running = &mut *self.running.lock();
        let of_job =
            running.entry(job.to_owned()).or_insert_with(|| OfJob { tasks: 0, stop: watch::Sender::new(false) });
        of_job.tasks += 1;
        Running { stop: of_job.stop.subscribe(), tasks: Arc::clone(self), job: job.to_owned() }
    }

    /// Whether a job has tasks here.
    pub fn has(&self, job: &str) -> bool {
        self.running.lock().contains_key(job)
    }

    /// Stops the tasks of a job.
    pub fn stop(&self, job: &str) {
        if let Some(of_job) = self.running.lock().get(job) {
            of_job.stop.send_replace(true);
        }
    }

    /// Stops all tasks that run now.
    pub fn stop_all(&self) {
        for of_job in self.running.lock().values() {
            of_job.stop.send_replace(true);
        }
    }

    /// Waits until no task runs, but not for long: one that computes without yielding does not stop.
    pub async fn ended(&self) {
        let start = Instant::now();
        while !self.running.lock().is_empty() && start.elapsed() < PATIENCE {
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A task that runs.
#[derive(Debug)]
pub struct Running {
    tasks: Arc<Tasks>,
    job: String,
    stop: watch::Receiver<bool>,
}

impl Running {
    /// Resolves once the task is to stop.
    pub async fn stopped(&mut self) {
        // The sender lives as long as the task.
        let _ = self.stop.wait_for(|stop| *stop).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let running = &mut *self.tasks.running.lock();
        if let Some(of_job) = running.get_mut(&self.job) {
            of_job.tasks -= 1;
            if of_job.tasks == 0 {
                running.remove(&self.job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_are_counted_and_stopped_by_job() {
        let tasks = Arc::new(Tasks::default());
        let (first, mut second, other) = (tasks.enter("a"), tasks.enter("a"), tasks.enter("b"));
        drop(first);
        assert!(tasks.has("a") && tasks.has("b") && !tasks.has("c"));
        tasks.stop("a");
        second.stopped().await;
        drop(second);
        assert!(!tasks.has("a") && tasks.has("b"));
        let mut again = tasks.enter("b");
        tasks.stop_all();
        again.stopped().await;
        drop((again, other));
        tasks.ended().await;
    }
}
