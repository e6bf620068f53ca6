//! Suites in which the n-th call fails, for every n of many joins, run a sixth of their joins at a time, another one in each run.
//! `make test-faults` runs them all.

use std::time::SystemTime;

/// The parts into which cases are dealt. A run tries one part.
const PARTS: usize = 6;

/// The cases that this run tries: all with `OVERSPILL_TEST_PART=all`, the part of a number from 0 with that number, and without
/// it the part of the present second.
pub fn share_of<T>(cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let cases = cases.into_iter();
    let part = match std::env::var("OVERSPILL_TEST_PART") {
        Ok(all) if all == "all" => return cases.collect(),
        Ok(part) => part.parse().unwrap_or_else(|_| panic!("OVERSPILL_TEST_PART is {part:?}: not all, and no number")),
        Err(_) => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as usize,
    };
    println!("part {} of {PARTS}: OVERSPILL_TEST_PART={}", part % PARTS + 1, part % PARTS);
    let share: Vec<T> = cases.skip(part % PARTS).step_by(PARTS).collect();
    assert!(!share.is_empty(), "too few cases for {PARTS} parts");
    share
}
