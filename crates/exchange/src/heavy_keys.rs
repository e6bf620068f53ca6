//! Keys that many rows of a join have. Shuffled, all of these rows would come to one rank.
//!
//! Paper 4 has uniform keys and leaves this open. Here each rank counts the keys of a sample of both sides, its first rows, and all ranks gather
//! what they have counted. Rows of a heavy key then stay where they are, and the rows of that key from the other side, which has fewer, go to
//! all ranks. Keys are told apart by a hash of 32 bits: two keys with the same one are treated alike, on both sides.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use arrow::buffer::Buffer;
use futures::future::{Either, select};

use crate::error::{Error, Result};
use crate::gather::all_gather;
use crate::rank::Rank;
use crate::transport::{Job, StreamNumber};

/// The seed of the hash that tells heavy keys apart.
pub const SEED: u32 = 15;

/// A key is heavy if its rows alone are more than this part of what a rank should have of its side.
const PART_OF_A_RANK: f64 = 0.1;

/// Fewer rows of a sample say nothing.
const FEWEST: u64 = 16;

/// Rows go to all ranks if the other side has so many times as many with their key.
const RATIO: f64 = 2.0;

/// A side of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first.
    Left,
    /// The second.
    Right,
}

/// Where rows of a heavy key go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Nowhere.
    Stay,
    /// To all ranks.
    Everywhere,
}

/// The heavy keys of a side, by their hashes.
#[derive(Debug, Default)]
pub struct Routes {
    /// In ascending order.
    keys: Vec<(u32, Route)>,
    /// A bit for each prefix of 16 bits that a heavy key has: most rows are told by it alone.
    prefixes: Vec<u64>,
}

impl Routes {
    fn new(mut keys: Vec<(u32, Route)>) -> Self {
        keys.sort_unstable_by_key(|(hash, _)| *hash);
        let mut prefixes = vec![0_u64; if keys.is_empty() { 0 } else { 1 << 10 }];
        for (hash, _) in &keys {
            prefixes[(hash >> 22) as usize] |= 1 << ((hash >> 16) & 63);
        }
        Self { keys, prefixes }
    }

    /// Whether no key is heavy.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many keys are heavy.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Where rows whose key has this hash go; `None` if it is not heavy. There must be heavy keys.
    pub fn of(&self, hash: u32) -> Option<Route> {
        if self.prefixes[(hash >> 22) as usize] & (1 << ((hash >> 16) & 63)) == 0 {
            return None;
        }
        let place = self.keys.binary_search_by_key(&hash, |(hash, _)| *hash).ok()?;
        Some(self.keys[place].1)
    }
}

/// What was counted of a side.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    rows: u64,
    counts: HashMap<u32, u64>,
}

impl Sample {
    /// Counts rows by the hashes of their keys.
    pub fn count(&mut self, hashes: impl IntoIterator<Item = u32>) {
        for hash in hashes {
            self.rows += 1;
            *self.counts.entry(hash).or_default() += 1;
        }
    }

    fn add(&mut self, other: Self) {
        self.rows += other.rows;
        for (hash, count) in other.counts {
            *self.counts.entry(hash).or_default() += count;
        }
    }

    /// The part of the rows that a key has to have to be heavy.
    fn least_part(ranks: usize) -> f64 {
        PART_OF_A_RANK / ranks as f64
    }

    /// Forgets keys that cannot be heavy: a key that is heavy among all ranks is at least half as heavy on one of them.
    fn keep_heavy(&mut self, ranks: usize) {
        let least = self.rows as f64 * Self::least_part(ranks) / 2.0;
        self.counts.retain(|_, count| *count as f64 > least);
    }

