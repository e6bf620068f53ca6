//! Cancels computations that run for long without yielding.
//!
//! Dropping a stream or aborting a task stops a query where it yields, and some parts of a query do not yield: a rule of the
//! planner over a large expression, a window function over all rows of a partition, a text function over a batch of long
//! texts. Here, these parts check for a cancellation. Threads that run queries get a [`Cancellation`]
//! ([`Cancellation::apply_to_thread`], as in `on_thread_start` of a Tokio runtime), and the wrappers that [`interruptible`]
//! adds to the session check it every now and then. Nothing changes on other threads.

mod rules;
mod scalar;
mod window;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::{Result, exec_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::optimizer::{Analyzer, Optimizer};
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

/// Signals threads that their computations are no longer needed.
#[derive(Debug, Default, Clone)]
pub struct Cancellation {
    cancelled: Arc<AtomicBool>,
}

thread_local! {
    static OF_THREAD: RefCell<Cancellation> = RefCell::default();
}

impl Cancellation {
    /// Makes this the cancellation of the calling thread for everything that it does from now on.
    pub fn apply_to_thread(&self) {
        OF_THREAD.set(self.clone());
    }

    /// Cancels the computations of the threads.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Lets the threads compute again.
    pub fn resume(&self) {
        self.cancelled.store(false, Ordering::Relaxed);
    }
}

/// Fails once the work of this thread has been cancelled.
///
/// # Errors
/// An execution error.
pub fn check() -> Result<()> {
    let cancelled = OF_THREAD.with_borrow(|cancellation| cancellation.cancelled.load(Ordering::Relaxed));
    if cancelled { exec_err!("The query was cancelled") } else { Ok(()) }
}

/// Makes planning, window functions and text functions of a session cancellable on threads that have a [`Cancellation`].
///
/// Call it after [`with_overspill`](crate::OverspillSessionExt::with_overspill) and all other calls that add rules, as it
/// wraps the rules.
#[must_use]
pub fn interruptible(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    let analyzer = builder.analyzer().get_or_insert_with(Analyzer::new);
    for rule in &mut analyzer.rules {
        *rule = Arc::new(rules::Checked(Arc::clone(rule)));
    }
    let optimizer = builder.optimizer().get_or_insert_with(Optimizer::new);
    // Last, as rules recognize functions by their types.
    optimizer.rules.push(Arc::new(rules::InterruptibleFunctions));
    for rule in &mut optimizer.rules {
        *rule = Arc::new(rules::Checked(Arc::clone(rule)));
    }
    let physical = builder.physical_optimizers().get_or_insert_with(PhysicalOptimizer::new);
    for rule in &mut physical.rules {
        *rule = Arc::new(rules::Checked(Arc::clone(rule)));
    }
    builder
}

#[cfg(test)]
mod tests;
