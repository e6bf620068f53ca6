//! RadixSpline (Kipf et al., 2020): a spline through sorted keys, and a table that finds its points.

mod spline;

use overspill_machine::memory::{PageVec, prefetch};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};
use overspill_machine::{Error, Result};

use crate::keys::SortedKeys;
use crate::node::LINE;
use crate::search::{IndexParts, Search, TOGETHER};
use spline::spline;

/// How far a key may be from where the spline says. A smaller error takes more points, which then no longer fit the cache; with a
/// larger one, more lines of keys are read.
const ERROR: usize = 32;

/// Most bits of the table.
const MOST_BITS: u32 = 24;

/// A point of the spline: a key and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    key: u64,
    place: u64,
}

impl From<[u64; 2]> for Point {
    fn from([key, place]: [u64; 2]) -> Self {
        Self { key, place }
    }
}

/// A table on the upper bits of a key gives the spline points near it, interpolation between two of them the place of the key, off
/// by at most an error, and a search around that place the key. Built in one pass.
#[derive(Debug)]
pub struct RadixSpline {
    /// Keys with their places, as in [`Point`].
    points: PageVec<[u64; 2]>,
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
    /// If the system does not provide the memory, or the spline takes 2^32 points.
    pub fn new(sorted: &SortedKeys) -> Result<Self> {
        let points = spline(sorted, ERROR);
        let (smallest, largest) = (sorted.first().copied().unwrap_or(0), sorted.last().copied().unwrap_or(0));
        if u32::try_from(points.len()).is_err() {
            let reason = format!("{} keys are too unevenly distributed for a RadixSpline; take a B+tree", sorted.len());
            return Err(Error::Invalid(reason));
        }
        // One or two entries a point: most keys then find one point or two.
        let entries = points.len().next_power_of_two().clamp(2, 1 << MOST_BITS);
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
        let mut pairs = PageVec::<[u64; 2]>::zeroed(points.len())?;
        pairs.iter_mut().zip(&points).for_each(|(pair, point)| *pair = [point.key, point.place]);
        Ok(Self { points: pairs, table, smallest, largest, shift })
    }

    /// The entry of a key between the smallest and the largest.
    fn entry(&self, key: u64) -> usize {
        ((key - self.smallest) >> self.shift) as usize
    }

    /// The number of the first point that is not smaller than a key, among those that the table gives.
    #[inline(always)]
    fn point(&self, key: u64, [first, end]: [u32; 2]) -> usize {
        // Most entries of the table have no more points than these. They are counted without a branch, which the processor would
        // mispredict.
        const FEW: usize = 3;
        let points = &self.points[first as usize..end as usize];
        let is_smaller = |place: usize| points.get(place).is_some_and(|[smallest, _]| *smallest < key);
        let smaller = (0..FEW).map(|place| usize::from(is_smaller(place))).sum::<usize>();
        if smaller == FEW {
            first as usize + points.partition_point(|[smallest, _]| *smallest < key)
        } else {
            first as usize + smaller
        }
    }

    /// Where the spline says that a key is, given the first point that is not smaller, and the places a key of the line there.
    #[inline(always)]
    fn estimate(&self, key: u64, point: usize) -> (usize, f64) {
        let Some(before) = point.checked_sub(1) else { return (0, 0.0) };
        let [before, after] = [before, point].map(|number| Point::from(self.points[number]));
        let slope = (after.place - before.place) as f64 / (after.key - before.key) as f64;
        (before.place as usize + (slope * (key - before.key) as f64) as usize, slope)
    }
}

impl Search for RadixSpline {
    fn lower_bounds(&self, sorted: &SortedKeys, keys: &[u64], places: &mut [usize]) {
        let places = &mut places[..keys.len()];
        if sorted.is_empty() {
            places.fill(0);
            return;
        }
        with_widest_vectors(Lookup { spline: self, sorted, keys, places });
    }

    fn bytes(&self) -> usize {
        self.points.bytes() + self.table.bytes()
    }

    fn parts(&self) -> IndexParts<'_> {
        IndexParts::RadixSpline { points: &self.points, table: &self.table, shift: self.shift }
    }
}

/// Goes from the table over the spline to the keys.
struct Lookup<'a> {
    spline: &'a RadixSpline,
    sorted: &'a SortedKeys,
    keys: &'a [u64],
    places: &'a mut [usize],
}

impl VectorLoop for Lookup<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vectors: impl Vectors) {
        let Self { spline, sorted, keys, places } = self;
        let lines = sorted.lines();
        let is_unique = sorted.is_unique();
        // Keys out of range are looked up as the nearest in range.
        let near = |key: u64| key.clamp(spline.smallest, spline.largest);
        for (keys, places) in keys.chunks(TOGETHER).zip(places.chunks_mut(TOGETHER)) {
            for key in keys {
                prefetch(&spline.table[spline.entry(near(*key))]);
            }
            let mut points = [[0; 2]; TOGETHER];
            for (points, key) in points.iter_mut().zip(keys) {
                let entry = spline.entry(near(*key));
                *points = [spline.table[entry], spline.table[entry + 1]];
                spline.points.get(points[0].saturating_sub(1) as usize).into_iter().for_each(prefetch);
            }
            // A place is that of a line, until it is that of a key.
            let mut slopes = [0.0; TOGETHER];
            for (((place, slope), key), points) in places.iter_mut().zip(&mut slopes).zip(keys).zip(points) {
                let key = near(*key);
                let (estimate, of_line) = spline.estimate(key, spline.point(key, points));
                (*place, *slope) = (estimate / LINE, of_line);
                prefetch(&lines[*place]);
            }
            // The keys of the line tell better where the key is.
            let mut steps = [0; TOGETHER];
            for (((place, slope), key), step) in places.iter_mut().zip(slopes).zip(keys).zip(&mut steps) {
                let line = &lines[*place];
                let smaller = vectors.count_smaller(line, *key);
                let middle = line.0[LINE / 2];
                let distance = (key.wrapping_sub(middle) as i64) as f64 * slope / LINE as f64;
                let is_found = is_unique & (line.0[0] == *key);
                // Computed without a branch: the processor would mispredict it for half of the keys.
                let is_after = isize::from(smaller == LINE);
                let is_before = isize::from((smaller == 0) & !is_found);
                let wanted = is_after * (distance as isize).max(1) + is_before * (distance as isize).min(-1);
                *step = wanted.clamp(-(*place as isize), (lines.len() - 1 - *place) as isize);
                *place = place.wrapping_add_signed(*step);
                prefetch(&lines[*place]);
            }
            for ((place, key), step) in places.iter_mut().zip(keys).zip(&mut steps) {
                let line = &lines[*place];
                let smaller = vectors.count_smaller(line, *key);
                let is_found = is_unique & (line.0[0] == *key);
                let is_after = (smaller == LINE) & (*place + 1 < lines.len()) & (*step != 0);
                let is_before = (smaller == 0) & (*place > 0) & !is_found & (*step != 0);
                *step = isize::from(is_after) - isize::from(is_before);
                *place = place.wrapping_add_signed(*step);
                prefetch(&lines[*place]);
            }
            for ((place, key), step) in places.iter_mut().zip(keys).zip(steps) {
                let smaller = vectors.count_smaller(&lines[*place], *key);
                // A key at the end of the line where it was looked for is one of the next line, or further.
                let goes_on = (step > 0) & (smaller == LINE) | (step < 0) & (smaller == 0);
                *place = *place * LINE + smaller;
                if goes_on {
                    *place = search_near(sorted, *place, *key);
                }
            }
        }
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
