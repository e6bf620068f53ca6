//! Index joins on the CPU's threads.

use std::ops::Range;

use datafusion::common::{Result, exec_err};
use overspill_index::Index;
use overspill_join::index_join::Window;
use overspill_machine::memory::PageVec;

use super::median_seconds;
use super::workload::Workload;
use crate::report::failed;
use crate::threads::on_each;

/// Keys that are looked up at once where no window partitions them.
const BATCH: usize = 8192;

/// Pairs of a thread: places in r, and numbers in its part of s.
struct Pairs {
    places: PageVec<u64>,
    numbers: PageVec<u64>,
    count: usize,
}

impl Pairs {
    fn new(most: usize) -> Result<Self> {
        let column = || PageVec::zeroed(most).map_err(failed);
        Ok(Self { places: column()?, numbers: column()?, count: 0 })
    }

    fn add(&mut self, number: u64, places: &Range<usize>) {
        // A key of s is one of r, which are unique; anything else is found by `check`.
        if let (Some(place), false) = (self.places.get_mut(self.count), places.is_empty()) {
            *place = places.start as u64;
            self.numbers[self.count] = number;
            self.count += 1;
        }
    }

    fn check(&self, index: &Index, keys: &[u64]) -> Result<()> {
        let pairs = self.places.iter().zip(&*self.numbers).take(self.count);
        let are_right = pairs.into_iter().all(|(place, number)| {
            index.keys().get(*place as usize).is_some_and(|key| keys.get(*number as usize) == Some(key))
        });
        if self.count != keys.len() || !are_right {
            return exec_err!("An index join has {} pairs of {}, or wrong ones.", self.count, keys.len());
        }
        Ok(())
    }
}

/// The median seconds of `runs` joins on `threads` threads, which look keys up as they come or in windows of `window` keys. The pairs of
/// the last join are checked.
pub(super) fn join(
    workload: &Workload,
    index: &Index,
    window: Option<usize>,
    threads: usize,
    runs: usize,
) -> Result<f64> {
    let part = workload.s.len().div_ceil(threads.max(1)).max(1);
    let parts: Vec<&[u64]> = workload.s.chunks(part).collect();
    let mut pairs = parts.iter().map(|keys| Pairs::new(keys.len())).collect::<Result<Vec<_>>>()?;
    let (seconds, _) = median_seconds(runs, || {
        pairs.iter_mut().for_each(|pairs| pairs.count = 0);
        on_each(parts.iter().zip(&mut pairs).collect(), |(keys, pairs): (&&[u64], &mut Pairs)| match window {
            Some(window) => in_windows(index, keys, window, pairs),
            None => as_they_come(index, keys, pairs),
        })
    })?;
    for (pairs, keys) in pairs.iter().zip(&parts) {
        pairs.check(index, keys)?;
    }
    Ok(seconds)
}

fn as_they_come(index: &Index, keys: &[u64], pairs: &mut Pairs) -> Result<()> {
    let mut places = Vec::new();
    for (number, keys) in keys.chunks(BATCH).enumerate() {
        index.look_up(keys, &mut places);
        for (number, places) in ((number * BATCH) as u64..).zip(&places) {
            pairs.add(number, places);
        }
    }
    Ok(())
}

fn in_windows(index: &Index, keys: &[u64], window: usize, pairs: &mut Pairs) -> Result<()> {
    let mut lookups = Window::new(index.keys()).map_err(failed)?;
    for (number, keys) in keys.chunks(window).enumerate() {
        let first = (number * window) as u64;
        let found = |numbers: &[u64], places: &[Range<usize>]| {
            for (number, places) in numbers.iter().zip(places) {
                pairs.add(first + number, places);
            }
        };
        lookups.look_up(index, keys, found).map_err(failed)?;
    }
    Ok(())
}