    fn part(&self, hash: u32) -> f64 {
        self.counts.get(&hash).map_or(0.0, |count| *count as f64 / self.rows as f64)
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.rows.to_le_bytes());
        bytes.extend((self.counts.len() as u64).to_le_bytes());
        for (hash, count) in &self.counts {
            bytes.extend(u64::from(*hash).to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
    }

    fn read(words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let (rows, entries) = (words.next()?, words.next()?);
        let counts = (0..entries).map(|_| Some((u32::try_from(words.next()?).ok()?, words.next()?)));
        Some(Self { rows, counts: counts.collect::<Option<_>>()? })
    }
}

/// What ranks find out about the keys of one join.
#[derive(Debug)]
pub struct HeavyKeys {
    job: Job,
    number: StreamNumber,
    /// Whether rows of the left side, or of the right one, may go to all ranks.
    may_go_everywhere: [bool; 2],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many samples this rank has not counted yet.
    missing: usize,
    samples: [Sample; 2],
    decided: Option<[Arc<Routes>; 2]>,
    wakers: Vec<Waker>,
}

impl HeavyKeys {
    /// What ranks find out by this number of samples of each. `may_go_everywhere` says whether rows of the left side, or of the right one, may:
    /// not if the join returns them also without a match. The number is of gathers of the job.
    pub fn new(job: &Job, number: StreamNumber, samples: usize, may_go_everywhere: [bool; 2]) -> Self {
        let state = State { missing: samples, samples: Default::default(), decided: None, wakers: vec![] };
        Self { job: job.clone(), number, may_go_everywhere, state: Mutex::new(state) }
    }

    /// How many keys are heavy, of the left side and the right one; `None` if that is not known yet.
    pub fn found(&self) -> Option<usize> {
        self.state().decided.as_ref().map(|[left, _]| left.len())
    }

    /// Adds a sample, and waits until those of all ranks are there. Returns the heavy keys of the sample's side.
    ///
    /// # Errors
    /// If a rank has failed.
    pub(crate) async fn decide(&self, side: Side, sample: Sample) -> Result<Arc<Routes>> {
        let all = {
            let mut state = self.state();
            state.samples[side as usize].add(sample);
            state.missing = state.missing.saturating_sub(1);
            (state.missing == 0).then(|| state.samples.clone())
        };
        if let Some(samples) = all {
            let decided = self.gathered(samples).await?;
            let wakers = {
                let mut state = self.state();
                state.decided = Some(decided);
                std::mem::take(&mut state.wakers)
            };
            wakers.into_iter().for_each(|waker| waker.wake());
        }
        self.decided(side).await
    }

