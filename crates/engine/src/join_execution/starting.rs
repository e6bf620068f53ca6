//! The execution that the streams of a plan node share.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::common::Result;
use parking_lot::Mutex;

/// The execution being started. The partitions share it until each of them has been started.
pub(crate) struct StartingExecution<E>(Mutex<Option<Starting<E>>>);

struct Starting<E> {
    execution: Arc<E>,
    started: Vec<bool>,
}

impl<E> Default for StartingExecution<E> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<E> fmt::Debug for StartingExecution<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartingExecution")
    }
}

impl<E> StartingExecution<E> {
    /// The execution that the next partitions join, before any of them does.
    pub fn ahead(&self, partitions: usize, start: impl FnOnce() -> Result<E>) -> Result<Arc<E>> {
        let mut starting = self.0.lock();
        let current = match starting.take() {
            Some(current) => current,
            None => Starting { execution: Arc::new(start()?), started: vec![false; partitions] },
        };
        let execution = Arc::clone(&current.execution);
        *starting = Some(current);
        Ok(execution)
    }

    /// Gives up an execution that was started ahead, if no partition has joined it.
    pub fn forget(&self, execution: &Weak<E>) {
        let mut starting = self.0.lock();
        let is_unused = starting.as_ref().is_some_and(|current| {
            Arc::as_ptr(&current.execution) == execution.as_ptr() && !current.started.contains(&true)
        });
        let unused = if is_unused { starting.take() } else { None };
        drop(starting);
        drop(unused);
    }

    /// The execution of `partition`, one of `partitions`. A partition that has already been started begins another execution.
    pub fn get(&self, partition: usize, partitions: usize, start: impl FnOnce() -> Result<E>) -> Result<Arc<E>> {
        let mut starting = self.0.lock();
        let mut current = match starting.take().filter(|current| !current.started[partition]) {
            Some(current) => current,
            None => Starting { execution: Arc::new(start()?), started: vec![false; partitions] },
        };
        current.started[partition] = true;
        let execution = Arc::clone(&current.execution);
        if !current.started.iter().all(|started| *started) {
            *starting = Some(current);
        }
        Ok(execution)
    }
}
