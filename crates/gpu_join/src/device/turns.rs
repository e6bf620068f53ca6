//! Whose turn it is on a GPU.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overspill_machine::{Error, Result};

/// Who lends a query its share of the GPUs: a scheduler, which may take it back.
pub trait ShareLender: Send + Sync {
    /// Whether the share was taken back. From then on it always is. Waiting threads ask every few milliseconds, so this must not block.
    fn is_taken_back(&self) -> bool;

    /// Called before a join with a build side of `rows` rows takes GPU memory for it. The lender may take the share back.
    fn build_side_read(&self, rows: u64);

    /// Called once the query has found its GPU lost.
    fn gpu_lost(&self);

    /// How many times as much time in turns the share gets as one of weight 1, if both always wait for one.
    fn weight(&self) -> f64 {
        1.0
    }
}

/// A lender that only says whether it has taken the share back.
impl<F: Fn() -> bool + Send + Sync> ShareLender for F {
    fn is_taken_back(&self) -> bool {
        self()
    }

    fn build_side_read(&self, _: u64) {}

    fn gpu_lost(&self) {}
}

/// A query's share of the GPUs. Who lends it to the query may take it back at any time.
///
/// Before each turn on a GPU, a join asks whether its query still has the share. If not, the CPU joins the rows that are left.
pub struct DeviceShare {
    lender: Box<dyn ShareLender>,
    weight: f64,
    /// Nanoseconds of turns that it has had, divided by its weight, as if it had been there from the start.
    served: AtomicU64,
}

impl DeviceShare {
    /// A share that this lender may take back.
    pub fn new(lender: impl ShareLender + 'static) -> Self {
        let weight = match lender.weight() {
            weight if weight.is_nan() => 1.0,
            weight => weight.clamp(1e-3, 1e3),
        };
        Self { lender: Box::new(lender), weight, served: AtomicU64::new(0) }
    }

    /// A share that no one takes back.
    pub fn kept() -> Arc<Self> {
        Arc::new(Self::new(|| false))
    }

    /// Whether it was taken back.
    pub fn is_taken_back(&self) -> bool {
        self.lender.is_taken_back()
    }

    /// Tells the lender the true size of a build side.
    pub(crate) fn build_side_read(&self, rows: u64) {
        self.lender.build_side_read(rows);
    }

    /// Tells the lender that the GPU is lost.
    pub(super) fn gpu_lost(&self) {
        self.lender.gpu_lost();
    }

    /// # Errors
    /// If it was taken back.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_taken_back() { Err(Error::TakenBack) } else { Ok(()) }
    }
}

impl fmt::Debug for DeviceShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceShare").field("served", &self.served).finish_non_exhaustive()
    }
}

/// How often a waiting thread looks whether its share was taken back.
const LOOK: Duration = Duration::from_millis(5);

/// Gives the turns on a GPU to shares: the next goes to the share that has had the least time for its weight. All shares so progress as
/// if they had a part of the GPU each (start-time fair queueing), whatever the length of a turn, and however many threads of one share
/// wait.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    /// In the order of arrival.
    waiting: Vec<(u64, Arc<DeviceShare>)>,
    last_number: u64,
    /// The time that the share of the last turn had had before it. A share that comes later had as much.
    clock: u64,
}

/// The turn on a GPU, until dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    turns: &'a Turns,
    share: Arc<DeviceShare>,
    since: Instant,
}