    /// The heavy keys of a side, once they are known.
    ///
    /// # Errors
    /// If a rank has failed.
    pub(crate) async fn decided(&self, side: Side) -> Result<Arc<Routes>> {
        let decided = poll_fn(|context| {
            let mut state = self.state();
            match &state.decided {
                Some(decided) => Poll::Ready(Arc::clone(&decided[side as usize])),
                None => {
                    state.wakers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        match select(decided, pin!(self.job.failed())).await {
            Either::Left((routes, _)) => Ok(routes),
            Either::Right((failure, _)) => Err(failure),
        }
    }

    async fn gathered(&self, mut samples: [Sample; 2]) -> Result<[Arc<Routes>; 2]> {
        let ranks = self.job.endpoint().topology().ranks();
        let mut message = vec![];
        for sample in &mut samples {
            sample.keep_heavy(ranks);
            sample.write(&mut message);
        }
        let mut sums = <[Sample; 2]>::default();
        for (rank, message) in all_gather(&self.job, self.number, Buffer::from_vec(message)).await?.iter().enumerate() {
            for (sum, sample) in sums.iter_mut().zip(read(message, rank)?) {
                sum.add(sample);
            }
        }
        Ok(self.decision(&sums, ranks))
    }

    /// Which keys are heavy, by what all ranks have counted.
    fn decision(&self, [left, right]: &[Sample; 2], ranks: usize) -> [Arc<Routes>; 2] {
        let least = Sample::least_part(ranks);
        let mut routes = [vec![], vec![]];
        let mut keys: Vec<u32> = left.counts.keys().chain(right.counts.keys()).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let parts = [left.part(key), right.part(key)];
            let seen = [left, right].map(|sample| sample.counts.get(&key).is_some_and(|count| *count >= FEWEST));
            for (stays, goes) in [(0, 1), (1, 0)] {
                if seen[stays]
                    && parts[stays] > least
                    && parts[stays] > RATIO * parts[goes]
                    && self.may_go_everywhere[goes]
                {
                    routes[stays].push((key, Route::Stay));
                    routes[goes].push((key, Route::Everywhere));
                }
            }
        }
        routes.map(|keys| Arc::new(Routes::new(keys)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way through a change.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn read(message: &Buffer, rank: Rank) -> Result<[Sample; 2]> {
    let (words, rest) = message.as_slice().as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let samples = Sample::read(&mut words).zip(Sample::read(&mut words));
    match samples {
        Some((left, right)) if rest.is_empty() && words.next().is_none() => Ok([left, right]),
        _ => Err(Error::Unexpected { rank, what: format!("{} bytes of heavy keys", message.len()) }),
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::future::join_all;

    use super::*;
    use crate::topology::Topology;
    use crate::transport::{JobId, in_process};

    fn sample(rows: u64, heavy: &[(u32, u64)]) -> Sample {
        let mut sample = Sample { rows, counts: (0..200).map(|key| (key, 1)).collect() };
        sample.counts.extend(heavy.iter().copied());
        sample
    }

    /// The routes of both sides on each of three ranks, of which the last has counted what is given.
    fn decided(last: [Sample; 2], may_go_everywhere: [bool; 2]) -> Vec<[Arc<Routes>; 2]> {
        let endpoints = in_process(&Arc::new(Topology::of_nodes(3, 3).unwrap()), None);
        let ranks = endpoints.iter().enumerate().map(async |(rank, endpoint)| {
            let heavy = HeavyKeys::new(&Job::begin(endpoint, JobId(0)), 0, 2, may_go_everywhere);
            let [left, right] = if rank == 2 { last.clone() } else { [sample(1000, &[]), Sample::default()] };
            let (left, right) =
                futures::future::join(heavy.decide(Side::Left, left), heavy.decide(Side::Right, right)).await;
            [left.unwrap(), right.unwrap()]
        });
        block_on(join_all(ranks))
    }

    #[test]
    fn all_ranks_learn_what_one_has_counted() {
        let last = [sample(1000, &[(7, 900), (8, 20)]), sample(500, &[(u32::MAX, 300), (7, 9)])];
        for [left, right] in decided(last, [true, true]) {
            assert_eq!((left.of(7), right.of(7)), (Some(Route::Stay), Some(Route::Everywhere)));
            assert_eq!((left.of(u32::MAX), right.of(u32::MAX)), (Some(Route::Everywhere), Some(Route::Stay)));
            // 20 of 3,000 rows are less than a tenth of what a rank has.
            assert_eq!((left.of(8), right.of(8), left.of(9)), (None, None, None));
            assert_eq!((left.len(), right.len()), (2, 2));
        }
    }

    #[test]
    fn rows_that_must_be_on_one_rank_do_not_go_everywhere() {
        let last = [sample(1000, &[(7, 900)]), sample(500, &[(9, 300)])];
        for [left, right] in decided(last.clone(), [false, true]) {
            assert_eq!((left.of(7), right.of(7), right.of(9)), (Some(Route::Stay), Some(Route::Everywhere), None));
        }
        assert!(decided(last, [false, false]).iter().all(|[left, right]| left.is_empty() && right.is_empty()));
    }

    #[test]
    fn keys_that_are_as_heavy_on_both_sides_are_shuffled() {
        let last = [sample(1000, &[(7, 900)]), sample(1000, &[(7, 500)])];
        assert!(decided(last, [true, true]).iter().all(|[left, _]| left.is_empty()));
    }

    #[test]
    fn forged_counts_are_refused() {
        for bytes in [vec![], vec![1; 9], [vec![0; 24], vec![255; 8]].concat(), vec![0; 40]] {
            let error = read(&Buffer::from_vec(bytes), 4).unwrap_err().to_string();
            assert!(error.contains("rank 4") && error.contains("heavy keys"), "{error}");
        }
    }
}
