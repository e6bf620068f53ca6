//! Builds the spline.

use super::Point;

/// Finds points on the line from keys to places such that interpolation between neighbouring points is off by at most `error`, in
/// one pass (Neumann and Michel, 2008: greedy spline corridor). Of equal keys only the first counts. `O(n)`.
pub(super) fn spline(sorted: &[u64], error: usize) -> Vec<Point> {
    let mut distinct = Distinct { sorted, place: 0 };
    let Some(mut base) = distinct.next() else { return Vec::new() };
    let mut points = vec![base];
    let Some(mut before) = distinct.next() else { return points };
    let mut corridor = Corridor::new(base, before, error);
    for point in distinct {
        if !corridor.narrow(point, error) {
            points.push(before);
            base = before;
            corridor = Corridor::new(base, point, error);
        }
        before = point;
    }
    points.push(before);
    points
}

/// The first of each of several equal keys.
struct Distinct<'a> {
    sorted: &'a [u64],
    place: usize,
}

impl Iterator for Distinct<'_> {
    type Item = Point;

    fn next(&mut self) -> Option<Point> {
        let (place, key) = (self.place, *self.sorted.get(self.place)?);
        self.place += 1;
        while self.sorted.get(self.place) == Some(&key) {
            self.place += 1;
        }
        Some(Point { key, place: place as u64 })
    }
}

/// The slopes of all lines from a point that pass all later points at most an error above or below.
struct Corridor {
    base: Point,
    lowest: f64,
    highest: f64,
}

impl Corridor {
    fn new(base: Point, first: Point, error: usize) -> Self {
        let slopes = Slopes::new(base, first, error);
        Self { base, lowest: slopes.lowest, highest: slopes.highest }
    }

    /// Keeps only the lines that pass the point; false if the line to the point itself is outside.
    fn narrow(&mut self, point: Point, error: usize) -> bool {
        let slopes = Slopes::new(self.base, point, error);
        if slopes.exact < self.lowest || slopes.exact > self.highest {
            return false;
        }
        self.lowest = self.lowest.max(slopes.lowest);
        self.highest = self.highest.min(slopes.highest);
        true
    }
}

/// The slope to a point, and to the points an error below and above it.
struct Slopes {
    lowest: f64,
    exact: f64,
    highest: f64,
}

impl Slopes {
    fn new(base: Point, point: Point, error: usize) -> Self {
        let (width, height) = ((point.key - base.key) as f64, (point.place - base.place) as f64);
        let (per_key, error) = (1.0 / width, error as f64);
        Self { lowest: (height - error) * per_key, exact: height * per_key, highest: (height + error) * per_key }
    }
}
