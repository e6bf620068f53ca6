//! Stops what is computed for long without giving way.
//!
//! Dropping a stream or aborting a task stops a query where it gives way to others, and some parts of a query do not: a
//! rule of the planner over a large expression, a window function over all rows of a partition, a text function over a
//! batch of long texts. They are asked here instead. Threads that run queries are told of a [`Cancellation`]
//! ([`Cancellation::apply_to_thread`], as in `on_thread_start` of a Tokio runtime), and what [`interruptible`] put into the
//! session looks at it every now and then. On other threads nothing changes.

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

/// Says to threads that what they compute is not wanted any more.
#[derive(Debug, Default, Clone)]
pub struct Cancellation {
    cancelled: Arc<AtomicBool>,
}

thread_local! {
    static OF_THREAD: RefCell<Cancellation> = RefCell::default();
}

impl Cancellation {
    /// Makes this the cancellation of the thread that calls it, for all that the thread does from now on.
    pub fn apply_to_thread(&self) {
        OF_THREAD.set(self.clone());
    }

    /// Cancels what the threads compute.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Lets the threads compute again.
    pub fn resume(&self) {
        self.cancelled.store(false, Ordering::Relaxed);
    }
}

/// Fails once the work of this thread is cancelled.
///
/// # Errors
/// An execution error.
pub fn check() -> Result<()> {
    let cancelled = OF_THREAD.with_borrow(|cancellation| cancellation.cancelled.load(Ordering::Relaxed));
    if cancelled { exec_err!("The query was cancelled") } else { Ok(()) }
}

/// Lets planning, window functions and text functions of a session be cancelled on threads that have a
/// [`Cancellation`].
///
/// Call it after [`with_overspill`](crate::OverspillSessionExt::with_overspill) and whatever else adds rules, which it
/// wraps.
#[must_use]
pub fn interruptible(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    let analyzer = builder.analyzer().get_or_insert_with(Analyzer::new);
    for rule in &mut analyzer.rules {
        *rule = Arc::new(rules::Checked(Arc::clone(rule)));
    }
    let optimizer = builder.optimizer().get_or_insert_with(Optimizer::new);
    // Last, as rules know functions by their types.
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
