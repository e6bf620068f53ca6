//! The relations r and s.

use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err};
use overspill_advisor::IndexKind;
use overspill_index::{Index, SortedKeys};
use overspill_machine::memory::PageVec;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::Zipf;

use crate::report::failed;
use crate::threads::on_each;

const KEY_BYTES: f64 = 8.0;

/// The sizes of a point at a scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) lookups: usize,
}

impl Sizes {
    pub(super) fn new(gib: f64, scale: f64) -> Self {
        let scaled = |count: u64| ((count as f64 * scale) as usize).max(1);
        Self { rows: scaled(Workload::rows(gib)), lookups: scaled(Workload::LOOKUPS) }
    }

    /// Bytes of r.
    pub(super) fn bytes(self) -> f64 {
        self.rows as f64 * KEY_BYTES
    }
}

/// r has unique sorted keys; s has keys of r.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) r: Arc<SortedKeys>,
    pub(super) s: PageVec<u64>,
}

impl Workload {
    /// Keys of s at the paper's size.
    pub(super) const LOOKUPS: u64 = 1 << 26;

    /// Keys of r at the paper's size.
    pub(super) fn rows(gib: f64) -> u64 {
        (gib * f64::from(1 << 30) / KEY_BYTES) as u64
    }

    /// Draws keys of s from those of r, by a Zipf distribution with this exponent, 0 for a uniform one.
    pub(super) fn new(sizes: Sizes, zipf: f64, threads: usize) -> Result<Self> {
        let gap = (u64::MAX / sizes.rows as u64).max(2);
        let r = SortedKeys::write(sizes.rows, |keys| {
            let part = keys.len().div_ceil(threads.max(1)).max(1);
            std::thread::scope(|scope| {
                for (number, keys) in keys.chunks_mut(part).enumerate() {
                    scope.spawn(move || {
                        let mut random = ChaCha8Rng::seed_from_u64(number as u64);
                        // One key at random in each of as many ranges as there are keys.
                        for (place, key) in keys.iter_mut().enumerate() {
                            *key = (number * part + place) as u64 * gap + random.random_range(0..gap / 2 + 1);
                        }
                    });
                }
            });
        });
        let r = Arc::new(r.map_err(failed)?);
        let mut s = PageVec::zeroed(sizes.lookups).map_err(failed)?;
        let part = s.len().div_ceil(threads.max(1)).max(1);
        on_each(s.chunks_mut(part).enumerate().collect(), |(number, keys): (usize, &mut [u64])| {
            let mut random = ChaCha8Rng::seed_from_u64(1000 + number as u64);
            let rows = r.len();
            if zipf == 0.0 {
                keys.fill_with(|| r[random.random_range(0..rows)]);
                return Ok(());
            }
            let ranks = Zipf::new(rows as f64, zipf)
                .map_err(|error| exec_datafusion_err!("A Zipf exponent of {zipf} is not possible: {error}"))?;
            keys.fill_with(|| {
                // Frequent keys lie anywhere in r.
                let rank = random.sample(ranks) as u64;
                let place = (u128::from(rank.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * rows as u128) >> u64::BITS;
                r[place as usize]
            });
            Ok(())
        })?;
        Ok(Self { r, s })
    }

    pub(super) fn index(&self, kind: IndexKind) -> Result<Index> {
        Index::build(kind, Arc::clone(&self.r)).map_err(failed)
    }
}
