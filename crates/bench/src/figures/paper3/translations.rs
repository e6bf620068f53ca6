//! Translations that lookups request: a model of a translation buffer, at the paper's sizes (figures 4 and 6).
//!
//! Threads take one step of their lookups after the other, all in turn, and each step touches a page. The buffer keeps the
//! pages that were used last: 32 of 1 GiB, the 32 GiB that the V100 translates at full speed. Keys are equally far apart, so that the steps of a
//! lookup follow from its place alone, and no data are needed.

use overspill_advisor::IndexKind;
use overspill_experiments::{Axis, Figure, SeriesSource};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::bench::Bench;
use super::workload::Workload;
use super::{GIB, KINDS};

const PAGE: u64 = 1 << 30;
const PAGES: usize = 32;

/// Lookups that are under way at a time. A V100 has 2.5 times as many threads; between two steps of one, either number touches more
/// pages than the buffer holds.
const THREADS: usize = 1 << 16;
/// The number of lookups that are followed.
const LOOKUPS: usize = 4 * THREADS;
/// Partitions of all keys of s (section 4.3).
const PARTITIONS: u64 = 2048;

const KEY: u64 = 8;
const PAGE_KEYS: u64 = 512;
const LINE_KEYS: u64 = 8;
const HARMONIA_KEYS: u64 = 32;
const POINT: u64 = 16;
const KEYS_OF_POINT: u64 = 1190;
/// The distance of an estimate from its key: the mean of a spline with an error of 32.
const MISSED_BY: u64 = 12;

/// Figure 4.
pub(super) fn requested(bench: &Bench) -> Figure {
    let mut figure = figure(bench, "paper3-4", "Translations a lookup, as keys come", "paper 3, figure 4");
    figure.y = Axis::linear("translations a lookup");
    for kind in KINDS {
        let points = GIB.map(|gib| (gib, translations(kind, Workload::rows(gib), false)));
        figure.add(SeriesSource::Predicted, kind.to_string(), points.into());
    }
    figure.add(SeriesSource::Paper, "binary_search", vec![(111.0, 105.0)]);
    figure.add(SeriesSource::Paper, "harmonia", vec![(111.0, 11.3)]);
    figure
        .notes
        .push("the paper counts requests that the processor receives; a read may request more than once".to_owned());
    figure
}

/// Figure 6.
pub(super) fn removed(bench: &Bench) -> Figure {
    let mut figure = figure(bench, "paper3-6", "Translations removed by partitioning", "paper 3, figure 6");
    figure.y = Axis::linear("% of the translations");
    for kind in KINDS {
        // Below, there are none to remove.
        let beyond = GIB.into_iter().filter(|gib| *gib * f64::from(1 << 30) > PAGE as f64 * PAGES as f64);
        let points = beyond.map(|gib| {
            let [plain, partitioned] = [false, true].map(|sorted| translations(kind, Workload::rows(gib), sorted));
            (gib, 100.0 * (1.0 - partitioned / plain))
        });
        figure.add(SeriesSource::Predicted, kind.to_string(), points.collect());
    }
    figure.notes.push("the paper: nearly 100 %; 0.1 translations a lookup are left in binary search".to_owned());
    figure
}

fn figure(bench: &Bench, name: &'static str, title: &'static str, paper: &'static str) -> Figure {
    Figure {
        name,
        title,
        paper,
        machine: format!(
            "{}; a model of a buffer of {PAGES} pages of 1 GiB, for 2^26 lookups",
            bench.machine.describe()
        ),
        emulated: bench.is_emulated(),
        x: Axis::logarithmic("GiB of r"),
        ..Figure::default()
    }
}

/// The pages that were used last.
#[derive(Default)]
struct Buffer {
    pages: Vec<u64>,
    misses: u64,
}

impl Buffer {
    fn touch(&mut self, page: u64) {
        match self.pages.iter().position(|known| *known == page) {
            Some(place) => self.pages[..=place].rotate_right(1),
            None => {
                self.misses += 1;
                self.pages.truncate(PAGES - 1);
                self.pages.insert(0, page);
            }
        }
    }
}

/// Translations a lookup among `rows` keys.
fn translations(kind: IndexKind, rows: u64, partitioned: bool) -> f64 {
    let mut random = ChaCha8Rng::seed_from_u64(rows);
    let mut buffer = Buffer::default();
    for _ in 0..LOOKUPS / THREADS {
        let places: Vec<u64> = if partitioned {
            // The threads are at work on the partitions from one on.
            let each = Workload::LOOKUPS / PARTITIONS;
            let count = (THREADS as u64).div_ceil(each);
            let first = random.random_range(0..=PARTITIONS - count);
            let width = rows / PARTITIONS;
            (0..THREADS as u64).map(|thread| (first + thread / each) * width + random.random_range(0..width)).collect()
        } else {
            (0..THREADS).map(|_| random.random_range(0..rows)).collect()
        };
        let mut steps: Vec<Vec<u64>> = places.into_iter().map(|place| pages(kind, rows, place)).collect();
        let most = steps.iter().map(Vec::len).max().unwrap_or(0);
        for step in 0..most {
            // No thread is always ahead of the others.
            if step % 8 == 0 {
                steps.shuffle(&mut random);
            }
            for page in steps.iter().filter_map(|pages| pages.get(step)) {
                buffer.touch(*page);
            }
        }
    }
    buffer.misses as f64 / LOOKUPS as f64
}

