//! Chains of indices for measuring latency: each read returns the index of the next read.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{MeasuredMemory, Processor};

/// The latency of reads within a range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyPoint {
    /// Bytes of the range.
    pub range: u64,
    /// Nanoseconds per read.
    pub nanoseconds: f64,
}

/// Latency by range. A step marks the size of a cache or a translation buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyCurve {
    /// The processor that reads.
    pub processor: Processor,
    /// The memory that is read.
    pub memory: MeasuredMemory,
    /// Bytes between neighbouring places that are read.
    pub stride: u64,
    /// Points, sorted by range.
    pub points: Vec<LatencyPoint>,
}

/// A cycle through an array that visits one place in every `stride` bytes once, in random order, and ends where it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Bytes of the array that the chain covers.
    pub range: u64,
    /// Bytes between places: a multiple of 8.
    pub stride: u64,
}

const LINE: u64 = 64;

impl Chain {
    /// Number of places in the chain.
    pub fn places(&self) -> u64 {
        self.range / self.stride
    }

    /// Writes the chain into an array of at least its range. Returns the index to start from.
    ///
    /// If a stride spans several lines, neighbouring places use different lines of their strides. Otherwise all places would
    /// fall into few sets of the caches.
    ///
    /// # Panics
    /// If the array is too short, or the chain has no place.
    pub fn lay(&self, array: &mut [u64]) -> u64 {
        let lines = self.stride / LINE;
        let index_of = |place: u64| {
            let line = if lines > 1 { place % lines } else { 0 };
            (place * self.stride + line * LINE) / 8
        };
        let mut order: Vec<u64> = (0..self.places()).map(index_of).collect();
        // The seed is fixed, so that all memories are read in the same order.
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(self.range ^ self.stride));
        let first = order[0];
        for (from, to) in order.iter().zip(order[1..].iter().chain([&first])) {
            array[usize::try_from(*from).expect("an index of an array")] = *to;
        }
        first
    }

    /// Follows the chain for `steps` steps. Returns the index where it ended.
    ///
    /// # Panics
    /// If an index is outside the array.
    pub fn follow(array: &[u64], start: u64, steps: u64) -> u64 {
        (0..steps).fold(start, |at, _| array[usize::try_from(at).expect("an index of an array")])
    }
}

/// Reads 8 bytes at `reads` random places, each independent of the others, and returns their sum.
pub(super) fn read_at_random(array: &[u64], reads: u64, random: &mut impl Rng) -> u64 {
    let length = array.len() as u64;
    let mut state: u64 = random.random();
    (0..reads).fold(0u64, |sum, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = ((state >> 32) * length) >> 32;
        sum.wrapping_add(array[usize::try_from(at).expect("an index of an array")])
    })
}
