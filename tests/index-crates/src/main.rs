//! Looks the same keys up by Overspill's indexes and by other crates, in turn, and prints medians.
//!
//! Every lookup finds where the first key is that is not smaller. Ours takes keys in batches of a join's size, theirs one after the
//! other, as their interfaces do. `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` gives the memory of all of them huge pages.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use ordsearch::OrderedCollection;
use overspill_index::{Index, IndexKind, SortedKeys};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Keys that are looked up together.
const BATCH: usize = 8192;

#[derive(Debug, Parser)]
struct Arguments {
    /// Number of sorted keys: uniformly distributed, of 8 bytes
    #[arg(long, default_value_t = 1 << 26)]
    keys: usize,

    /// Number of keys that each thread looks up, drawn from the sorted ones
    #[arg(long, default_value_t = 1 << 22)]
    lookups: usize,

    /// Number of threads
    #[arg(long, default_value_t = 2)]
    threads: u64,

    /// Number of runs of each index
    #[arg(long, default_value = "5")]
    runs: NonZeroUsize,
}

/// A way to look keys up.
trait Lookups: Sync {
    /// Returns the sum of the places of the keys, modulo 2^64.
    fn look_up(&self, keys: &[u64]) -> u64;
}

impl Lookups for Index {
    fn look_up(&self, keys: &[u64]) -> u64 {
        let (mut places, mut sum) = (Vec::new(), 0);
        for batch in keys.chunks(BATCH) {
            Index::look_up(self, batch, &mut places);
            sum += places.iter().map(|place| place.start as u64).sum::<u64>();
        }
        sum
    }
}

/// `pgm-extra`.
struct Pgm<'a> {
    index: pgm_extra::index::external::Static<u64>,
    keys: &'a [u64],
}

impl Lookups for Pgm<'_> {
    fn look_up(&self, keys: &[u64]) -> u64 {
        keys.iter().map(|key| self.index.lower_bound(self.keys, key) as u64).sum()
    }
}

/// `radix_spline`, which says in which range a key is.
struct Spline<'a> {
    index: radix_spline::RadixSpline<u64>,
    keys: &'a [u64],
}

impl Lookups for Spline<'_> {
    fn look_up(&self, keys: &[u64]) -> u64 {
        let place = |key: &u64| {
            let range = self.index.find(*key);
            range.start + self.keys[range].partition_point(|other| other < key)
        };
        keys.iter().map(|key| place(key) as u64).sum()
    }
}

/// `ordsearch`, a layout without places: a key stands for its place.
struct Ordered<'a> {
    index: OrderedCollection<(u64, u32)>,
    keys: &'a [u64],
}

impl Lookups for Ordered<'_> {
    fn look_up(&self, keys: &[u64]) -> u64 {
        let place = |key: &u64| self.index.find_gte((*key, 0)).map_or(self.keys.len() as u64, |found| found.1.into());
        keys.iter().map(place).sum()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    // The places that `ordsearch` returns have 4 bytes.
    if !(1..=u32::MAX as usize).contains(&arguments.keys) {
        return Err(format!("--keys must be a number from 1 to {}", u32::MAX).into());
    }
    let keys = Arc::new(sorted_keys(arguments.keys)?);
    let probes: Vec<Vec<u64>> = (0..arguments.threads)
        .map(|thread| {
            let mut random = ChaCha8Rng::seed_from_u64(1 + thread);
            (0..arguments.lookups).map(|_| keys[random.random_range(0..keys.len())]).collect()
        })
        .collect();
    let mut indexes: Vec<(String, Box<dyn Lookups + '_>)> = Vec::new();
    for kind in IndexKind::ALL {
        indexes.push((format!("overspill {kind}"), Box::new(Index::build(kind, Arc::clone(&keys))?)));
    }
    for epsilon in [16, 64] {
        let index = pgm_extra::index::external::Static::new(&keys, epsilon, 4)?;
        indexes.push((format!("pgm-extra, epsilon {epsilon}"), Box::new(Pgm { index, keys: &keys })));
    }
    for (error, bits) in [(32, 18), (8, 24)] {
        let (first, last) = (keys.first().copied().unwrap_or(0), keys.last().copied().unwrap_or(0));
        let mut index = radix_spline::RadixSpline::builder(first, last);
        index.max_error(error).radix_bits(bits).add_keys(keys.iter().copied());
        let index = Spline { index: index.build(), keys: &keys };
        indexes.push((format!("radix_spline, error {error}, {bits} bits"), Box::new(index)));
    }
    let numbered: Vec<_> = keys.iter().copied().zip(0..).collect();
    let index = Ordered { index: OrderedCollection::from_sorted_iter(numbered), keys: &keys };
    indexes.push(("ordsearch".to_owned(), Box::new(index)));

    let mut seconds = vec![Vec::new(); indexes.len()];
    let mut sums = vec![Vec::new(); indexes.len()];
    for _ in 0..arguments.runs.get() {
        for (((_, index), seconds), sums) in indexes.iter().zip(&mut seconds).zip(&mut sums) {
            let (took, found) = timed(&**index, &probes);
            seconds.push(took);
            *sums = found;
        }
    }
    println!("{} keys, {} threads; million lookups a second", arguments.keys, arguments.threads);
    let right = sums[0].clone();
    for (((name, _), mut seconds), sums) in indexes.iter().zip(seconds).zip(sums) {
        seconds.sort_by(f64::total_cmp);
        let lookups = (arguments.lookups * probes.len()) as f64;
        let verdict = if sums == right { "" } else { "finds wrong places" };
        println!("{name:34} {:7.1}  {verdict}", lookups / seconds[seconds.len() / 2] / 1e6);
        if sums != right && name.starts_with("overspill") {
            return Err(format!("{name} finds other places than binary search").into());
        }
    }
    Ok(())
}

/// The seconds until all threads have looked their keys up, and the sums of the places.
fn timed(index: &dyn Lookups, probes: &[Vec<u64>]) -> (f64, Vec<u64>) {
    let begin = Instant::now();
    let sums = std::thread::scope(|scope| {
        let threads: Vec<_> = probes.iter().map(|probes| scope.spawn(|| index.look_up(probes))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    (begin.elapsed().as_secs_f64(), sums)
}

/// Different keys in order, as far apart as uniformly distributed ones.
fn sorted_keys(count: usize) -> Result<SortedKeys, Box<dyn Error>> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let gap = u64::MAX as f64 / count as f64;
    let keys = SortedKeys::write(count, |keys| {
        let mut key = 0u64;
        for place in keys {
            // An exponential distribution.
            let distance = -f64::ln(1.0 - random.random::<f64>());
            key = key.saturating_add(1 + (distance * gap * 0.99) as u64);
            *place = key;
        }
    })?;
    Ok(keys)
}