impl Turns {
    /// Waits for the turn. Blocks the thread.
    ///
    /// # Errors
    /// If the share was taken back.
    pub fn take(&self, share: &Arc<DeviceShare>) -> Result<Taken<'_>> {
        share.check()?;
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.waiting.push((number, Arc::clone(share)));
        while state.is_taken || state.next() != Some(number) {
            state = self.ended.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            if share.is_taken_back() {
                state.waiting.retain(|(other, _)| *other != number);
                self.ended.notify_all();
                return Err(Error::TakenBack);
            }
        }
        state.waiting.retain(|(other, _)| *other != number);
        state.is_taken = true;
        // Another GPU may add to it meanwhile.
        state.clock = state.clock.max(share.served.fetch_max(state.clock, Ordering::Relaxed));
        Ok(Taken { turns: self, share: Arc::clone(share), since: Instant::now() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Who has the next turn.
    fn next(&self) -> Option<u64> {
        let had = |share: &DeviceShare| share.served.load(Ordering::Relaxed).max(self.clock);
        self.waiting.iter().min_by_key(|(number, share)| (had(share), *number)).map(|(number, _)| *number)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // A number beyond the range of the type becomes its greatest.
        let time = (self.since.elapsed().as_nanos() as f64 / self.share.weight) as u64;
        let mut state = self.turns.lock();
        self.share.served.fetch_add(time, Ordering::Relaxed);
        state.is_taken = false;
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::thread;

    use super::*;

    /// Waits until `number` threads wait for their turn.
    fn await_waiting(turns: &Turns, number: usize) {
        let begin = Instant::now();
        while turns.lock().waiting.len() < number {
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", turns.lock());
            thread::yield_now();
        }
    }

    #[test]
    fn the_share_with_the_least_time_is_next_and_late_ones_have_no_lead() {
        let turns = Turns::default();
        let [long, short] = [(); 2].map(|()| DeviceShare::kept());
        let order = Mutex::new(vec![]);
        let turn = |share: &Arc<DeviceShare>, name: &'static str, time: u64| {
            let taken = turns.take(share).unwrap();
            order.lock().unwrap().push(name);
            // As if the turn had taken so long.
            taken.share.served.fetch_add(time * 1_000_000_000, Ordering::Relaxed);
        };
        turn(&long, "long", 100);
        let late = DeviceShare::kept();
        thread::scope(|scope| {
            let first = turns.take(&short).unwrap();
            for (number, (share, name)) in [(&long, "long"), (&short, "short"), (&late, "late")].iter().enumerate() {
                scope.spawn(|| turn(share, name, 30));
                await_waiting(&turns, number + 1);
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), ["long", "late", "short", "long"]);
        // Those that were away have had as much as the last, so that the first to come is the next.
        let newest = DeviceShare::kept();
        order.lock().unwrap().clear();
        thread::scope(|scope| {
            let first = turns.take(&long).unwrap();
            for (number, (share, name)) in [(&newest, "newest"), (&late, "late")].iter().enumerate() {
                scope.spawn(|| turn(share, name, 1));
                await_waiting(&turns, number + 1);
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), ["newest", "late"]);
        assert!(newest.served.load(Ordering::Relaxed) > 100_000_000_000);
    }

    #[test]
    fn turns_are_shared_by_weight() {
        struct Weighted(f64);
        impl ShareLender for Weighted {
            fn is_taken_back(&self) -> bool {
                false
            }

            fn build_side_read(&self, _: u64) {}

            fn gpu_lost(&self) {}

            fn weight(&self) -> f64 {
                self.0
            }
        }
        let turns = Turns::default();
        let [light, heavy] = [1.0, 4.0].map(|weight| Arc::new(DeviceShare::new(Weighted(weight))));
        let counts = [&light, &heavy].map(|share| (share, AtomicUsize::new(0)));
        let begin = Instant::now();
        thread::scope(|scope| {
            for (share, count) in &counts {
                // Two threads, so that one always waits.
                for _ in 0..2 {
                    scope.spawn(|| {
                        while begin.elapsed() < Duration::from_millis(600) {
                            let _turn = turns.take(share).unwrap();
                            thread::sleep(Duration::from_millis(2));
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            }
        });
        let [light, heavy] = counts.map(|(_, count)| count.into_inner() as f64);
        assert!((2.5..6.0).contains(&(heavy / light)), "{heavy} turns beside {light}");
        assert_eq!([f64::NAN, 0.0].map(|weight| DeviceShare::new(Weighted(weight)).weight), [1.0, 1e-3]);
    }

    #[test]
    fn no_turn_overlaps_another_and_no_wake_up_is_lost() {
        let turns = Turns::default();
        let (inside, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                let share = DeviceShare::kept();
                for _ in 0..2 {
                    let (turns, inside, count, share) = (&turns, &inside, &count, Arc::clone(&share));
                    scope.spawn(move || {
                        for _ in 0..500 {
                            let _turn = turns.take(&share).unwrap();
                            assert!(!inside.swap(true, Ordering::SeqCst));
                            count.fetch_add(1, Ordering::Relaxed);
                            inside.store(false, Ordering::SeqCst);
                        }
                    });
                }
            }
        });
        assert_eq!(count.into_inner(), 4000);
        assert!(turns.lock().waiting.is_empty());
    }

    #[test]
    fn waiting_ends_when_the_share_is_taken_back() {
        let turns = Turns::default();
        let is_taken_back = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_taken_back);
        let share = Arc::new(DeviceShare::new(move || flag.load(Ordering::Relaxed)));
        let other = DeviceShare::kept();
        thread::scope(|scope| {
            let turn = turns.take(&other).unwrap();
            let waiting = scope.spawn(|| turns.take(&share).map(drop));
            await_waiting(&turns, 1);
            is_taken_back.store(true, Ordering::Relaxed);
            assert!(matches!(waiting.join().unwrap(), Err(Error::TakenBack)));
            assert!(turns.lock().waiting.is_empty());
            drop(turn);
        });
        assert!(turns.take(&share).is_err());
        assert!(turns.take(&other).is_ok());
    }
}