/// The pages that the lookup of the key at a place touches, one a step. Each array begins on a page of its own.
fn pages(kind: IndexKind, rows: u64, place: u64) -> Vec<u64> {
    let mut pages = Vec::new();
    let keys = (rows * KEY).div_ceil(PAGE);
    match kind {
        IndexKind::BinarySearch => halve(rows, place, |at| pages.push(at * KEY / PAGE)),
        IndexKind::BTree => descend(rows, place, PAGE_KEYS, |level, node, slot| {
            let first = node * PAGE_KEYS * KEY;
            let base = if level == 0 { 0 } else { keys + level_start(rows, PAGE_KEYS, level) / PAGE };
            halve(PAGE_KEYS, slot, |at| pages.push(base + (first + at * KEY) / PAGE));
        }),
        IndexKind::LineBTree => descend(rows, place, LINE_KEYS, |level, node, _| {
            let base = if level == 0 { 0 } else { keys + level_start(rows, LINE_KEYS, level) / PAGE };
            pages.push(base + node * LINE_KEYS * KEY / PAGE);
        }),
        IndexKind::Harmonia => descend(rows, place, HARMONIA_KEYS, |level, node, _| {
            let base = if level == 0 { 0 } else { keys + level_start(rows, HARMONIA_KEYS, level) / PAGE };
            // The children are on the page after all nodes.
            if level > 0 {
                pages.push(keys + rows.div_ceil(HARMONIA_KEYS) * KEY / PAGE + 1);
            }
            pages.push(base + node * HARMONIA_KEYS * KEY / PAGE);
        }),
        IndexKind::RadixSpline => {
            // The table, a point, the estimate, a line further, and between the two.
            pages.push(keys);
            pages.push(keys + 1 + place / KEYS_OF_POINT * POINT / PAGE);
            let near = place.saturating_sub(MISSED_BY);
            for at in [near, near + 16, near + 8, place] {
                pages.push(at.min(rows - 1) * KEY / PAGE);
            }
        }
    }
    pages
}

/// The places that a binary search reads on the way to `place`.
fn halve(length: u64, place: u64, mut read: impl FnMut(u64)) {
    let (mut first, mut length) = (0, length);
    while length > 1 {
        let half = length / 2;
        read(first + half - 1);
        if place > first + half - 1 {
            first += half;
        }
        length -= half;
    }
    read(first);
}

/// The nodes of a tree from the root to the leaf of a place, by their level from the leaves up and their number in it, and the slot that
/// is looked for there.
fn descend(rows: u64, place: u64, keys: u64, mut read: impl FnMut(u32, u64, u64)) {
    let mut levels = 0;
    while nodes_of(rows, keys, levels) > 1 {
        levels += 1;
    }
    for level in (1..=levels).rev() {
        let below = keys * (keys + 1).pow(level - 1);
        let child = place / below;
        read(level, child / (keys + 1), (child % (keys + 1)).min(keys - 1));
    }
    read(0, place / keys, place % keys);
}

/// The number of nodes of a level.
fn nodes_of(rows: u64, keys: u64, level: u32) -> u64 {
    rows.div_ceil(keys * (keys + 1).pow(level))
}

/// Bytes of the inner nodes of higher levels, which lie before those of a level.
fn level_start(rows: u64, keys: u64, level: u32) -> u64 {
    let mut above = level + 1;
    let mut nodes = 0;
    while nodes_of(rows, keys, above - 1) > 1 {
        nodes += nodes_of(rows, keys, above);
        above += 1;
    }
    nodes * keys * KEY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitioning_removes_what_large_indexes_request() {
        for kind in IndexKind::ALL {
            // Within the reach, each page is requested once.
            assert!(translations(kind, Workload::rows(16.0), false) < 0.01, "{kind}");
            let [plain, partitioned] = [false, true].map(|sorted| translations(kind, Workload::rows(111.0), sorted));
            assert!(plain > 0.5, "{kind}: {plain}");
            assert!(partitioned < 0.05 * plain, "{kind}: {partitioned} of {plain}");
        }
        let of = |kind| translations(kind, Workload::rows(111.0), false);
        assert!(of(IndexKind::BinarySearch) > 2.0 * of(IndexKind::Harmonia));
    }

    #[test]
    fn searches_end_at_their_place() {
        for length in [1, 2, 7, 64, 513] {
            for place in 0..length {
                let mut last = None;
                halve(length, place, |at| last = Some(at));
                assert_eq!(last, Some(place), "of {length}");
            }
        }
        let mut nodes = Vec::new();
        descend(1_000_000, 999_999, 8, |level, node, _| nodes.push((level, node)));
        assert_eq!(nodes.last(), Some(&(0, 124_999)));
        assert_eq!(nodes.first(), Some(&(nodes.len() as u32 - 1, 0)));
    }
}
