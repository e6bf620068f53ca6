//! Work that waits for a GPU, on a thread of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::{Builder, JoinHandle};

use futures::task::AtomicWaker;
use tracing::Span;

/// Work on a thread of its own, because launching, waiting for a turn and waiting for kernels each block one. Dropping it early asks
/// the work to end, and waits for the thread: the GPU does no work for a query that no longer exists, and memory outlives the work that
/// needs it.
pub(crate) struct Flight<T> {
    /// The work until it is taken to be done.
    waiting: Arc<Mutex<Option<Work<T>>>>,
    thread: Option<JoinHandle<Option<T>>>,
    landing: Arc<Landing>,
}

type Work<T> = Box<dyn FnOnce(&Landing) -> T + Send>;

/// What a flight and its thread tell each other.
#[derive(Debug, Default)]
pub(crate) struct Landing {
    /// No one wants the result any more.
    is_dropped: AtomicBool,
    has_landed: AtomicBool,
    waker: AtomicWaker,
}

impl Landing {
    /// Whether work of several parts should end after this one, because no one wants the result.
    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Relaxed)
    }
}

impl<T: Send + 'static> Flight<T> {
    /// Starts the work.
    pub(crate) fn start(work: impl FnOnce(&Landing) -> T + Send + 'static) -> Self {
        let waiting: Arc<Mutex<Option<Work<T>>>> = Arc::new(Mutex::new(Some(Box::new(work))));
        let landing = Arc::<Landing>::default();
        let (theirs, lands, span) = (Arc::clone(&waiting), Lands(Arc::clone(&landing)), Span::current());
        let thread = Builder::new().name("overspill-gpu".to_owned()).spawn(move || {
            let _span = span.entered();
            take(&theirs).map(|work| work(&lands.0))
        });
        // If no thread could be started, that has dropped `Lands`, and `land` does the work.
        Self { waiting, thread: thread.ok(), landing }
    }

    /// Whether the work is done.
    pub(crate) fn has_landed(&self) -> bool {
        self.landing.has_landed.load(Ordering::Acquire)
    }

    /// Resolves when the work is done. One may wait at a time.
    pub(crate) fn landing(&self) -> impl Future<Output = ()> + Send + use<T> {
        let landing = Arc::clone(&self.landing);
        std::future::poll_fn(move |context| {
            landing.waker.register(context.waker());
            if landing.has_landed.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Waits until the work is done, and returns its result.
    ///
    /// # Panics
    /// If the work panicked.
    pub(crate) fn land(mut self) -> T {
        let landed = match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => take(&self.waiting).map(|work| work(&self.landing)),
        };
        landed.unwrap_or_else(|| unreachable!("work is done once"))
    }
}

fn take<T>(waiting: &Mutex<Option<Work<T>>>) -> Option<Work<T>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl<T> Drop for Flight<T> {
    fn drop(&mut self) {
        self.landing.is_dropped.store(true, Ordering::Relaxed);
        // Ignore a panic of the thread: its result is no longer needed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl<T> fmt::Debug for Flight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("landing", &self.landing).finish_non_exhaustive()
    }
}

/// Tells that the work is done, even if it panicked.
struct Lands(Arc<Landing>);

impl Drop for Lands {
    fn drop(&mut self) {
        self.0.has_landed.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_waits_is_woken_when_the_work_is_done() {
        let (go, gone) = mpsc::channel();
        let flight = Flight::start(move |_| gone.recv().map_or(0, |()| 7));
        assert!(!flight.has_landed());
        let other = std::thread::spawn(move || go.send(()));
        futures::executor::block_on(flight.landing());
        assert!(flight.has_landed() && other.join().unwrap().is_ok());
        // Also if it waits only now.
        futures::executor::block_on(flight.landing());
        assert_eq!(flight.land(), 7);
    }

    #[test]
    fn a_panic_is_passed_on() {
        let flight = Flight::start(|_| -> u32 { panic!("in flight") });
        futures::executor::block_on(flight.landing());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| flight.land())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"in flight"));
    }

    #[test]
    fn dropping_ends_the_work_and_waits_for_that() {
        let done = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&done);
        drop(Flight::start(move |landing| {
            while !landing.is_dropped() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            theirs.store(true, Ordering::Release);
        }));
        assert!(done.load(Ordering::Acquire));
    }
}
