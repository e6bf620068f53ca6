//! RadixSpline (Kipf et al., 2020): a spline through sorted keys, and a table that finds its points.

mod spline;

use overspill_machine::Result;
use overspill_machine::memory::{PageVec, prefetch};

use crate::node::LINE;
use crate::search::{Search, TOGETHER};
use spline::spline;

/// How far a key may be from where the spline says. A smaller error takes more points, which then no longer fit the cache; a
/// larger one reads more lines of keys.
const ERROR: usize = 16;

/// Most bits of the table.
const MOST_BITS: u32 = 24;

/// A point of the spline: a key and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    key: u64,
    place: u64,
}

/// A table on the upper bits of a key gives the spline points near it, interpolation between two of them the place of the key, off
/// by at most an error, and a search around that place the key. Built in one pass.
#[derive(Debug)]
pub struct RadixSpline {
    points: Vec<Point>,
    /// For each value of the upper bits, the first point with these or larger upper bits.
    table: PageVec<u32>,
    /// The smallest key. Keys are looked up by their distance from it.
    smallest: u64,
    largest: u64,
    /// Lower bits of a distance that the table ignores.
    shift: u32,
}

impl RadixSpline {
    /// Builds the spline through sorted keys. `O(n)`.
    ///
    /// # Errors
    /// If the system does not provide the memory.
    pub fn new(sorted: &[u64]) -> Result<Self> {
        let points = spline(sorted, ERROR);
        let (smallest, largest) = (sorted.first().copied().unwrap_or(0), sorted.last().copied().unwrap_or(0));
        // Twice as many entries as points: most keys then find one point or none.
        let entries = (2 * points.len()).next_power_of_two().clamp(2, 1 << MOST_BITS);
        let shift = (u64::BITS - (largest - smallest).leading_zeros()).saturating_sub(entries.ilog2());
        let entries = ((largest - smallest) >> shift) as usize + 1;
        let mut table = PageVec::<u32>::zeroed(entries + 1)?;
        let mut filled = 0;
        for (number, point) in points.iter().enumerate() {
            let entry = ((point.key - smallest) >> shift) as usize;
            while filled <= entry {
                table[filled] = number as u32;
                filled += 1;
            }
        }
        table[filled..].fill(points.len() as u32);
        Ok(Self { points, table, smallest, largest, shift })
    }

    /// The entry of a key between the smallest and the largest.
    fn entry(&self, key: u64) -> usize {
        ((key - self.smallest) >> self.shift) as usize
    }

    /// The number of the first point that is not smaller than a key, among those that the table gives.
    fn point(&self, key: u64, [mut first, end]: [u32; 2]) -> usize {
        // Few, so that halving would not be faster unless many keys are close together.
        const FEW: u32 = 8;
        if end - first > FEW {
            let points = &self.points[first as usize..end as usize];
            return first as usize + points.partition_point(|point| point.key < key);
        }
        while first < end && self.points[first as usize].key < key {
            first += 1;
        }
        first as usize
    }

    /// Where the spline says that a key is, given the first point that is not smaller.
    fn estimate(&self, key: u64, point: usize) -> usize {
        let Some(before) = point.checked_sub(1) else { return 0 };
        let [before, after] = [self.points[before], self.points[point]];
        let share = (key - before.key) as f64 / (after.key - before.key) as f64;
        before.place as usize + ((after.place - before.place) as f64 * share) as usize
    }
}

impl Search for RadixSpline {
    fn lower_bounds(&self, sorted: &[u64], keys: &[u64], places: &mut [usize]) {
        let places = &mut places[..keys.len()];
        for (keys, places) in keys.chunks(TOGETHER).zip(places.chunks_mut(TOGETHER)) {
            // Keys out of range are looked up as the nearest in range.
            let mut near = [self.smallest; TOGETHER];
            for (near, key) in near.iter_mut().zip(keys) {
                *near = (*key).clamp(self.smallest, self.largest);
                prefetch(&self.table[self.entry(*near)]);
            }
            let mut points = [[0; 2]; TOGETHER];
            for (points, near) in points.iter_mut().zip(near).take(keys.len()) {
                let entry = self.entry(near);
                *points = [self.table[entry], self.table[entry + 1]];
                self.points.get(points[0].saturating_sub(1) as usize).into_iter().for_each(prefetch);
            }
            let mut estimates = [0; TOGETHER];
            for ((estimate, near), points) in estimates.iter_mut().zip(near).zip(points).take(keys.len()) {
                *estimate = self.estimate(near, self.point(near, points));
                for line in [estimate.saturating_sub(LINE), *estimate, *estimate + LINE] {
                    sorted.get(line).into_iter().for_each(prefetch);
                }
            }
            for ((place, estimate), key) in places.iter_mut().zip(estimates).zip(keys) {
                *place = search_near(sorted, estimate, *key);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.points.len() * size_of::<Point>() + self.table.bytes()
    }
}

/// The place of the first sorted key that is not smaller, searched around `near` in steps that double.
#[inline(always)]
fn search_near(sorted: &[u64], near: usize, key: u64) -> usize {
    let is_smaller = |place: usize| sorted.get(place).is_some_and(|at| *at < key);
    let mut step = LINE;
    // The place is one of `first` to `last`.
    let (mut first, last) = if is_smaller(near) {
        let mut first = near + 1;
        while is_smaller(first + step - 1) {
            first += step;
            step *= 2;
        }
        (first, (first + step - 1).min(sorted.len()))
    } else {
        let mut last = near.min(sorted.len());
        while last >= step && !is_smaller(last - step) {
            last -= step;
            step *= 2;
        }
        ((last + 1).saturating_sub(step), last)
    };
    let mut length = last - first;
    while length > 1 {
        let half = length / 2;
        first += if sorted[first + half - 1] < key { half } else { 0 };
        length -= half;
    }
    if length == 1 { first + usize::from(sorted[first] < key) } else { first }
}
